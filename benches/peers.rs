//! A decision beside governor's (keyed, on dashmap) in the same run, turn by turn, once where all are
//! admitted and written down and once where all are refused; two threads
//! beside one; memory of ten million cells; how long a shard's lock is held. `make compare-library`.
//!
//! A decision is what a library would be asked for: the bytes of a key in, a verdict out, with the
//! clock read and the key hashed (here with a secret). Everything around it in the proxy (route,
//! header, fields) is in `make bench`.
#![expect(clippy::unwrap_used, reason = "a bench that meets what it does not expect shall fail")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the time")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota};
use tollgate::clock::{Clock, SystemClock};
use tollgate::config;
use tollgate::estimator::{ConfirmTable, EstimateLimit};
use tollgate::limit::{
    FixedWindow, MICROSECOND, Quota, Rate, SlidingLog, SlidingWindow, TokenBucket, WindowLengths,
};
use tollgate::policy::key::KeyHasher;
use tollgate::policy::{KeyHash, KeySecret, KeySpec};
use tollgate::store::{CellBudget, EmbeddedCharge, EmbeddedStore, IssuedQuota, QuotaSpec, SHARDS};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Decisions that are timed together: short, so that what else the machine does meets all contenders
/// of a round alike.
const TURN: usize = 200_000;

/// Turns of each, alternating; the first of a round is another one each time.
const TURNS: usize = 25;

/// Decisions of a thread while two are set beside one.
const THREAD_TURN: usize = 1_000_000;

/// The keys of a load: texts as a header carries them, one after the other. (They lie in that order, as
/// a request has just been read when its key is: reading them is not what is measured.)
struct Keys {
    texts: Vec<String>,
}

impl Keys {
    fn new(count: usize, whose: usize) -> Self {
        Self { texts: (0..count).map(|key| format!("key-{whose}-{key:08}")).collect() }
    }

    /// Every key once, in an order of its own: who keeps the texts shall not find them in the order in
    /// which they are asked for.
    fn shuffled(&self) -> Vec<&String> {
        let mut texts: Vec<&String> = self.texts.iter().collect();
        fastrand::Rng::with_seed(1).shuffle(&mut texts);
        texts
    }

    /// The keys of a turn that begins where others ended, and over and over again.
    fn each(&self, from: usize, turn: usize, decide: impl FnMut(&String)) {
        let first = self.texts[from % self.texts.len()..].iter();
        first.chain(self.texts.iter().cycle()).take(turn).for_each(decide);
    }
}

/// The parts of tollgate that a decision needs, put together by hand.
struct Ours {
    clock: SystemClock,
    hasher: KeyHasher,
    spec: KeySpec,
    store: EmbeddedStore,
    quota: Arc<IssuedQuota>,
}

impl Ours {
    fn new(quota: Quota, most: usize) -> Self {
        let text = "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\n\
                    origins: { site: { servers: [127.0.0.1:1] } }\n\
                    limits: { l: { tier: exact, rate: 1/1s, key: header:x-key, missing_key: deny } }\n\
                    routes: [{ name: r, limits: [l] }]\n";
        let loaded = config::read_text(text, "bench.yaml", std::path::Path::new("")).unwrap();
        let limit = &loaded.config.policy.limits[0];
        let store = EmbeddedStore::default();
        let room = Arc::new(CellBudget::default());
        store.set_budgets(most, &[room.bounded(None)]);
        let quota = store.issue(
            QuotaSpec {
                quota,
                windows: WindowLengths::of([&quota]),
                budget: room,
                denies_after_crash: false,
            },
            None,
        );
        let hasher = KeySecret::new([1; 16]).hasher(limit);
        Self { clock: SystemClock::new(), hasher, spec: limit.key.clone(), store, quota }
    }

    fn hash(&self, text: &str) -> KeyHash {
        self.spec.hash_values(&self.hasher, &[text.as_bytes()])
    }

