//! Runs logs through policies. One thread reads, another one judges.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::compare::Comparison;
use super::entry::LogEntry;
use super::key_memory::MemoryBounds;
use super::logs::{Log, MergedLogs, ReadSummary};
use super::notes;
use super::observer::{Observer, ObserverSettings};
use super::order::{MAX_WAITING, Ordering};
use super::policy::ReplayedPolicy;
use super::report::{BrokenLineKind, ComparedPolicy, LineNumber, LogLines, Report};
use super::secrets::KeySecrets;
use super::suggestions;
use crate::config::Config;
use crate::policy::Coverage;
use crate::replay::suggest::KeyShare;

/// Requests that are handed over at a time.
const BATCH: usize = 512;

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
}

/// Judges all requests of the logs. `progress` is told now and then how many lines were read.
pub fn replay(
    options: ReplayOptions,
    logs: Vec<Log>,
    mut progress: impl FnMut(u64) + Send,
) -> Report {
    let ReplayOptions { policy, other, suggest, top, show_keys } = options;
    let coverages: Vec<Arc<Coverage>> = logs.iter().map(Log::coverage).collect();
    let qualities = LogQualities::of(&logs, &coverages);
    let side = |policy| JudgedPolicy::new(policy, CountOptions { suggest, show_keys }, qualities);
    let (mut live, mut other) = (side(policy), other.map(side));
    let mut comparison =
        other.as_ref().map(|other| Comparison::new(&live.observer.names, &other.observer.names));
    let mut order = Ordering::new(MAX_WAITING);
    let (sender, receiver) = sync_channel(MAX_BATCHES);
    let summaries = std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(MergedLogs::new(logs), &sender, &mut progress));
        let mut judge = |entry: &LogEntry| {
            let coverage = &coverages[entry.source.0 as usize];
            judge_all(entry, coverage, &mut live, other.as_mut(), comparison.as_mut());
        };
        for batch in received(receiver) {
            batch.into_iter().filter_map(|entry| order.push(entry)).for_each(|entry| judge(&entry));
        }
        while let Some(entry) = order.pop() {
            judge(&entry);
        }
        reader.join().unwrap_or_default()
    });
    live.policy.finish();
    let compare = other.zip(comparison).map(|(other, comparison)| {
        live.notes.extend(other.remarks());
        ComparedPolicy { other: other.name, comparison: comparison.finish() }
    });
    live.report(&summaries, order.late(), compare, suggest, top)
}

/// Reads all logs.
fn read(
    mut logs: MergedLogs,
    sender: &SyncSender<Vec<LogEntry>>,
    progress: &mut impl FnMut(u64),
) -> Vec<ReadSummary> {
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(entry) = logs.next_entry() {
        batch.push(entry);
        if batch.len() == BATCH {
            progress(logs.lines());
            // Nobody judges any more only if the other thread has ended.
            if sender.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH))).is_err() {
                break;
            }
        }
    }
    progress(logs.lines());
    let _ = sender.send(batch);
    logs.summaries()
}

fn received(receiver: Receiver<Vec<LogEntry>>) -> impl Iterator<Item = Vec<LogEntry>> {
    receiver.into_iter()
}

/// Judges a request by each policy.
fn judge_all(
    entry: &LogEntry,
    coverage: &Arc<Coverage>,
    live: &mut JudgedPolicy,
    other: Option<&mut JudgedPolicy>,
    comparison: Option<&mut Comparison>,
) {
    let JudgedPolicy { policy, observer, .. } = live;
    let judged = policy.judge(entry, coverage, |judgment, facts, replayed| {
        observer.add(judgment, facts, replayed, entry, |judged| {
            let (Some(other), Some(comparison)) = (other, comparison) else {
                return;
            };
            let JudgedPolicy { policy, observer, .. } = other;
            let result = policy.judge(entry, coverage, |judgment, facts, replayed| {
                observer.add(judgment, facts, replayed, entry, |by_other| {
                    comparison.add_pair(judged, by_other);
                });
            });
            if let Err(why) = result {
                observer.note_unjudged(why);
            }
        });
    });
    if let Err(why) = judged {
        observer.note_unjudged(why);
    }
}

impl JudgedPolicy {
    fn new((name, config): (String, Config), options: CountOptions, logs: LogQualities) -> Self {
        let secret = KeySecrets::of(&config.store);
        let mut notes = notes::of_config(&config, secret.is_known);
        if logs.has_foreign {
            notes.extend(notes::of_foreign_logs(&config, logs.has_host));
        }
        let limits = config.policy.limits.len().max(1);
        let memory =
            MemoryBounds { max_keys: MAX_KEYS / limits, max_bytes: MAX_KEY_BYTES / limits };
        let policy = ReplayedPolicy::new(config, secret.secret);
        let settings = ObserverSettings {
            shows_keys: options.show_keys,
            suggests: options.suggest.is_some(),
            bounds_refusals: logs.has_inexact_times,
            memory,
        };
        let observer = Observer::new(policy.policy(), settings);
        Self { name, policy, observer, notes }
    }

    /// What a report tells of the policy apart from the comparison.
    fn remarks(&self) -> Vec<String> {
        let counts = [&self.observer.not_judged, &self.observer.assumed];
        let counts = counts.into_iter().flatten();
        let counts = counts.map(|(reason, number)| format!("{}: {reason}: {number}", self.name));
        let notes = self.notes.iter().map(|note| format!("{}: {note}", self.name));
        counts.chain(notes).collect()
    }

    fn report(
        self,
        logs: &[ReadSummary],
        late: u64,
        compare: Option<ComparedPolicy>,
        suggest: Option<KeyShare>,
        top: usize,
    ) -> Report {
        let Self { name, policy, observer, mut notes } = self;
        let Observer { tally, demands, bounds, mut not_judged, assumed, names, .. } = observer;
        for (why, count) in logs.iter().flat_map(|log| &log.unjudged) {
            *not_judged.entry(why.name().to_owned()).or_default() += count;
        }
        notes.extend(notes::of_counts(&not_judged, &assumed));
        notes.extend(notes::of_logs(logs));
        if policy.ended_early() > 0 {
            notes.push(format!(
                "{} requests were ended early, because more were open at a time than are kept",
                policy.ended_early()
            ));
        }
        let mut summary = tally.finish(top);
        super::bound_totals::add(&mut summary.limits, bounds);
        let suggestions = suggest.map(|share| suggestions::of(&demands, &names, share));
        Report {
            policy: name,
            lines: lines(logs, late),
            summary,
            not_judged,
            assumed,
            notes,
            compare,
            suggestions: suggestions.unwrap_or_default(),
        }
    }
}

impl Report {
    /// Whether no line could be read.
    pub fn is_empty(&self) -> bool {
        self.summary.requests == 0 && self.not_judged.is_empty()
    }
}

fn lines(logs: &[ReadSummary], late: u64) -> LogLines {
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
    LogLines { read: logs.iter().map(|log| log.lines).sum(), broken, late }
}
