//! Serves HTTP/1 on a connection: one request after the other.
//!
//! It waits for a head, has it scanned, and gives the stream to the framework for one request at a time. A head that is
//! refused gets the answer of the policy, and the connection ends. It does not know why a head is refused. What must
//! always hold: no request is served after one whose body was not read to its end.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::head_search::HeadSearch;
use super::idle_wait::IdleWait;
use super::server::ConnectionServer;
use crate::edge::admission::{ConnectionPermit, unless_shed};
use crate::edge::stream::ClientStream;
use crate::http::{HostCache, RejectReason, WireHead};

/// The shortest time in which a last response must be written.
const MIN_LAST_RESPONSE_TIME: Duration = Duration::from_millis(100);

impl<A> ConnectionServer<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    /// Serves requests until the connection ends.
    pub(super) async fn serve_http1(
        &self,
        mut stream: Box<ClientStream>,
        client: IpAddr,
        permit: &ConnectionPermit,
        shutdown: ShutdownWatch,
    ) {
        let mut wait = IdleWait::new(shutdown.clone(), permit.mark());
        let mut host_cache = HostCache::default();
        loop {
            let head = match self.next_head(&mut stream, client, &mut wait, &mut host_cache).await {
                Ok(head) => head,
                Err(Some(response)) => return self.send_last_response(stream, &response).await,
                Err(None) => return,
            };
            stream.begin_request(head);
            let session = ServerSession::new_http1(stream);
            let Some(reused) = self.app.process_new_http(session, &shutdown).await else {
                return;
            };
            let (reused, _) = reused.consume();
            let Ok(reused) = reused.into_any().downcast::<ClientStream>() else {
                return;
            };
            stream = reused;
            if !stream.end_request() {
                return;
            }
        }
    }

    /// Waits for a request and scans its head. `Err` with the response to a head that is refused, or with `None` if the
    /// connection ends without one.
    async fn next_head(
        &self,
        stream: &mut ClientStream,
        client: IpAddr,
        wait: &mut IdleWait,
        host_cache: &mut HostCache,
    ) -> Result<WireHead, Option<Bytes>> {
        let (idle_timeout, header_timeout, bounds) = {
            let rules = self.policy.rules();
            (rules.bounds.idle_timeout, rules.bounds.header_timeout, rules.head)
        };
        if stream.buffered().is_empty()
            && !wait.wait_for_bytes(stream, idle_timeout, &*self.clock).await
        {
            return Err(None);
        }
        let mut search = HeadSearch::new(bounds, host_cache);
        let mut began = None;
        // Most heads arrive completely: then no clock is read and no timer is made.
        let mut found = search.advance(stream);
        if let Ok(None) = found {
            let now = self.clock.now().mono;
            began = Some(now);
            let reading = timeout(header_timeout, search.read(stream));
            let mark = wait.mark();
            if let Some(mark) = &mark {
                mark.set_unfinished(now);
            }
            let read = unless_shed(mark, reading).await.ok_or(None)?;
            found = match read.unwrap_or(Err(Some(RejectReason::HeaderTimeout))) {
                Ok(head) => Ok(Some(head)),
                Err(reason) => Err(reason.ok_or(None)?),
            };
        }
        wait.end();
        let reason = match found {
            Ok(head) => return head.ok_or(None),
            Err(reason) => reason,
        };
        let began = began.unwrap_or_else(|| self.clock.now().mono);
        Err(Some(self.policy.reject_head(client, began, reason)))
    }

    /// Sends the response to a head that was refused. What the client goes on to send is read and dropped for a while;
    /// otherwise the kernel would reset the connection and the response would be lost.
    async fn send_last_response(&self, mut stream: Box<ClientStream>, response: &[u8]) {
        let (bytes, time) = {
            let rules = self.policy.rules();
            (rules.bounds.discard_bytes, rules.bounds.discard_time)
        };
        let sending = async {
            stream.write_all(response).await?;
            stream.shutdown().await?;
            let mut read = 0;
            while read < bytes && stream.fill().await? {
                read += stream.buffered().len();
                stream.consume(usize::MAX);
            }
            std::io::Result::Ok(())
        };
        // An error or a timeout ends the connection as well.
        let _ = timeout(time.max(MIN_LAST_RESPONSE_TIME), sending).await;
    }
}
