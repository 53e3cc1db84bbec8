//! Runs logs through policies. One thread reads, another one judges.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use http::{HeaderName, header};

use super::compare::Comparison;
use super::entry::LogEntry;
use super::judged::JudgedRequest;
use super::key_memory::MemoryBounds;
use super::logs::{Log, MergedLogs, ReadSummary};
use super::notes;
use super::observer::{Observer, ObserverSettings};
use super::order::{MAX_WAITING, OrderCounts, Ordering};
use super::policy::ReplayedPolicy;
use super::report::{BrokenLineKind, ComparedPolicy, LineNumber, LogLines, Report};
use super::secrets::KeySecrets;
use super::suggestions;
use crate::config::{Config, StoreConfig};
use crate::policy::{Coverage, Policy, reads_header};
use crate::replay::suggest::KeyShare;

/// Requests that are handed over at a time.
const BATCH: usize = 512;

/// Bytes of the requests of a batch, up to those of the last one. Batches that wait, and those that come back, take 32 MiB at most.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Batches that wait to be judged.
const MAX_BATCHES: usize = 16;

/// Bytes that demands and bounds may take, over all limits.
const MAX_KEY_BYTES: usize = 160 << 20;

/// Keys that demands and bounds may count, over all limits.
const MAX_KEYS: usize = 2_000_000;

/// What is replayed.
pub struct ReplayOptions {
    /// The policy, as reports call it, and its configuration.
    pub policy: (String, Config),
    /// Another policy, which is compared with it.
    pub other: Option<(String, Config)>,
    /// The share of keys that suggested rates may refuse.
    pub suggest: Option<KeyShare>,
    /// How many keys of each limit are listed.
    pub top: usize,
    /// Whether keys are shown as they are.
    pub show_keys: bool,
    /// What the report shall say besides, such as of files that are not replayed.
    pub notes: Vec<String>,
}

/// What is counted of the decisions of a policy.
#[derive(Clone, Copy)]
struct CountOptions {
    suggest: Option<KeyShare>,
    show_keys: bool,
}

/// What has to be known of all logs before the first request.
#[derive(Clone, Copy)]
struct LogQualities {
    /// Whether another server wrote one of them.
    has_foreign: bool,
    /// Whether lines name hosts.
    has_host: bool,
    /// Whether the times of one are not exact.
    has_inexact_times: bool,
}

impl LogQualities {
    fn of(logs: &[Log], coverages: &[Arc<Coverage>]) -> Self {
        Self {
            has_foreign: logs.iter().any(Log::is_foreign),
            has_host: coverages.iter().any(|coverage| coverage.host),
            has_inexact_times: !logs.iter().all(Log::has_exact_times),
        }
    }
}

/// One policy and what is counted of its decisions.
struct JudgedPolicy {
    name: String,
    policy: ReplayedPolicy,
    observer: Observer,
    notes: Vec<String>,
    store: StoreConfig,
    /// Whether the secret of the hashes in tollgate's own log is known.
    has_known_secret: bool,
}

/// Judges all requests of the logs. `progress` is told now and then how many lines were read.
pub fn replay(
    options: ReplayOptions,
    logs: Vec<Log>,
    mut progress: impl FnMut(u64) + Send,
) -> Report {
    let ReplayOptions { policy, other, suggest, top, show_keys, notes } = options;
    let coverages: Vec<Arc<Coverage>> = logs.iter().map(Log::coverage).collect();
    let qualities = LogQualities::of(&logs, &coverages);
    let side = |policy| JudgedPolicy::new(policy, CountOptions { suggest, show_keys }, qualities);
    let (mut live, mut other) = (side(policy), other.map(side));
    live.notes.extend(notes);
    let mut comparison =
        other.as_ref().map(|other| Comparison::new(&live.observer.names, &other.observer.names));
    let (sender, receiver) = sync_channel(MAX_BATCHES);
    let (judged_sender, judged) = sync_channel(MAX_BATCHES);
    let (summaries, order) = std::thread::scope(|scope| {
        let batches = BatchSender { sender, judged, batch: Vec::with_capacity(BATCH), bytes: 0 };
        let reader = scope.spawn(move || read(MergedLogs::new(logs), batches, &mut progress));
        for batch in receiver {
            for entry in &batch {
                let coverage = &coverages[entry.source.0 as usize];
                judge_all(entry, coverage, &mut live, other.as_mut(), comparison.as_mut());
            }
            // What the reader cannot take back is freed here.
            drop(judged_sender.try_send(batch));
        }
        reader.join().unwrap_or_default()
    });
    live.policy.finish();
    let compare = other.zip(comparison).map(|(other, comparison)| {
        let remarks = other.remarks(&live);
        live.notes.extend(remarks);
        ComparedPolicy { other: other.name, comparison: comparison.finish() }
    });
    live.report(&summaries, order, compare, suggest, top)
}