    fn decide(&self, text: &str) -> bool {
        let charge = EmbeddedCharge { key: self.hash(text), quota: &self.quota, cost: 1 };
        self.store.prefetch(std::iter::once(charge.key));
        let now = self.clock.now();
        self.store
            .settle_single(&charge, true, now, || panic!("there is room"))
            .is_some_and(|settled| settled.charged)
    }
}

/// Whether all that is asked is to be admitted, and written down, or refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meant {
    Admitted,
    Refused,
}

impl Meant {
    const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
        }
    }

    /// What no turn uses up, or one unit for longer than all turns take.
    fn governor(self) -> GovernorQuota {
        match self {
            Self::Admitted => GovernorQuota::per_second(NonZeroU32::new(1_000_000_000).unwrap()),
            Self::Refused => GovernorQuota::per_hour(NonZeroU32::MIN),
        }
    }

    fn quotas(self) -> Vec<(&'static str, Quota)> {
        let per = |count, secs| Rate::new(count, tollgate::clock::Nanos::from_secs(secs)).unwrap();
        let (rate, filling, burst) = match self {
            Self::Admitted => (per(4_000_000_000, 3_600), per(1_000_000, 1), 4_000_000_000),
            Self::Refused => (per(1, 366 * 86_400), per(1, 3_600), 1),
        };
        let step = tollgate::clock::Nanos::ZERO;
        let bucket = TokenBucket::new(filling, burst, step, MICROSECOND).unwrap();
        let mut quotas = vec![
            ("token_bucket", Quota::TokenBucket(bucket)),
            ("sliding_window", Quota::SlidingWindow(SlidingWindow::new(rate))),
            ("fixed_window", Quota::FixedWindow(FixedWindow::new(rate))),
        ];
        if self == Self::Refused {
            // (No log is long enough to admit what one key is asked for here.)
            quotas.push(("sliding_log", Quota::SlidingLog(SlidingLog::new(rate).unwrap())));
        }
        quotas
    }
}

fn window() -> Quota {
    Meant::Admitted.quotas()[1].1
}

/// Nanoseconds for each decision of a turn.
fn timed(keys: &Keys, from: usize, decide: impl FnMut(&String)) -> f64 {
    let began = Instant::now();
    keys.each(from, TURN, decide);
    began.elapsed().as_secs_f64() * 1e9 / TURN as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// One table: every contender takes its turn in each round.
fn beside_governor(count: usize, meant: Meant) {
    let keys = Keys::new(count, 0);
    let governor = DefaultKeyedRateLimiter::<String>::keyed(meant.governor());
    let ours: Vec<(&str, Ours)> = meant
        .quotas()
        .into_iter()
        .map(|(name, quota)| (name, Ours::new(quota, 20_000_000)))
        .collect();
    let estimates = [Estimate::new(meant, 1), Estimate::new(meant, u32::MAX)];
    let estimate_names = estimates
        .each_ref()
        .map(|one| format!("estimate, a sketch of {} KiB", one.limit.bytes() / 1_024));
    for _ in 0..2 {
        keys.shuffled().into_iter().for_each(|text| {
            let _ = governor.check_key(text);
            for (_, one) in &ours {
                one.decide(text);
            }
            for one in &estimates {
                one.decide(text);
            }
        });
    }
    let checked = |allowed: bool| assert!(allowed == (meant == Meant::Admitted));
    // (Of a million suspects the confirm table holds a part: some are refused, some are not.)
    let decided = |allowed: bool| assert!(allowed || meant == Meant::Refused);
    let mut contenders: Vec<Contender<'_>> = vec![
        (
            "governor",
            Box::new(|from| timed(&keys, from, |text| checked(governor.check_key(text).is_ok()))),
        ),
        (
            CLOCK,
            Box::new(|from| timed(&keys, from, |_| _ = black_box(estimates[0].ours.clock.now()))),
        ),
        (
            HASH,
            Box::new(|from| timed(&keys, from, |text| _ = black_box(estimates[0].ours.hash(text)))),
        ),
    ];
    for (name, one) in &ours {
        contenders
            .push((name, Box::new(|from| timed(&keys, from, |text| checked(one.decide(text))))));
    }
    for (name, one) in estimate_names.iter().zip(&estimates) {
        contenders
            .push((name, Box::new(|from| timed(&keys, from, |text| decided(one.decide(text))))));
    }
    println!("| {count} keys, 1 thread, {} | ns | of governor |\n|---|---|---|", meant.name());
    for (name, ns, ratio) in alternated(&contenders) {
        println!("| {name} | {ns:.0} | {ratio:.2} |");
    }
    println!();
}

