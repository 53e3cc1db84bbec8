//! One connection of a client, from its first byte to its last.
//!
//! The framework's own loop serves requests; this is what stands before and between them: seats,
//! the PROXY header, the TLS handshake, and the bytes of every HTTP/1 head, each with its own
//! deadline. (The framework would wait for heads without one, and answer by itself, uncounted,
//! those that its parser refuses.)

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::socket::SocketAddr as AnyAddr;
use pingora::protocols::{ALPN, SocketDigest, Ssl};
use pingora::server::ShutdownWatch;
use std::os::fd::AsRawFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::connection_permits::{ConnectionPermit, ConnectionPermits};
use super::guarded::{ConnectionMemory, Guarded, Transport, Watch};
use super::handshakes::HandshakeLimiter;
use super::idle_mark::unless_shed;
use super::link::ConnectionState;
use super::memory_budget::MemoryBudget;
use super::memory_watch::SlowReaders;
use super::policy::{ClientShare, ConnectionPolicy, ConnectionRules, ShedReason};
use super::proxy_protocol::{
    MAX_PROXY_V1_BYTES, PROXY_SIGNATURE_BYTES, PROXY_V2_FIXED_BYTES, ProxySource, ProxyVersion,
    parse_proxy_header, proxy_v2_size, proxy_version,
};
use super::tls::TlsAcceptor;
use super::waiting::Waiting;
use crate::clock::{Clock, Nanos};
use crate::http::{HeadBounds, HeadScan, HostCache, RejectReason, WireHead};
use crate::policy::client;

/// One address that is listened on.
pub(crate) struct ListenerContext {
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) proxy_protocol: bool,
}

/// Serves connections.
pub(crate) struct ConnectionServer<A> {
    pub(crate) app: Arc<A>,
    pub(crate) policy: Arc<dyn ConnectionPolicy>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) handshakes: HandshakeLimiter,
    /// Whether they are of operators: [`AdminConnections`](super::admin_connections) bounds these,
    /// and nobody is banned there.
    pub(crate) is_admin: bool,
    /// How many there are descriptors for.
    pub(crate) descriptors: usize,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) readers: Arc<SlowReaders>,
}

/// How many times `h2_resets` a trusted proxy may reset: as many clients may share one of its connections.
const TRUSTED_RESETS: u32 = 100;

/// Bytes of answers that the kernel takes from us before it has sent them. What is on its way to the client is
/// bounded by the client's window, and by nothing here.
const UNSENT_BYTES: u32 = 128 * 1024;

/// Why a connection ends without an answer; `None`: the client has gone, which is its right.
type Refused = Option<RejectReason>;

