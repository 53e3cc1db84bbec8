//! The exchange: one step tells the store what this node counted and learns what the others did.
//!
//! No request waits for it. What must always hold: an exchange makes one call of bounded size; a node that gets no answer
//! counts on by itself, with what it knows of the others until their windows end; and what a store says changes no count
//! of this node.

use std::time::Duration;

use super::believed::Believed;
use super::channel::FleetChannel;
use super::imports::Imports;
use super::limits::FleetLimits;
use super::own_counts::own_counts;
use super::progress::FleetOutcome;
use super::publication::{NextChunk, Publication};
use super::records::{ChunkAddress, ChunkError, CountChunk};
use super::reports::{Knowledge, RefusedChunks, Reports};
use super::shared_time::{SharedTime, TimeNews};
use crate::clock::Nanos;
use crate::engine::Engine;
use crate::policy::FleetTerms;
use crate::store::redis::{FleetChunk, FleetCursor, FleetNews, FleetQuestion, StoreFailure};

/// A node that is not heard for so many exchanges does not count as live any more.
const LIVE_EXCHANGES: u64 = 5;

/// The shortest time for which a node counts as live: a store that is away for a moment loses no nodes.
const MIN_LIVENESS: Nanos = Nanos::from_secs(5);

/// The time for which a node was away is known that well: a call takes less.
const AWAY_MARGIN: Nanos = Nanos::SECOND;

/// Exchanges without an answer until what is known of the fleet counts as old.
const OLD_EXCHANGES: u64 = 5;

/// The time between two calls while there is more to read: with it, a node makes at most ten calls a second.
const SHORTEST_PAUSE: Nanos = Nanos::from_millis(100);

/// Bytes that an exchange reads at most.
const MAX_READ: usize = 256 * 1024;

/// Bytes that an exchange reads at least, however thin the link is. It reads a whole chunk in any case, which may be longer.
const MIN_READ: usize = 16 * 1024;

/// The longest time that a reply may take: a distant store makes exchanges rarer than planned, and does not end them.
const TIMEOUT: Nanos = Nanos::SECOND;

