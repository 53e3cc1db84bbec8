//! The exchange: one step tells the store what this node counted and learns what the others did.
//!
//! No request waits for it. What must always hold: an exchange makes one call of bounded size; a node that gets no answer
//! counts on by itself, with what it knows of the others until their windows end; and what a store says changes no count
//! of this node.

use std::time::Duration;

use super::channel::FleetChannel;
use super::imports::Imports;
use super::limits::{FleetLimit, FleetLimits};
use super::progress::FleetOutcome;
use super::publication::{NextChunk, OwnCount, Publication};
use super::records::{ChunkAddress, ChunkError, CountChunk};
use super::shared_time::{SharedTime, TimeNews};
use crate::clock::Nanos;
use crate::engine::Engine;
use crate::engine::fleet_denials::denial_key;
use crate::limit::{FleetBound, WindowPair};
use crate::policy::FleetTerms;
use crate::store::redis::{FleetChunk, FleetCursor, FleetNews, FleetQuestion, StoreFailure};

/// A node that is not heard for so many exchanges does not count as live any more.
const LIVE_EXCHANGES: u64 = 5;

/// The shortest time for which a node counts as live: a store that is away for a moment loses no nodes.
const MIN_LIVENESS: Nanos = Nanos::from_secs(5);

/// The time between two calls while there is more to read: with it, a node makes at most ten calls a second.
const SHORTEST_PAUSE: Nanos = Nanos::from_millis(100);

/// Bytes that an exchange reads at most.
const MAX_READ: usize = 256 * 1024;

/// The longest and the shortest time that a reply may take.
const TIMEOUTS: (Nanos, Nanos) = (Nanos::from_millis(200), Nanos::SECOND);

/// Exchanges without an answer until the view of the fleet counts as old.
const OLD_EXCHANGES: u64 = 5;

/// What a node exchanges, and what it has exchanged.
#[derive(Debug)]
pub struct FleetExchange {
    /// Who this node was at the latest exchange.
    node: u64,
    cursor: FleetCursor,
    /// The tags that the cursor has read for.
    tags: Vec<u64>,
    /// The generation whose requests were shown what other nodes counted.
    epoch: u64,
    time: SharedTime,
    publication: Publication,
    imports: Imports,
    nodes: u32,
    /// Whether counts of other nodes may be used: not while the store's time contradicts itself.
    trusts_time: bool,
    logged: LoggedFailures,
}

/// What the log was told last.
#[derive(Debug, Default)]
struct LoggedFailures {
    no_answer: bool,
    time: bool,
    chunks: bool,
}

/// What a reply was, seen from the chunks in it.
#[derive(Clone, Copy, Debug, Default)]
struct ReadChunks {
    /// Of a node with another secret, or made up.
    foreign: u64,
    /// Of a later version, or written later than now, or without sense.
    unreadable: u64,
}

impl Default for FleetExchange {
    fn default() -> Self {
        Self {
            node: 0,
            cursor: FleetCursor::default(),
            tags: Vec::new(),
            epoch: 0,
            time: SharedTime::default(),
            publication: Publication::default(),
            imports: Imports::default(),
            nodes: 1,
            trusts_time: true,
            logged: LoggedFailures::default(),
        }
    }
}

impl FleetExchange {
    /// Makes one exchange, if a limit counts over the fleet, and returns the time until the next one.
    pub async fn step(&mut self, engine: &Engine, limits: &FleetLimits) -> Duration {
        self.step_over(engine.remote().map(|store| &**store), engine, limits).await
    }

    /// [`FleetExchange::step`] over another channel than the engine's store.
    pub(crate) async fn step_over(
        &mut self,
        channel: Option<&impl FleetChannel>,
        engine: &Engine,
        limits: &FleetLimits,
    ) -> Duration {
        let terms = limits.terms;
        let progress = &engine.fleet().progress;
        let Some(channel) = channel.filter(|_| !limits.is_empty()) else {
            self.stop(channel, engine).await;
            return terms.every.into();
        };
        if !engine.counts_here() {
            // A successor counts now, and exchanges.
            return terms.every.into();
        }
        progress.set_running(true, engine.now().mono);
        self.become_node(engine);
        if std::mem::replace(&mut self.epoch, limits.epoch) != limits.epoch {
            self.imports.record_change();
        }
        if !channel.is_up() {
            progress.record_call(FleetOutcome::Away);
            self.record_no_answer(engine, limits, terms, "it is away");
            return terms.every.into();
        }
        let tags = limits.tags();
        if self.tags != tags {
            // What was read for other limits is read again.
            (self.tags, self.cursor) = (tags, FleetCursor::default());
        }
        let next = self.next_chunk(engine, limits, terms);
        let chunks: Vec<FleetChunk> =
            next.iter().map(|next| self.text_of(next, engine, limits)).collect();
        let sent = engine.now().mono;
        let news = self.call(channel, terms, &chunks, false).await;
        match news {
            Ok(news) => {
                progress.record_call(FleetOutcome::Ok);
                progress.record_answer(news.nodes, engine.now().mono);
                let has_more = news.has_more;
                self.take_up(engine, limits, sent, news, next.as_ref());
                self.publish_errors(engine, limits, terms, true);
                let pause = if has_more { SHORTEST_PAUSE.min(terms.every) } else { terms.every };
                pause.into()
            }
            Err(why) => {
                progress.record_call(FleetOutcome::Failed);
                if let Some(next) = &next {
                    self.publication.record_written(next, false);
                }
                self.record_no_answer(engine, limits, terms, why_of(why));
                terms.every.into()
            }
        }
    }