/// Reads all logs, and hands their requests over in the order in which they were judged. Returns what was found, and how
/// many requests were not in that order.
fn read(
    mut logs: MergedLogs,
    mut batches: BatchSender,
    progress: &mut impl FnMut(u64),
) -> (Vec<ReadSummary>, OrderCounts) {
    let mut order = Ordering::new(MAX_WAITING);
    while let Some(entry) = logs.next_entry() {
        if order.push(entry).is_some_and(|entry| batches.add(entry)) {
            progress(logs.lines());
        }
    }
    progress(logs.lines());
    while let Some(entry) = order.pop() {
        batches.add(entry);
    }
    batches.send();
    (logs.summaries(), order.counts())
}

type RequestBatch = Vec<Box<LogEntry>>;

/// Hands requests over, many at a time.
struct BatchSender {
    sender: SyncSender<RequestBatch>,
    /// Batches that were judged. They are freed by the thread that made them, whose next requests take the same memory.
    judged: Receiver<RequestBatch>,
    batch: RequestBatch,
    /// Bytes of its requests.
    bytes: usize,
}

impl BatchSender {
    /// Adds a request. Returns whether a batch was handed over.
    fn add(&mut self, entry: Box<LogEntry>) -> bool {
        self.bytes += entry.bytes();
        self.batch.push(entry);
        let is_full = self.batch.len() == BATCH || self.bytes >= MAX_BATCH_BYTES;
        if is_full {
            self.send();
        }
        is_full
    }

    fn send(&mut self) {
        self.bytes = 0;
        let mut next = self.judged.try_recv().unwrap_or_default();
        next.clear();
        next.reserve(BATCH);
        let batch = std::mem::replace(&mut self.batch, next);
        // The thread that judges has ended only if it panicked, and the scope of both raises that at its end.
        let _ = self.sender.send(batch);
    }
}

/// Judges a request by each policy.
fn judge_all(
    entry: &LogEntry,
    coverage: &Arc<Coverage>,
    live: &mut JudgedPolicy,
    other: Option<&mut JudgedPolicy>,
    comparison: Option<&mut Comparison>,
) {
    let (Some(other), Some(comparison)) = (other, comparison) else {
        live.judge(entry, coverage, |_| {});
        return;
    };
    let was_judged = live.judge(entry, coverage, |by_live| {
        let by_both = other.judge(entry, coverage, |by_other| {
            comparison.add_pair(&by_live.hidden_as(by_other), &by_other.hidden_as(by_live));
        });
        if !by_both {
            comparison.add_only_live();
        }
    });
    if !was_judged {
        // The counters of the other policy go on with it.
        other.judge(entry, coverage, |_| comparison.add_only_other());
    }
}

