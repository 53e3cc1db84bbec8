//! Warnings about addresses: clients that a listener does not serve although it looks as if it did, and servers that are
//! listeners of the same process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::codes::Code;
use super::list::{WarningInput, WarningList};

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    warn_of_unserved_ipv4(input, list);
    warn_of_own_servers(input, list);
}

fn warn_of_unserved_ipv4(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let addresses = input.listeners.iter().map(|listener| listener.address);
    let addresses: Vec<SocketAddr> =
        addresses.chain(input.admin.map(|admin| admin.address)).collect();
    let Some(at) = &input.listeners_at else {
        return;
    };
    for listener in input.listeners {
        let address = listener.address;
        let serves_all = address.is_ipv6() && address.ip().is_unspecified();
        let twins = addresses.iter().filter(|a| a.is_ipv4() && a.port() == address.port());
        let twins: Vec<&SocketAddr> = twins.collect();
        // `[::]` takes IPv4 too, unless an address of IPv4 has the same port. One that takes all of IPv4 leaves no gap.
        let has_gap = twins.iter().all(|twin| !twin.ip().is_unspecified());
        if let (true, true, Some(twin)) = (serves_all, has_gap, twins.first()) {
            let message = format!(
                "{address} serves IPv6 only, because {twin} has the same port: other addresses of \
                 IPv4 are not served"
            );
            let cure = "use another port for one of them, or list 0.0.0.0 instead";
            list.add(Code::Ipv4NotServed, at, message, cure);
        }
    }
}

/// Warns of servers of origins that are addresses of this process: a request would come back again and again.
fn warn_of_own_servers(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let Some(at) = &input.origins_at else {
        return;
    };
    let own = input.listeners.iter().map(|listener| listener.address);
    let own: Vec<SocketAddr> = own.chain(input.admin.map(|admin| admin.address)).collect();
    for origin in input.origins {
        let servers = origin.servers.iter().map(|server| &*server.address);
        for address in servers {
            if let Some(listener) = own.iter().find(|listener| is_served_by(address, **listener)) {
                let message = format!(
                    "server {address} of origin {:?} is tollgate itself, which listens on {listener}",
                    &*origin.name
                );
                let cure = "name the address of the server behind tollgate";
                list.add(Code::OriginIsListener, at, message, cure);
            }
        }
    }
}

/// Whether a connection to a server comes to a listener. Other addresses of this machine are not known.
fn is_served_by(server: &str, listener: SocketAddr) -> bool {
    let parsed = server.parse::<SocketAddr>().ok();
    let local = server.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    let local = local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let Some(server) = parsed.or(local).filter(|server| server.port() == listener.port()) else {
        return false;
    };
    let (ip, own): (IpAddr, IpAddr) = (server.ip().to_canonical(), listener.ip().to_canonical());
    // A connection to the unspecified address is one to this machine; `[::]` takes IPv4 too.
    let is_local = ip.is_loopback() || ip.is_unspecified();
    let is_family = own.is_ipv6() || ip.is_ipv4();
    ip == own
        || is_local && own.is_unspecified() && is_family
        || ip.is_unspecified() && own.is_loopback() && own.is_ipv4() == ip.is_ipv4()
}