/// A name, and what takes a turn from a place in the keys on.
type Contender<'c> = (&'c str, Box<dyn Fn(usize) -> f64 + 'c>);

/// What each of ours does too, alone.
const CLOCK: &str = "(the clock of each of ours)";
const HASH: &str = "(the key's hash of each of ours)";

/// The median of each one's turns, and of its ratios to the first one's turn of the same round.
fn alternated<'c>(contenders: &[Contender<'c>]) -> Vec<(&'c str, f64, f64)> {
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..TURNS {
        for place in 0..contenders.len() {
            let place = (place + round) % contenders.len();
            figures[place].push(contenders[place].1(round * TURN));
        }
    }
    let ratios =
        |of: &[f64]| median(of.iter().zip(&figures[0]).map(|(one, first)| one / first).collect());
    let row =
        |((name, _), of): (&Contender<'c>, &Vec<f64>)| (*name, median(of.clone()), ratios(of));
    contenders.iter().zip(&figures).map(row).collect()
}

/// The estimate tier, by hand too.
struct Estimate {
    ours: Ours,
    limit: EstimateLimit,
    table: ConfirmTable,
}

impl Estimate {
    /// The more requests are expected the larger is the sketch: up to the largest there is.
    fn new(meant: Meant, expect_per_second: u32) -> Self {
        let ours = Ours::new(window(), 1);
        let (count, secs) = if meant == Meant::Admitted { (10_000_000, 60) } else { (1, 60) };
        let rate = Rate::new(count, tollgate::clock::Nanos::from_secs(secs)).unwrap();
        let limit = EstimateLimit::new(rate, expect_per_second, ours.clock.now());
        Self { ours, limit, table: ConfirmTable::default() }
    }

    fn decide(&self, text: &str) -> bool {
        let key = self.ours.hash(text);
        self.limit.charge(&self.table, key, 1, self.ours.clock.now()).0.allowed
    }
}

/// Decisions a second of one thread, and of two on keys of their own: the best of ten.
fn two_threads(count: usize) {
    let keys: Vec<Keys> = (0..2).map(|whose| Keys::new(count, whose)).collect();
    let ours = Ours::new(window(), 20_000_000);
    for keys in &keys {
        keys.texts.iter().for_each(|text| assert!(ours.decide(text)));
    }
    let run = |threads: usize, decide: &(dyn Fn(&String) + Sync)| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for keys in &keys[..threads] {
                scope.spawn(|| keys.each(0, THREAD_TURN, decide));
            }
        });
        (threads * THREAD_TURN) as f64 / began.elapsed().as_secs_f64()
    };
    // What shares nothing shows what the machine's two cores are worth.
    for (what, decide) in [
        ("a decision", &(|text: &String| assert!(ours.decide(text))) as &(dyn Fn(&String) + Sync)),
        ("a hash alone", &|text: &String| _ = black_box(ours.hash(text))),
    ] {
        let (mut one, mut two) = (0.0_f64, 0.0_f64);
        for _ in 0..10 {
            (one, two) = (one.max(run(1, decide)), two.max(run(2, decide)));
        }
        println!(
            "two threads on different keys of {count}, {what}: {:.2} x of one ({:.1} and {:.1} \
             million/s)",
            two / one,
            two / 1e6,
            one / 1e6
        );
    }
    println!();
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

const CELLS: usize = 10_000_000;

fn nth_key(ours: &Ours, text: &mut String, key: usize) -> KeyHash {
    use std::fmt::Write;
    text.clear();
    let _ = write!(text, "key-{key:08}");
    ours.hash(text)
}