    /// Begins anew if this process has become another node: what that node published is among what was read.
    fn become_node(&mut self, engine: &Engine) {
        let node = engine.fleet().identity.node();
        if self.node != node {
            let bounds = engine.confirm_table().clock().bounds();
            let time = SharedTime::continuing(bounds, engine.now().mono);
            *self = Self { node, time, ..Self::default() };
        }
    }

    async fn call(
        &self,
        channel: &impl FleetChannel,
        terms: FleetTerms,
        chunks: &[FleetChunk],
        leaves: bool,
    ) -> Result<FleetNews, StoreFailure> {
        let question = FleetQuestion {
            node: self.node,
            cursor: &self.cursor,
            chunks,
            liveness: terms.every.saturating_mul(LIVE_EXCHANGES).max(MIN_LIVENESS),
            max_bytes: MAX_READ,
            leaves,
            timeout: terms.every.clamp(TIMEOUTS.0, TIMEOUTS.1).into(),
        };
        channel.exchange(question).await
    }

    /// No limit counts over the fleet any more.
    async fn stop(&mut self, channel: Option<&impl FleetChannel>, engine: &Engine) {
        engine.fleet().progress.set_running(false, engine.now().mono);
        if self.tags.is_empty() {
            return;
        }
        if let Some(channel) = channel.filter(|channel| channel.is_up()) {
            let _left = self.call(channel, FleetTerms::default(), &[], true).await;
        }
        // The time stays: cells are dated by it.
        let time = std::mem::take(&mut self.time);
        *self = Self { time, ..Self::default() };
    }

    /// What to write now.
    fn next_chunk(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
    ) -> Option<NextChunk> {
        self.time.bounds(engine.now().mono)?;
        if !self.trusts_time {
            return None;
        }
        let now = engine.shared_instant().earliest;
        let own = self.own_counts(engine, limits, terms, now);
        self.publication.next_chunk(&own, limits, now)
    }

    /// What this node counted of keys that it publishes: those that are large enough, those that another node has published,
    /// and those that it has published itself.
    fn own_counts(
        &self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
        now: Nanos,
    ) -> Vec<OwnCount> {
        let threshold = |limit: &FleetLimit| {
            FleetBound::of(limit.rate.count(), terms.error_ppm, self.nodes).threshold
        };
        let now_mono = engine.now().mono;
        let (mut own, mut banned) = (Vec::new(), Vec::new());
        engine.confirm_table().visit_counts(|count| {
            for (limit, name) in limits.counted(&count) {
                let mut units = limit.units(count.counted, now);
                if limit.view.counts_denials()
                    && units > 0
                    && engine.bans().remaining(denial_key(count.key), now_mono).is_some()
                {
                    // A ban clears the denials that led to it, also those that this node counted.
                    banned.push(count.key);
                    units = 0;
                }
                let is_shared = || self.publication.has(name) || limit.view.has(count.key);
                if units < threshold(limit) && !is_shared() {
                    continue;
                }
                let counted = match units {
                    // A key that was reset, in the present window.
                    0 => WindowPair::of_counts(((now.get() / count.period.get()) as u32, 0, 0)),
                    _ => count.counted,
                };
                if units > 0 || self.publication.has(name) {
                    own.push(OwnCount { name, counted });
                }
            }
        });
        banned.into_iter().for_each(|key| engine.confirm_table().reset(key));
        own
    }

    fn text_of(&self, next: &NextChunk, engine: &Engine, limits: &FleetLimits) -> FleetChunk {
        let at = engine.shared_instant().earliest;
        let version = engine.fleet().identity.next_version(at.get());
        let chunk = CountChunk { version, at, records: next.records.clone() };
        let address = ChunkAddress { node: self.node, number: next.number };
        FleetChunk {
            number: next.number,
            text: chunk.encode(address, engine.key_secret()),
            lifetime: limits.longest_period().saturating_mul(2).max(MIN_LIVENESS),
        }
    }

    /// Takes up a reply.
    fn take_up(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        sent: Nanos,
        news: FleetNews,
        written: Option<&NextChunk>,
    ) {
        if news.is_new_history {
            self.publication.begin_anew();
        }
        if let Some(written) = written {
            self.publication.record_written(written, true);
        }
        self.nodes = news.nodes.max(1);
        self.cursor = news.cursor.clone();
        self.learn_time(engine, limits, sent, &news);
        let latest = engine.shared_instant().latest;
        let read = self.read_chunks(engine, limits, &news, latest);
        self.tell_of_chunks(engine, read);
        self.imports.expire(limits, engine.shared_instant().earliest);
        self.show(engine, limits);
        if std::mem::take(&mut self.logged.no_answer) {
            log::warn!("limits with scope: fleet count over {} nodes again", self.nodes);
        }
    }