impl<A> ConnectionServer<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    /// A seat for a connection that was accepted; in the order of accepting.
    pub(crate) fn seat(
        &self,
        peer: SocketAddr,
        door: &ListenerContext,
    ) -> Option<ConnectionPermit> {
        let rules = self.policy.rules();
        if !door.proxy_protocol && self.is_banned(peer.ip()) {
            self.policy.record_rejected_connection(peer.ip(), RejectReason::Banned);
            return None;
        }
        let most = match self.is_admin {
            true => usize::MAX,
            false => rules.bounds.max_connections.min(self.descriptors),
        };
        // Behind a PROXY header somebody else is the client.
        let share = match door.proxy_protocol || self.is_admin {
            true => None,
            false => rules.share_of(peer.ip()),
        };
        let seat = self.permits.take(most, share, self.clock.now().mono);
        match &seat {
            Some(seat) if seat.displaced => self.policy.record_shed(ShedReason::IdleConnections),
            Some(_) => {}
            None => self.policy.record_rejected_connection(peer.ip(), RejectReason::Connections),
        }
        seat
    }

    /// The present date.
    pub(crate) fn date(&self) -> Nanos {
        self.clock.date(self.clock.now())
    }

    fn is_banned(&self, client: IpAddr) -> bool {
        !self.is_admin && self.policy.is_banned(client)
    }

    /// Takes a TLS handshake from the client's bucket; `false` when there is none left.
    fn take_handshake(&self, client: IpAddr, rules: &ConnectionRules) -> bool {
        let Some(ClientShare { client, .. }) = rules.share_of(client) else {
            return true;
        };
        let bucket = rules.bounds.handshakes_per_client;
        bucket.is_none_or(|bucket| self.handshakes.admits(client, bucket, self.clock.now()))
    }

    /// Serves a connection that was accepted at a door.
    pub(crate) async fn serve(
        self: Arc<Self>,
        tcp: tokio::net::TcpStream,
        peer: SocketAddr,
        seat: ConnectionPermit,
        door: Arc<ListenerContext>,
        shutdown: ShutdownWatch,
    ) {
        let admitted = tokio::select! {
            admitted = self.admit(tcp, peer, &door, seat) => admitted,
            () = stopped(shutdown.clone()) => Err(None),
        };
        match admitted {
            Ok((stream, client, seat)) => self.speak(stream, client, &seat, shutdown).await,
            Err(Some(reason)) => self.policy.record_rejected_connection(peer.ip(), reason),
            Err(None) => {}
        }
    }

    /// What comes before HTTP.
    async fn admit(
        &self,
        mut tcp: tokio::net::TcpStream,
        peer: SocketAddr,
        door: &ListenerContext,
        mut seat: ConnectionPermit,
    ) -> Result<(Box<Guarded>, IpAddr, ConnectionPermit), Refused> {
        let rules = self.policy.rules();
        let bounds = &rules.bounds;
        let mut client = peer;
        if door.proxy_protocol {
            if !rules.clients.trusts(peer.ip()) {
                return Err(Some(RejectReason::ProxyProtocol));
            }
            let reading = timeout(bounds.proxy_protocol_timeout, read_proxy_header(&mut tcp));
            match reading.await.map_err(|_| Some(RejectReason::ProxyProtocol))?? {
                ProxySource::Client(address) => client = address,
                ProxySource::Unknown => {}
            }
            if self.is_banned(client.ip()) {
                return Err(Some(RejectReason::Banned));
            }
            if let Some(share) = rules.share_of(client.ip())
                && !seat.register(share)
            {
                return Err(Some(RejectReason::Connections));
            }
            seat.begin(self.clock.now().mono);
        }
        // Answers are written whole; waiting for more to send would only delay them.
        let _ = tcp.set_nodelay(true);
        // Else the kernel takes megabytes of an answer that its client does not read.
        let _ = socket2::SockRef::from(&tcp).set_tcp_notsent_lowat(UNSENT_BYTES);
        let digest = Arc::new(SocketDigest::from_raw_fd(tcp.as_raw_fd()));
        let _ = digest.peer_addr.set(Some(AnyAddr::Inet(client)));
        let address = client::prefix(client.ip(), rules.clients.ipv6_prefix);
        let mut memory = ConnectionMemory::new(&self.memory, &self.readers, address);
        let (mut http2, mut served) = (false, None);
        let transport = match &door.tls {
            None => Transport::Plain(tcp),
            Some(_) if !self.take_handshake(client.ip(), &rules) => {
                return Err(Some(RejectReason::Handshakes));
            }
            Some(tls) => {
                memory.begin_tls();
                let agreeing = timeout(bounds.tls_handshake_timeout, tls.agree(tcp));
                let agreed = unless_shed(seat.mark(), agreeing).await.ok_or(None)?;
                let agreed = agreed.ok().flatten().ok_or(Some(RejectReason::TlsHandshake))?;
                http2 = matches!(agreed.0.selected_alpn_proto(), Some(ALPN::H2));
                served = agreed.1;
                Transport::Tls(agreed.0)
            }
        };
        let watch = Watch {
            bounds: Arc::clone(bounds),
            clock: Arc::clone(&self.clock),
            link: Arc::new(ConnectionState::over(served)),
            mark: seat.mark(),
            // A proxy that speaks for many resets the streams of many.
            most_resets: match rules.clients.trusts(peer.ip()) {
                true => bounds.h2_resets.saturating_mul(TRUSTED_RESETS),
                false => bounds.h2_resets,
            },
            memory,
        };
        let mut stream = Guarded::new(transport, watch, digest).map_err(|_| None)?;
        if http2 {
            stream.speak_http2();
        }
        Ok((Box::new(stream), client.ip(), seat))
    }

    async fn speak(
        &self,
        stream: Box<Guarded>,
        client: IpAddr,
        seat: &ConnectionPermit,
        shutdown: ShutdownWatch,
    ) {
        if matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let link = stream.link();
            self.app.process_new(stream, &shutdown).await;
            if let Some(reason) = link.cut() {
                self.policy.record_rejected_connection(client, reason);
            }
        } else {
            self.speak_http1(stream, client, seat, shutdown).await;
        }
    }

    /// One request after the other.
    async fn speak_http1(
        &self,
        mut stream: Box<Guarded>,
        client: IpAddr,
        seat: &ConnectionPermit,
        shutdown: ShutdownWatch,
    ) {
        let mut waiting = Waiting::new(shutdown.clone(), seat.mark());
        let mut last = HostCache::default();
        loop {
            let head = match self.next_head(&mut stream, client, &mut waiting, &mut last).await {
                Ok(head) => head,
                Err(Some(answer)) => return self.last_words(stream, &answer).await,
                Err(None) => return,
            };
            stream.begin(head);
            let session = ServerSession::new_http1(stream);
            let Some(reused) = self.app.process_new_http(session, &shutdown).await else {
                return;
            };
            let (reused, _) = reused.consume();
            let Ok(guarded) = reused.into_any().downcast::<Guarded>() else {
                return;
            };
            stream = guarded;
            if !stream.end() {
                return;
            }
        }
    }

    /// Waits for a request, and scans its head before anybody parses it. `Err` with the answer to
    /// a head that is refused, or with none when the connection ends as it may.
    async fn next_head(
        &self,
        stream: &mut Guarded,
        client: IpAddr,
        waiting: &mut Waiting,
        last: &mut HostCache,
    ) -> Result<WireHead, Option<bytes::Bytes>> {
        let (idle_timeout, header_timeout, gate) = {
            let rules = self.policy.rules();
            (rules.bounds.idle_timeout, rules.bounds.header_timeout, rules.head)
        };
        if stream.ahead().is_empty() && !waiting.hears(stream, idle_timeout, &*self.clock).await {
            return Err(None);
        }
        let mut search = HeadSearch { scan: HeadScan::default(), fresh: true, gate, last };
        let mut began = None;
        // Most come whole: no time is read, and no timer made.
        let mut found = search.look(stream);
        if let Ok(None) = found {
            let now = self.clock.now().mono;
            began = Some(now);
            let reading = timeout(header_timeout, search.read(stream));
            let mark = waiting.mark();
            if let Some(mark) = &mark {
                mark.unfinished(now);
            }
            let read = unless_shed(mark, reading).await.ok_or(None)?;
            found = match read.unwrap_or(Err(Some(RejectReason::HeaderTimeout))) {
                Ok(head) => Ok(Some(head)),
                Err(reason) => Err(reason.ok_or(None)?),
            };
        }
        waiting.ends();
        let reason = match found {
            Ok(head) => return head.ok_or(None),
            Err(reason) => reason,
        };
        let began = began.unwrap_or_else(|| self.clock.now().mono);
        Err(Some(self.policy.reject_head(client, began, reason)))
    }

    /// Answers a head that was refused. What the client goes on to send is read for a while and
    /// thrown away, or the answer would be lost to a reset.
    async fn last_words(&self, mut stream: Box<Guarded>, answer: &[u8]) {
        let (bytes, time) = {
            let rules = self.policy.rules();
            (rules.bounds.discard_bytes, rules.bounds.discard_time)
        };
        let telling = async {
            stream.write_all(answer).await?;
            stream.shutdown().await?;
            let mut read = 0;
            while read < bytes && stream.read_ahead().await? {
                read += stream.ahead().len();
                stream.skip(usize::MAX);
            }
            std::io::Result::Ok(())
        };
        // The client has gone, or has had its time.
        let _ = timeout(time.max(LAST_WORDS), telling).await;
    }
}