impl JudgedPolicy {
    /// Judges a request and counts that. Returns whether it could be judged; then `then` was called.
    fn judge(
        &mut self,
        entry: &LogEntry,
        coverage: &Arc<Coverage>,
        then: impl FnOnce(&JudgedRequest<'_>),
    ) -> bool {
        let Self { policy, observer, .. } = self;
        let judged = policy.judge(entry, coverage, |judgment, facts, replayed| {
            observer.add(judgment, facts, replayed, entry, then);
        });
        judged.map_err(|why| observer.note_unjudged(why)).is_ok()
    }

    fn new((name, config): (String, Config), options: CountOptions, logs: LogQualities) -> Self {
        let secret = KeySecrets::of(&config.store);
        let mut notes = notes::of_config(&config);
        if logs.has_foreign {
            notes.extend(notes::of_foreign_logs(&config, logs.has_host));
        }
        let limits = used_limits(&config.policy).max(1);
        let memory =
            MemoryBounds { max_keys: MAX_KEYS / limits, max_bytes: MAX_KEY_BYTES / limits };
        let store = config.store.clone();
        let policy = ReplayedPolicy::new(config, secret);
        let settings = ObserverSettings {
            shows_keys: options.show_keys,
            suggests: options.suggest.is_some(),
            bounds_refusals: logs.has_inexact_times,
            memory,
        };
        let observer = Observer::new(policy.policy(), settings);
        Self { name, policy, observer, notes, store, has_known_secret: secret.is_known }
    }

    /// What a report tells of the policy that another one does not tell already.
    fn remarks(&self, told: &Self) -> Vec<String> {
        let of_counts = |side: &Self| {
            let Observer { not_judged, assumed, .. } = &side.observer;
            notes::of_counts(not_judged, assumed)
        };
        let known: Vec<String> = told.notes.iter().cloned().chain(of_counts(told)).collect();
        let own = self.notes.iter().cloned().chain(of_counts(self));
        let new = own.filter(|note| !known.contains(note));
        new.map(|note| format!("{}: {note}", self.name)).collect()
    }

    fn report(
        self,
        logs: &[ReadSummary],
        order: OrderCounts,
        compare: Option<ComparedPolicy>,
        suggest: Option<KeyShare>,
        top: usize,
    ) -> Report {
        let Self { name, policy, observer, mut notes, store, has_known_secret } = self;
        let Observer {
            tally,
            demands,
            bounds,
            mut not_judged,
            assumed,
            names,
            inexact_late,
            unseen,
            ..
        } = observer;
        for (why, count) in logs.iter().flat_map(|log| &log.unjudged) {
            *not_judged.entry(why.name().to_owned()).or_default() += count;
        }
        notes.extend(notes::of_counts(&not_judged, &assumed));
        notes.extend(notes::of_logs(logs));
        notes.extend(notes::of_processes(&store, policy.processes(), has_known_secret));
        notes.extend(notes::of_late_inexactness(inexact_late));
        if policy.ended_early() > 0 {
            notes.push(format!(
                "{} requests were ended early, because more were open at a time than are kept",
                policy.ended_early()
            ));
        }
        let mut summary = tally.finish(top);
        if !logs.iter().any(|log| log.has_doubtful_times) {
            super::bound_totals::add(&mut summary.limits, bounds);
        }
        let suggestions = suggest.map(|share| suggestions::of(&demands, &unseen, &names, share));
        if let Some(found) = &suggestions {
            notes.extend(suggestions::without(&demands, &names, found));
        }
        Report {
            policy: name,
            lines: lines(logs, order),
            summary,
            not_judged,
            assumed,
            notes,
            compare,
            suggestions: suggestions.unwrap_or_default(),
        }
    }
}

/// How many limits routes lead to: the others count no key.
fn used_limits(policy: &Policy) -> usize {
    let mut reached: Vec<_> = policy
        .routes
        .iter()
        .flat_map(|route| &route.limits)
        .flat_map(|used| policy.missing_key_chain(used.limit))
        .map(|index| index.0)
        .collect();
    reached.sort_unstable();
    reached.dedup();
    reached.len()
}

/// Which of `User-Agent` and `Referer` none of these policies reads.
pub fn unread_headers(policies: &[&Policy]) -> Vec<HeaderName> {
    let is_read = |name: &HeaderName| policies.iter().any(|policy| reads_header(policy, name));
    [header::USER_AGENT, header::REFERER].into_iter().filter(|name| !is_read(name)).collect()
}

impl Report {
    /// Whether no request could be judged.
    pub fn is_empty(&self) -> bool {
        self.summary.requests == 0
    }
}

fn lines(logs: &[ReadSummary], order: OrderCounts) -> LogLines {
    let mut broken: Vec<BrokenLineKind> = Vec::new();
    for log in logs {
        for (error, kind) in log.broken.iter() {
            let first = kind.first_lines.iter();
            let first = first.map(|line| LineNumber { file: log.name.clone(), line: *line });
            let text = error.to_string();
            match broken.iter_mut().find(|known| known.kind == text) {
                Some(known) => {
                    known.number += kind.count;
                    known.first.extend(first.take(5_usize.saturating_sub(known.first.len())));
                }
                None => broken.push(BrokenLineKind {
                    kind: text,
                    number: kind.count,
                    first: first.collect(),
                }),
            }
        }
    }
    let OrderCounts { late, repeated } = order;
    LogLines { read: logs.iter().map(|log| log.lines).sum(), broken, late, repeated }
}
