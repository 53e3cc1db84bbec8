//! The successor, as the process before it sees it after the switch: it judges requests on old connections.
//!
//! Messages go over a pair of sockets of their own, one of which was sent with the listening sockets: a length (4 bytes, little-endian) and a [`LinkMessage`] one way, a
//! number and a judgment the other. What must always hold: what is sent arrives in order; when the successor has ended,
//! every request that waits for it hears so after this process counts again.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::timeouts::{SILENT_TIMEOUT, STALL_TIMEOUT, VERDICT_TIMEOUT};
use super::wire::unexpected;
use crate::engine::{
    Engine, HandedEvent, HandedJudgment, HandedRequest, HeldJudgment, LateJudgment, Successor,
    SuccessorAnswer,
};

/// The largest message: the charges of one request, whose limits are at most a few dozen.
const MAX_MESSAGE: usize = 64 * 1024;

/// What the process before says to its successor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LinkMessage {
    /// The answer has this number.
    Judge(u64, HandedRequest),
    Event(HandedEvent),
}

/// The judgment on a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkAnswer(pub(super) u64, pub(super) HandedJudgment);

/// The way to the successor.
pub(super) struct SuccessorLink {
    own: std::sync::Weak<Self>,
    messages: mpsc::UnboundedSender<LinkMessage>,
    numbers: AtomicU64,
    /// Whether the successor has not answered in time, and nothing since.
    is_silent: AtomicBool,
    /// `None`: the successor has gone.
    waiting: Mutex<Option<HashMap<u64, Waiting>>>,
}

struct Waiting {
    request: HandedRequest,
    answer: oneshot::Sender<HeldJudgment>,
    /// Counts if nobody waits any more.
    late: LateJudgment,
}

impl SuccessorLink {
    /// Begins to carry messages. When the successor ends, `engine` counts again.
    pub(super) fn start(
        runtime: &tokio::runtime::Handle,
        stream: &UnixStream,
        engine: &Arc<Engine>,
    ) -> Arc<Self> {
        // It holds at most what old connections say within `STALL_TIMEOUT`; then the link ends.
        let (messages, queue) = mpsc::unbounded_channel();
        let link = Arc::new_cyclic(|own| Self {
            own: std::sync::Weak::clone(own),
            messages,
            numbers: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            waiting: Mutex::new(Some(HashMap::new())),
        });
        let (stream, own, engine) = (stream.try_clone(), Arc::clone(&link), Arc::clone(engine));
        runtime.spawn(async move {
            let carried = match stream.and_then(split) {
                Ok((reader, writer)) => tokio::select! {
                    result = write_all(writer, queue) => result,
                    result = own.read_answers(reader, &engine) => result,
                },
                Err(error) => Err(error),
            };
            if let Err(error) = carried {
                log::error!(
                    "the successor has gone ({error}); this process counts what is left by itself, and nobody saves that"
                );
            }
            engine.take_back_abandoned();
            // Those who wait are told after that.
            drop(own.waiting.lock().take());
        });
        link
    }

    async fn read_answers(&self, mut reader: OwnedReadHalf, engine: &Engine) -> io::Result<()> {
        while let Some(LinkAnswer(number, judgment)) = read_message(&mut reader).await? {
            if self.is_silent.swap(false, Ordering::Relaxed) {
                log::warn!("the successor answers again");
            }
            let waiting = self.waiting.lock().as_mut().and_then(|all| all.remove(&number));
            let Some(Waiting { request, answer, late }) = waiting else {
                return Err(unexpected());
            };
            if judgment.verdicts.len() != request.charges.len() {
                return Err(unexpected());
            }
            // If the request has gone, the judgment is dropped, which ends what it has in flight.
            if let Some(successor) = self.own.upgrade()
                && let Err(held) = answer.send(HeldJudgment::new(judgment, &request, successor))
                && let Some((held, request)) = late.arrive(held, request)
            {
                engine.refund_late(held, &request);
            }
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"))
    }
}

impl Successor for SuccessorLink {
    fn judge(&self, request: HandedRequest) -> BoxFuture<'static, SuccessorAnswer> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let late = LateJudgment::default();
        let is_waiting = self.waiting.lock().as_mut().is_some_and(|waiting| {
            let late = late.clone();
            waiting.insert(number, Waiting { request: request.clone(), answer, late });
            // In the order of the numbers, and never after the end.
            self.messages.send(LinkMessage::Judge(number, request)).is_ok()
        });
        // One request after the other would wait in vain.
        let patience = match self.is_silent.load(Ordering::Relaxed) {
            true => SILENT_TIMEOUT,
            false => VERDICT_TIMEOUT,
        };
        let link = self.own.upgrade();
        async move {
            if !is_waiting {
                return SuccessorAnswer::Gone;
            }
            match timeout(patience, answered).await {
                Ok(Ok(held)) => SuccessorAnswer::Judged(held),
                Ok(Err(_)) => SuccessorAnswer::Gone,
                Err(_) => {
                    if let Some(link) = link
                        && !link.is_silent.swap(true, Ordering::Relaxed)
                    {
                        log::error!(
                            "the successor does not answer; requests on old connections are judged by what was counted until the handover, and limits with after_crash: deny refuse them"
                        );
                    }
                    SuccessorAnswer::Silent(late)
                }
            }
        }
        .boxed()
    }

    fn tell(&self, event: HandedEvent) {
        // Nobody hears it if the successor has gone, and then it does not count.
        let _is_sent = self.messages.send(LinkMessage::Event(event));
    }
}

fn split(stream: UnixStream) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    stream.set_nonblocking(true)?;
    Ok(tokio::net::UnixStream::from_std(stream)?.into_split())
}

async fn write_all(
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<LinkMessage>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(message) = queue.recv().await {
        bytes.clear();
        encode(&mut bytes, &message)?;
        while bytes.len() < MAX_MESSAGE
            && let Ok(message) = queue.try_recv()
        {
            encode(&mut bytes, &message)?;
        }
        timeout(STALL_TIMEOUT, writer.write_all(&bytes)).await??;
    }
    Ok(())
}

/// Appends a message.
pub(super) fn encode(out: &mut Vec<u8>, message: &impl Serialize) -> io::Result<()> {
    let payload = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&payload);
    Ok(())
}

/// Reads a message; `None` at the end.
pub(super) async fn read_message<T: DeserializeOwned>(
    reader: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(unexpected());
    }
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await?;
    postcard::from_bytes(&payload).map(Some).map_err(|_| unexpected())
}
