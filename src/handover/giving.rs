//! The running process's part of the conversation, from QUIT to the instant in which its successor counts.
//!
//! It runs on the keeper's thread, which saves on meanwhile. What must always hold: until the successor has told that it
//! counts, everything can be taken back; whatever goes wrong, it is.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::context::HandoverContext;
use super::keeper::Keeper;
use super::link::SuccessorLink;
use super::stream::{Answers, FrameStream};
use super::timeouts::{
    HANDOVER_TIMEOUT, MESSAGE_TIMEOUT, PAUSE_TIMEOUT, POLL_INTERVAL, STALL_TIMEOUT,
};
use super::wire::{Packet, SocketsMessage, Word, send_sockets};
use crate::clock::{Clock as _, Nanos, RoundedSpan};
use crate::engine::Engine;

/// Bytes that may wait for a successor that reads slowly, before the next shard is copied.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;

/// Shards that are copied between two looks at what has to be saved. A look may wait for the disk.
const SHARDS_AT_ONCE: usize = 64;

/// How often changes are copied once more before the last time, so that little is left for that.
const CATCH_UP_STEPS: u32 = 3;

/// How long the process waits between two looks at the successor, while it saves on.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A conversation after QUIT.
pub(super) struct Giving<'g, 'k> {
    context: &'g HandoverContext,
    keeper: &'g mut Keeper<'k>,
    stream: UnixStream,
    answers: Answers,
    /// When it has to be over.
    deadline: Nanos,
}

/// Takes everything back, unless the successor counts.
struct Switch<'e> {
    engine: &'e Arc<Engine>,
    is_committed: bool,
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.engine.take_back();
        }
    }
}

impl<'g, 'k> Giving<'g, 'k> {
    pub(super) fn new(
        context: &'g HandoverContext,
        keeper: &'g mut Keeper<'k>,
        stream: UnixStream,
    ) -> io::Result<Self> {
        let answers = Answers::new(&stream)?;
        let deadline = context.clock.now().mono.saturating_add(HANDOVER_TIMEOUT.into());
        Ok(Self { context, keeper, stream, answers, deadline })
    }

    /// Hands everything over. After an error this process counts as before.
    pub(super) fn run(mut self) -> io::Result<()> {
        let (link, link_of_successor) = UnixStream::pair()?;
        let word = self.send_sockets(link_of_successor)?;
        self.await_answer(&word.answer("copy"))?;
        let frames = FrameStream::start(&self.stream)?;
        self.keeper.set_successor_sink(Some(Box::new(frames.clone())));
        let given = self.copy_all(&frames).and_then(|()| self.switch(&frames, &link));
        self.keeper.set_successor_sink(None);
        if given.is_err() {
            self.keeper.take_back();
        }
        frames.close();
        given
    }

    fn send_sockets(&mut self, link: UnixStream) -> io::Result<Word> {
        let HandoverContext { sockets, ticket_keys, clock, .. } = self.context;
        let (sockets, word) = (sockets.try_clone()?, Word::random()?);
        let ticket_keys = ticket_keys.export(clock.now().mono);
        log::info!("QUIT: handing {} sockets over", sockets.len());
        self.stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        send_sockets(&self.stream, &SocketsMessage { sockets, ticket_keys, link, word })?;
        Ok(word)
    }

    /// Copies everything once, and waits until the successor has taken it up.
    fn copy_all(&mut self, frames: &FrameStream) -> io::Result<()> {
        use crate::state::StateSource as _;

        self.keeper.copy(|source, sink| source.save_common(sink));
        for shard in 0..self.keeper.shards() {
            self.keeper.copy(|source, sink| source.copy_shard(shard, sink));
            if shard % SHARDS_AT_ONCE == 0 {
                self.drain(frames, MAX_WAITING_BYTES)?;
            }
        }
        let word = Word::random()?;
        frames.send(&Packet::Copied(word))?;
        self.await_answer(&word.answer("looked"))?;
        // A directory that the successor has found free is not this process's: it is alive, and holds its own.
        let word = Word::random()?;
        frames.send(&Packet::Serving(word))?;
        self.await_answer(&word.answer("prepared"))
    }

    /// Copies the last changes, and lets the successor count.
    fn switch(&mut self, frames: &FrameStream, link: &UnixStream) -> io::Result<()> {
        for _ in 0..CATCH_UP_STEPS {
            self.keeper.step(&*self.context.clock, false);
            self.drain(frames, 0)?;
        }
        (self.context.keep_history)();
        let word = Word::random()?;
        // No configuration is put in force meanwhile, so the successor knows every quota of those that were.
        let mut publishing = self.context.publishing.lock();
        let live = self.context.live.load_full();
        let began = self.now();
        let mut switch = Switch { engine: &self.context.engine, is_committed: false };
        self.keeper.copy_last(|source, sink| source.hand_over(&live.generation, sink));
        frames.send(&Packet::Last { word, since: began })?;
        let answer = word.answer("taken");
        let arrived = self.answers.has_arrived(&answer, PAUSE_TIMEOUT);
        if !matches!(arrived, Ok(true)) && !self.answers.close_unless_arrived(&answer) {
            return match arrived {
                Err(error) => Err(error),
                Ok(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
            };
        }
        switch.is_committed = true;
        publishing.is_handed_over = true;
        let link = SuccessorLink::start(&self.context.runtime, link, &self.context.engine);
        self.context.engine.set_successor(link);
        let pause = RoundedSpan(self.now().saturating_sub(began));
        log::info!("the successor counts; requests waited for {pause}");
        Ok(())
    }

    /// Saves on until at most this many bytes wait for the successor.
    fn drain(&mut self, frames: &FrameStream, bytes: usize) -> io::Result<()> {
        loop {
            self.keeper.tick(&*self.context.clock);
            self.check_end()?;
            if frames.wait_below(bytes, LOOK_INTERVAL)? {
                return Ok(());
            }
        }
    }

    /// Saves on until the successor answers.
    fn await_answer(&mut self, answer: &str) -> io::Result<()> {
        let began = self.now();
        while !self.answers.has_arrived(answer, LOOK_INTERVAL)? {
            self.keeper.tick(&*self.context.clock);
            self.check_end()?;
            if self.now().saturating_sub(began) > Nanos::from(STALL_TIMEOUT) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
        }
        Ok(())
    }

    /// An error once the process is told to end, or the whole takes too long.
    fn check_end(&self) -> io::Result<()> {
        if self.keeper.is_stopping() || self.context.requests.is_ending() {
            return Err(io::Error::other("this process is told to end"));
        }
        match self.now() > self.deadline {
            true => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
            false => Ok(()),
        }
    }

    fn now(&self) -> Nanos {
        self.context.clock.now().mono
    }
}

const _: () = assert!(LOOK_INTERVAL.as_millis() < POLL_INTERVAL.as_millis());