/// How long a node counts as live after an exchange.
fn liveness(terms: FleetTerms) -> Nanos {
    terms.every.saturating_mul(LIVE_EXCHANGES).max(MIN_LIVENESS)
}

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
    /// Whether the store has answered yet.
    has_answer: bool,
    /// Whether everything was read since reading began with the oldest chunk.
    has_read_all: bool,
    /// How often something had been forgotten when requests were shown what other nodes counted.
    shown_without: u64,
    /// Whether other nodes were left out with all that they counted.
    leaves_out_nodes: bool,
    /// Whether they were shown counts and denials of others.
    shown: Believed,
    /// When (monotonic) this node looked at its own counts last.
    looked_at: Option<Nanos>,
    /// When (monotonic) the store answered last.
    answered_at: Option<Nanos>,
    /// Bytes that the next exchange reads at most: less after one that took too long.
    max_read: usize,
    reports: Reports,
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
            has_answer: false,
            has_read_all: false,
            shown_without: 0,
            leaves_out_nodes: false,
            shown: Believed::default(),
            looked_at: None,
            answered_at: None,
            max_read: MAX_READ,
            reports: Reports::default(),
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
            if self.tags.iter().any(|tag| !tags.contains(tag)) {
                self.publication.leave_limits();
            }
            // What was read for other limits is read again.
            (self.tags, self.cursor) = (tags, FleetCursor::default());
        }
        let next = self.next_chunk(engine, limits, terms);
        let mut chunks: Vec<FleetChunk> =
            next.iter().map(|next| self.text_of(next, engine, limits)).collect();
        chunks.extend(self.publication.obsolete(next.as_ref()).map(deleted));
        let sent = engine.now().mono;
        let news = self.call(channel, terms, &chunks, false).await;
        match news {
            Ok(news) => {
                progress.record_call(FleetOutcome::Ok);
                progress.record_answer(news.nodes, engine.now().mono);
                self.max_read = self.max_read.saturating_mul(2).min(MAX_READ);
                let has_more = news.has_more;
                self.take_up(engine, limits, sent, news, next.as_ref());
                self.show_errors(engine, limits, terms, true);
                let shortest = SHORTEST_PAUSE.min(terms.every);
                let pause = match self.until_next_look(terms, engine.now().mono) {
                    _ if has_more => shortest,
                    // It did not look: it does not know the time, or does not trust it.
                    Nanos::ZERO => terms.every,
                    until if until <= early(terms.every) => shortest,
                    until => until,
                };
                pause.into()
            }
            Err(why) => {
                progress.record_call(FleetOutcome::Failed);
                if why == StoreFailure::Timeout {
                    self.max_read = (self.max_read / 2).max(MIN_READ);
                }
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
            liveness: liveness(terms),
            max_bytes: self.max_read,
            leaves,
            timeout: TIMEOUT.into(),
        };
        channel.exchange(question).await
    }

    /// No limit counts over the fleet any more. What was published is deleted; while the store is away, the next step tries again.
    async fn stop(&mut self, channel: Option<&impl FleetChannel>, engine: &Engine) {
        engine.fleet().progress.set_running(false, engine.now().mono);
        if self.tags.is_empty() {
            return;
        }
        let Some(channel) = channel.filter(|channel| channel.is_up()) else {
            return;
        };
        self.publication.leave_limits();
        let chunks: Vec<_> = self.publication.obsolete(None).map(deleted).collect();
        if self.call(channel, FleetTerms::default(), &chunks, true).await.is_err() {
            return;
        }
        // The time stays: cells are dated by it.
        let time = std::mem::take(&mut self.time);
        *self = Self { time, ..Self::default() };
    }

    /// What to write now. At most one chunk in each interval, also while there is more to read: otherwise nodes that read
    /// faster would write faster, and have the others read more.
    fn next_chunk(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
    ) -> Option<NextChunk> {
        let now_mono = engine.now().mono;
        self.time.bounds(now_mono)?;
        if !self.trusts_time || self.until_next_look(terms, now_mono) > early(terms.every) {
            return None;
        }
        self.looked_at = Some(now_mono);
        let now = engine.shared_instant().earliest;
        // In this order: counts are without what was forgotten before.
        let heard = engine.heard();
        let own = own_counts(engine, limits, &self.publication, self.nodes, now);
        self.publication.next_chunk(&own, heard, limits, now)
    }

    /// The time until this node looks at its own counts again.
    fn until_next_look(&self, terms: FleetTerms, now_mono: Nanos) -> Nanos {
        let next = self.looked_at.map_or(Nanos::ZERO, |at| at.saturating_add(terms.every));
        next.saturating_sub(now_mono)
    }

    fn text_of(&self, next: &NextChunk, engine: &Engine, limits: &FleetLimits) -> FleetChunk {
        let at = engine.shared_instant().earliest;
        let version = engine.fleet().identity.next_version(at.get());
        let chunk = CountChunk { version, at, heard: next.heard, records: next.records.clone() };
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
        if let Some(written) = written {
            self.publication.record_written(written, true);
        }
        self.publication.record_deleted();
        let answered_at = self.answered_at.replace(engine.now().mono);
        if news.is_new_history {
            // A node without a cursor reads from the beginning, and one that was away for long is not known any more. Otherwise the
            // store has lost data, and may have older chunks of this node again.
            let was_away = answered_at.is_none_or(|at| {
                sent.saturating_sub(at).saturating_add(AWAY_MARGIN) >= liveness(limits.terms)
            });
            let has_lost = !self.cursor.has_mark_of(&news.cursor) || !was_away;
            match has_lost && !self.cursor.is_start() {
                true => self.publication.leave_limits(),
                false => self.publication.begin_anew(),
            }
        }
        self.has_answer = true;
        self.has_read_all = !news.has_more || (self.has_read_all && !news.is_new_history);
        self.nodes = news.nodes.max(1);
        self.cursor = news.cursor.clone();
        self.learn_time(engine, limits, sent, &news);
        let latest = engine.shared_instant().latest;
        let refused = self.read_chunks(engine, limits, &news, latest);
        self.reports.record_refused(&engine.fleet().progress, refused, engine.now().mono);
        self.imports.expire(limits, engine.shared_instant().earliest);
        self.show(engine, limits);
        self.reports.record_answer(engine.now().mono);
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
        self.reports.record_time(self.trusts_time);
    }

    fn read_chunks(
        &mut self,
        engine: &Engine,
        limits: &FleetLimits,
        news: &FleetNews,
        latest: Nanos,
    ) -> RefusedChunks {
        let mut refused = RefusedChunks::default();
        if !self.trusts_time {
            return refused;
        }
        for chunk in news.chunks.iter().filter(|chunk| chunk.node != self.node) {
            let address = ChunkAddress { node: chunk.node, number: chunk.number };
            match CountChunk::decode(&chunk.text, address, engine.key_secret()) {
                Ok(counts) => {
                    if self.imports.add(chunk.node, &counts, limits, latest).is_err() {
                        refused.unreadable += 1;
                    }
                }
                Err(ChunkError::Checksum) => refused.foreign += 1,
                Err(ChunkError::Form | ChunkError::Contents) => refused.unreadable += 1,
            }
        }
        refused
    }

    /// Shows requests what other nodes counted.
    fn show(&mut self, engine: &Engine, limits: &FleetLimits) {
        let forgotten = &engine.fleet().forgotten;
        let believed = Believed::by(engine);
        let is_changed = self.imports.take_changed() || self.shown != believed;
        if !is_changed && forgotten.count() == self.shown_without {
            return;
        }
        self.shown = believed;
        let forgotten = forgotten.snapshot(engine.shared_instant().earliest);
        self.shown_without = forgotten.count;
        self.leaves_out_nodes = self.imports.leaves_out_nodes(&forgotten);
        let sums = self.imports.sums(limits, &forgotten);
        engine.fleet().identity.with_node(self.node, || {
            for (tag, counts) in sums {
                if let Some(limit) = limits.tagged(tag) {
                    let counts = if believed.includes(limit) { counts } else { Default::default() };
                    limit.view.replace(counts, forgotten.count);
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
        self.show_errors(engine, limits, terms, false);
        self.reports.record_no_answer(why, engine.now().mono);
    }

    /// Shows how far the nodes may exceed each limit now.
    fn show_errors(
        &self,
        engine: &Engine,
        limits: &FleetLimits,
        terms: FleetTerms,
        is_answered: bool,
    ) {
        let (progress, now) = (&engine.fleet().progress, engine.now().mono);
        let lag = progress.lag(now).unwrap_or_default();
        // Before the first answer nothing is known.
        let is_young = lag <= terms.every.saturating_mul(OLD_EXCHANGES);
        let is_fresh = is_answered || (is_young && self.has_answer);
        progress.set_errors(limits.iter().map(|limit| {
            let tag = limit.view.tag();
            // What was left out would have counted for two windows.
            let windows = limit.rate.period().saturating_mul(2);
            let is_partial = self.reports.has_refused_within(windows, now);
            let knowledge = Knowledge {
                nodes: self.nodes,
                left_out: self.publication.unpublished(tag).max(self.imports.dropped(tag)),
                uncounted: limit.uncounted(engine.confirm_table()),
                is_fresh,
                is_complete: self.trusts_time
                    && !is_partial
                    && self.has_read_all
                    && !self.leaves_out_nodes
                    && self.shown.includes(limit),
            };
            (tag, knowledge.error_ppm(limit.rate.count(), terms.error_ppm))
        }));
    }
}

/// How much earlier than planned a node may look at its counts: timers and clocks do not agree to the last digit.
const fn early(every: Nanos) -> Nanos {
    Nanos::new(every.get() / 10)
}

/// A chunk that is deleted.
const fn deleted(number: u16) -> FleetChunk {
    FleetChunk { number, text: String::new(), lifetime: MIN_LIVENESS }
}

const fn why_of(failure: StoreFailure) -> &'static str {
    match failure {
        StoreFailure::Invalid => "its answer makes no sense",
        StoreFailure::Refused => "it refuses the call",
        _ => "the call failed",
    }
}