/// Memory of ten million cells, and its peak while they grow from a million on.
fn memory() {
    let ours = Ours::new(window(), 20_000_000);
    let (now, before, mut text) = (ours.clock.now(), resident(), String::new());
    let (mut peak, mut own_peak) = (0.0_f64, 0.0_f64);
    for key in 0..CELLS {
        let key_hash = nth_key(&ours, &mut text, key);
        let charge = EmbeddedCharge { key: key_hash, quota: &ours.quota, cost: 1 };
        ours.store.settle(&[charge], true, now, |_| panic!("there is room"));
        if key % 50_000 == 0 && key >= 1_000_000 {
            peak = peak.max(resident().saturating_sub(before) as f64 / key as f64);
            own_peak = own_peak.max(ours.store.bytes() as f64 / key as f64);
        }
    }
    let held = (resident() - before) as f64 / CELLS as f64;
    let own = ours.store.bytes() as f64 / CELLS as f64;
    println!(
        "10,000,000 cells: {held:.1} bytes each, all included ({own:.1} by the store's own count); \
         at the peak from 1,000,000 on {peak:.1} ({own_peak:.1})"
    );
}

/// Runs the same operations several times over and keeps the least that each took: what is left is
/// the operation, without what the machine did in between. The longest of those, and how many took
/// above 100 us.
fn longest(passes: usize, mut run: impl FnMut(&mut dyn FnMut(usize, Duration))) -> String {
    let mut least: Vec<u32> = Vec::new();
    for _ in 0..passes {
        run(&mut |place, took| {
            let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
            match least.get_mut(place) {
                Some(before) => *before = took.min(*before),
                None => least.push(took),
            }
        });
    }
    let mut longest: Vec<(u32, usize)> =
        least.iter().copied().zip(0..).filter(|(took, _)| *took > 20_000).collect();
    longest.sort_unstable_by(|one, other| other.cmp(one));
    let shown = longest
        .iter()
        .take(3)
        .map(|(took, place)| format!("{:.1} us (the {}th)", f64::from(*took) / 1e3, place + 1));
    let above = longest.iter().filter(|(took, _)| *took > 100_000).count();
    format!("{}; {above} above 100 us", shown.collect::<Vec<_>>().join(", "))
}

/// Grows to ten million cells, sweeps them while they live, and sweeps them away. Each of these
/// operations holds one shard's lock from its beginning to its end.
fn locks() {
    const PASSES: usize = 5;
    let mut stores = Vec::new();
    let charges = longest(PASSES, |took| {
        let (ours, mut text) = (Ours::new(window(), 20_000_000), String::new());
        let now = ours.clock.now();
        for key in 0..CELLS {
            let key_hash = nth_key(&ours, &mut text, key);
            let charge = EmbeddedCharge { key: key_hash, quota: &ours.quota, cost: 1 };
            let began = Instant::now();
            ours.store.settle(&[charge], true, now, |_| panic!("there is room"));
            took(key, began.elapsed());
        }
        stores.push((ours, now));
    });
    println!("longest charges while 10,000,000 cells grow: {charges}");
    for (label, hours, passes) in [("live", 0, 4 * PASSES), ("idle", 3, PASSES)] {
        let mut left = stores.iter().cycle();
        let sweeps = longest(passes, |took| {
            let (ours, then) = left.next().unwrap();
            let later = tollgate::clock::Nanos::from_secs(hours * 3_600);
            let now = tollgate::clock::Now {
                mono: then.mono.saturating_add(later),
                wall: then.wall.saturating_add(later),
            };
            for shard in 0..SHARDS {
                let began = Instant::now();
                ours.store.sweep(1, now);
                took(shard, began.elapsed());
            }
        });
        println!("longest sweeps of a shard of {label} ones: {sweeps}");
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "locks") {
        return locks();
    }
    memory();
    for count in [1, 10_000, 1_000_000] {
        for meant in [Meant::Admitted, Meant::Refused] {
            beside_governor(count, meant);
        }
    }
    two_threads(10_000);
    two_threads(1_000_000);
    locks();
}