/// Returns when nobody is accepted any more, and handshakes that had begun have had time to end.
async fn stopped(mut shutdown: ShutdownWatch) {
    // An error means that whoever could say so has gone.
    let _ = shutdown.wait_for(|stopping| *stopping).await;
    sleep(LAST_HANDSHAKES).await;
}

/// The search for the head of a request in what is ahead.
struct HeadSearch<'c> {
    scan: HeadScan,
    /// Whether nothing of the request has come yet.
    fresh: bool,
    gate: HeadBounds,
    last: &'c mut HostCache,
}

impl HeadSearch<'_> {
    /// Looks at what has come; `None` while the head is not whole.
    fn look(&mut self, stream: &mut Guarded) -> Result<Option<WireHead>, RejectReason> {
        // Robustness (RFC 9112, section 2.2): an empty line before a request says nothing.
        if self.fresh && stream.ahead().starts_with(b"\r\n") {
            stream.skip(2);
        }
        self.fresh &= stream.ahead() == b"\r";
        if self.fresh {
            return Ok(None);
        }
        self.scan.advance(stream.ahead(), self.gate, self.last)
    }

    /// Reads until it is whole; `Err(None)`: the client has gone.
    async fn read(&mut self, stream: &mut Guarded) -> Result<WireHead, Option<RejectReason>> {
        loop {
            if !matches!(stream.read_ahead().await, Ok(true)) {
                return Err(None);
            }
            if let Some(head) = self.look(stream).map_err(Some)? {
                return Ok(head);
            }
        }
    }
}

/// How long handshakes may take when the process stops accepting. One that says nothing must not
/// hold an idle process.
const LAST_HANDSHAKES: Duration = Duration::from_millis(200);

/// The least time to write an answer.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Reads a PROXY header and not a byte more.
async fn read_proxy_header(tcp: &mut tokio::net::TcpStream) -> Result<ProxySource, Refused> {
    let broken = |_| Some(RejectReason::ProxyProtocol);
    let mut header = vec![0; PROXY_SIGNATURE_BYTES];
    let mut start = [0; PROXY_SIGNATURE_BYTES];
    tcp.read_exact(&mut start).await.map_err(|_| None)?;
    header.copy_from_slice(&start);
    match proxy_version(&start).map_err(broken)? {
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
            header = vec![0; proxy_v2_size(&fixed).map_err(broken)?];
            header[..PROXY_V2_FIXED_BYTES].copy_from_slice(&fixed);
            tcp.read_exact(&mut header[PROXY_V2_FIXED_BYTES..]).await.map_err(|_| None)?;
        }
    }
    parse_proxy_header(&header).map_err(broken)
}