    fn learn_time(&mut self, engine: &Engine, limits: &FleetLimits, sent: Nanos, news: &FleetNews) {
        let now = engine.now();
        let own = now.wall.saturating_sub(now.mono);
        let told = self.time.learn(news.at, sent, now.mono, own);
        if let TimeNews::Stepped { back } = told {
            engine.confirm_table().date_back(back);
            self.imports.clear();
            self.cursor = FleetCursor::default();
        }
        self.trusts_time = told != TimeNews::Contradicted;
        if let Some(bounds) = self.time.bounds(now.mono) {
            engine.confirm_table().clock().set(bounds.earliest, bounds.latest);
        }
        if !self.trusts_time {
            self.imports.clear();
            self.cursor = FleetCursor::default();
            self.show(engine, limits);
        }
        match (self.trusts_time, self.logged.time) {
            (false, false) => log::warn!(
                "the store's time jumped: limits with scope: fleet count on this node alone until it is steady"
            ),
            (true, true) => log::warn!("the store's time is steady again"),
            (true, false) | (false, true) => {}
        }
        self.logged.time = !self.trusts_time;
    }

    fn read_chunks(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        news: &FleetNews,
        latest: Nanos,
    ) -> ReadChunks {
        let mut read = ReadChunks::default();
        if !self.trusts_time {
            return read;
        }
        for chunk in news.chunks.iter().filter(|chunk| chunk.node != self.node) {
            let address = ChunkAddress { node: chunk.node, number: chunk.number };
            match CountChunk::decode(&chunk.text, address, engine.key_secret()) {
                Ok(counts) => {
                    if self.imports.add(chunk.node, &counts, limits, latest).is_err() {
                        read.unreadable += 1;
                    }
                }
                Err(ChunkError::Checksum) => read.foreign += 1,
                Err(ChunkError::Form | ChunkError::Contents) => read.unreadable += 1,
            }
        }
        read
    }

    fn tell_of_chunks(&mut self, engine: &Engine, read: ReadChunks) {
        let ReadChunks { foreign, unreadable } = read;
        engine.fleet().progress.record_refused(foreign + unreadable);
        if foreign + unreadable == 0 || std::mem::replace(&mut self.logged.chunks, true) {
            return;
        }
        if foreign > 0 {
            log::warn!(
                "counts of another node are left out: it has another key secret (store.redis.key_secret_file), or they were made up"
            );
        } else {
            log::warn!(
                "counts of another node are left out: it is of another version, or its clock contradicts this one's"
            );
        }
    }

    /// Shows requests what other nodes counted.
    fn show(&mut self, engine: &Engine, limits: &FleetLimits) {
        if !self.imports.take_changed() {
            return;
        }
        let sums = self.imports.sums(limits);
        engine.fleet().identity.with_node(self.node, || {
            for (tag, counts) in sums {
                if let Some(limit) = limits.tagged(tag) {
                    limit.view.replace(counts);
                }
            }
        });
    }

    fn record_no_answer(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
        why: &str,
    ) {
        if let Some(bounds) = self.time.bounds(engine.now().mono) {
            engine.confirm_table().clock().set(bounds.earliest, bounds.latest);
        }
        self.imports.expire(limits, engine.shared_instant().earliest);
        self.publish_errors(engine, limits, terms, false);
        if !std::mem::replace(&mut self.logged.no_answer, true) {
            log::warn!(
                "limits with scope: fleet count on this node, with what is known of the others: the store gives no answer: {why}"
            );
        }
    }

    /// How far the nodes may exceed each limit now. While this node knows nothing new of the others, each may admit the limit.
    fn publish_errors(
        &self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
        is_answered: bool,
    ) {
        let progress = &engine.fleet().progress;
        let lag = progress.lag(engine.now().mono).unwrap_or_default();
        let is_old = !is_answered && lag > terms.every.saturating_mul(OLD_EXCHANGES);
        let others = u64::from(self.nodes.saturating_sub(1));
        progress.set_errors(limits.iter().map(|limit| {
            let count = u64::from(limit.rate.count().max(1));
            let bound = FleetBound::of(limit.rate.count(), terms.error_ppm, self.nodes);
            let unpublished = others * u64::from(self.publication.unpublished(limit.view.tag()));
            let hidden = bound.hidden.max(unpublished).min(others * count);
            let hidden = if is_old || !self.trusts_time { others * count } else { hidden };
            (limit.view.tag(), hidden.saturating_mul(1_000_000) / count)
        }));
    }
}

const fn why_of(failure: StoreFailure) -> &'static str {
    match failure {
        StoreFailure::Invalid => "its answer makes no sense",
        StoreFailure::Refused => "it refuses the call",
        _ => "the call failed",
    }
}
