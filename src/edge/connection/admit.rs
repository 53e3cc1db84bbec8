//! What comes before HTTP: the PROXY header, the client's share of permits, the TLS handshake.
//!
//! The result is a stream that the framework can read. What must always hold: each step has a deadline, and the TLS
//! handshake is charged to its client before it begins.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::l4::socket::SocketAddr as AnyAddr;
use pingora::protocols::{ALPN, SocketDigest};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::proxy_header::read_proxy_header;
use super::proxy_protocol::ProxySource;
use super::server::{ConnectionEnd, ConnectionServer, ListenerContext};
use crate::edge::admission::{ConnectionPermit, unless_shed};
use crate::edge::memory::ConnectionMemory;
use crate::edge::policy::{ClientShare, ConnectionRules};
use crate::edge::state::ConnectionState;
use crate::edge::stream::{ClientStream, StreamContext, Transport};
use crate::edge::tls::HandshakeFailure;
use crate::http::RejectReason;
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::policy::{ConnectionFacts, client};

/// A trusted proxy may reset this many times `h2_resets`: one of its connections may carry as many clients.
const TRUSTED_RESET_FACTOR: u32 = 100;

/// Bytes that the kernel accepts from us before it has sent them. What is in flight to the client is bounded by the
/// client's TCP window only.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// A connection that may send requests.
pub(super) struct AdmittedConnection {
    pub(super) stream: Box<ClientStream>,
    pub(super) client: IpAddr,
    pub(super) permit: ConnectionPermit,
}

impl<A> ConnectionServer<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    /// Performs everything that comes before HTTP.
    pub(super) async fn admit(
        &self,
        mut tcp: TcpStream,
        peer: SocketAddr,
        listener: &ListenerContext,
        mut permit: ConnectionPermit,
    ) -> Result<AdmittedConnection, ConnectionEnd> {
        let rules = self.policy.rules();
        let mut client = peer;
        if listener.proxy_protocol {
            client = self.proxied_client(&mut tcp, peer, &rules, &mut permit).await?;
        }
        // Responses are written completely; waiting for more bytes to send would only delay them.
        let _ = tcp.set_nodelay(true);
        // Without this limit the kernel accepts megabytes of a response that the client does not read.
        let _ = socket2::SockRef::from(&tcp).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
        let digest = Arc::new(SocketDigest::from_raw_fd(tcp.as_raw_fd()));
        // It is new, so nothing has been set.
        let _ = digest.peer_addr.set(Some(AnyAddr::Inet(client)));
        let prefix = client::prefix(client.ip(), rules.clients.ipv6_prefix);
        let mut memory = ConnectionMemory::new(&self.memory, &self.readers, prefix);
        let (mut is_http2, mut served, mut trusted) = (false, None, None);
        let mut facts = ConnectionFacts::NONE;
        let transport = match &listener.tls {
            None => Transport::Plain(tcp),
            Some(_) if !self.try_charge_handshake(client.ip(), &rules) => {
                return Err(Some(RejectReason::Handshakes));
            }
            Some(tls) => {
                memory.begin_tls();
                let handshake = timeout(rules.bounds.tls_handshake_timeout, tls.handshake(tcp));
                let finished = unless_shed(permit.mark(), handshake).await.ok_or(None)?;
                let in_time = finished.unwrap_or(Err(HandshakeFailure::Other));
                let tls = in_time.map_err(|failure| {
                    self.log_refused_certificate(&failure, client, listener);
                    Some(failure.reason())
                })?;
                is_http2 = matches!(tls.stream.selected_alpn_proto(), Some(ALPN::H2));
                (served, facts, trusted) = (tls.served, tls.facts, tls.client);
                Transport::Tls(tls.stream)
            }
        };
        facts.listener = listener.name.clone();
        facts.https_port = listener.https_port;
        let context = StreamContext {
            bounds: Arc::clone(&rules.bounds),
            clock: Arc::clone(&self.clock),
            state: Arc::new(ConnectionState::new(facts, served, trusted)),
            mark: permit.mark(),
            max_resets: match rules.clients.trusts(peer.ip()) {
                true => rules.bounds.h2_resets.saturating_mul(TRUSTED_RESET_FACTOR),
                false => rules.bounds.h2_resets,
            },
            memory,
            cutoff: Arc::clone(&self.cutoff),
        };
        let mut stream = ClientStream::new(transport, context, digest).map_err(|_| None)?;
        if is_http2 {
            stream.begin_http2();
        }
        Ok(AdmittedConnection { stream: Box::new(stream), client: client.ip(), permit })
    }

    /// Reads the PROXY header and counts the permit for the client that it names. Returns that client's address, or the
    /// peer's if the header names none.
    async fn proxied_client(
        &self,
        tcp: &mut TcpStream,
        peer: SocketAddr,
        rules: &ConnectionRules,
        permit: &mut ConnectionPermit,
    ) -> Result<SocketAddr, ConnectionEnd> {
        if !rules.clients.trusts(peer.ip()) {
            return Err(Some(RejectReason::ProxyProtocol));
        }
        let reading = timeout(rules.bounds.proxy_protocol_timeout, read_proxy_header(tcp));
        let client = match reading.await.map_err(|_| Some(RejectReason::ProxyProtocol))?? {
            ProxySource::Client(address) => address,
            ProxySource::Unknown => peer,
        };
        if self.is_banned(client.ip()) {
            return Err(Some(RejectReason::Banned));
        }
        if let Some(share) = rules.share_of(client.ip())
            && !permit.assign_client(share)
        {
            return Err(Some(RejectReason::Connections));
        }
        permit.await_first_request(self.clock.now().mono);
        Ok(client)
    }

    /// Logs whose certificate was refused, and why.
    fn log_refused_certificate(
        &self,
        failure: &HandshakeFailure,
        client: SocketAddr,
        listener: &ListenerContext,
    ) {
        let HandshakeFailure::Certificate(cause) = failure else {
            return;
        };
        let date = self.clock.date(self.clock.now());
        if LOG_SAMPLER.admit_line(LogKind::ClientCertificate, date) {
            let name = listener.name.as_deref().unwrap_or("without a name");
            log::warn!("listener {name}: the certificate of {client} is refused: {cause}");
        }
    }

    /// Charges a TLS handshake to the client's bucket. Returns `false` if the bucket is empty.
    fn try_charge_handshake(&self, client: IpAddr, rules: &ConnectionRules) -> bool {
        let Some(ClientShare { client, .. }) = rules.share_of(client) else {
            return true;
        };
        let bucket = rules.bounds.handshakes_per_client;
        bucket.is_none_or(|bucket| self.handshakes.try_charge(client, bucket, self.clock.now()))
    }
}
