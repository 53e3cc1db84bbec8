//! Reads a PROXY header from a socket, and not a byte more.
//!
//! TLS or HTTP begins with the next byte, and the socket cannot take bytes back. Its caller sets the deadline.
//! The format is in [`proxy_protocol`](super::proxy_protocol).

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::proxy_protocol::{
    InvalidProxyHeader, MAX_PROXY_V1_BYTES, PROXY_SIGNATURE_BYTES, PROXY_V2_FIXED_BYTES,
    ProxySource, ProxyVersion, parse_proxy_header, proxy_v2_size, proxy_version,
};
use super::server::ConnectionEnd;
use crate::http::RejectReason;

/// Reads the header. `Err(None)` if the peer has left.
pub(super) async fn read_proxy_header(tcp: &mut TcpStream) -> Result<ProxySource, ConnectionEnd> {
    let invalid = |_: InvalidProxyHeader| Some(RejectReason::ProxyProtocol);
    let mut start = [0; PROXY_SIGNATURE_BYTES];
    tcp.read_exact(&mut start).await.map_err(|_| None)?;
    let mut header = start.to_vec();
    match proxy_version(&start).map_err(invalid)? {
        ProxyVersion::V1 => {
            while !header.ends_with(b"\n") {
                if header.len() == MAX_PROXY_V1_BYTES {
                    return Err(Some(RejectReason::ProxyProtocol));
                }
                header.push(tcp.read_u8().await.map_err(|_| None)?);
            }
        }
        ProxyVersion::V2 => {
            let mut fixed = [0; PROXY_V2_FIXED_BYTES];
            fixed[..PROXY_SIGNATURE_BYTES].copy_from_slice(&start);
            tcp.read_exact(&mut fixed[PROXY_SIGNATURE_BYTES..]).await.map_err(|_| None)?;
            header = vec![0; proxy_v2_size(&fixed).map_err(invalid)?];
            header[..PROXY_V2_FIXED_BYTES].copy_from_slice(&fixed);
            tcp.read_exact(&mut header[PROXY_V2_FIXED_BYTES..]).await.map_err(|_| None)?;
        }
    }
    parse_proxy_header(&header).map_err(invalid)
}
