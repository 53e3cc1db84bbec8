//! The process before this one, as its successor serves it until its last connection has ended.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::link::{LinkAnswer, LinkMessage, encode, read_message};
use super::timeouts::STALL_TIMEOUT;
use crate::engine::Predecessor;
use crate::proxy::Live;

/// Serves until the process before has ended. What it has in flight ends with it.
pub(super) async fn serve(stream: UnixStream, predecessor: Predecessor, live: Arc<ArcSwap<Live>>) {
    match judge_all(stream, Arc::new(predecessor), live).await {
        Ok(()) => log::info!("the process before has ended"),
        Err(error) => log::warn!("the process before is served no more: {error}"),
    }
}

async fn judge_all(
    stream: UnixStream,
    predecessor: Arc<Predecessor>,
    live: Arc<ArcSwap<Live>>,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let (mut reader, mut writer) = tokio::net::UnixStream::from_std(stream)?.into_split();
    let (answers, mut queue) = mpsc::unbounded_channel::<LinkAnswer>();
    let write = async move {
        let mut bytes = Vec::new();
        while let Some(answer) = queue.recv().await {
            bytes.clear();
            encode(&mut bytes, &answer)?;
            timeout(STALL_TIMEOUT, writer.write_all(&bytes)).await??;
        }
        // Every sender has gone, so there is nothing more to be read either.
        io::Result::Ok(())
    };
    let read = async move {
        while let Some(message) = read_message(&mut reader).await? {
            match message {
                LinkMessage::Event(event) => predecessor.apply(&live.load().generation, event),
                LinkMessage::Judge(number, request) => {
                    // Charged at once, in the order of the messages; only the answer may wait for the disk.
                    let (judgment, save) = predecessor.judge_now(&live.load().generation, &request);
                    let (answers, predecessor) = (answers.clone(), Arc::clone(&predecessor));
                    let answer = LinkAnswer(number, judgment);
                    match save {
                        // A receiver that has gone is told by the other branch.
                        None => drop(answers.send(answer)),
                        Some(batch) => drop(tokio::spawn(async move {
                            predecessor.until_saved(batch).await;
                            drop(answers.send(answer));
                        })),
                    }
                }
            }
        }
        io::Result::Ok(())
    };
    tokio::select! {
        result = read => result,
        result = write => result,
    }
}
