//! A store in one thread on virtual time: the real script in an interpreter, behind a transport
//! that delays, closes and refuses as a test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate::clock::{Clock, Nanos, Now};
use tollgate::limit::{FixedWindow, Quota, Rate, WindowLengths};
use tollgate::policy::KeyHash;
use tollgate::store::redis::{
    Arguments, CellCharge, Operation, Readiness, SharedStore, StoreCharge, StoreFailure,
    StoreTransport,
};
use tollgate::store::{CellBudget, EmbeddedStore, IssuedQuota, QuotaSpec};

use support::lua::Server;
use support::wait::pause_of_a_slow_link;

/// The time of the runtime, which a paused one turns by itself.
pub struct VirtualClock(tokio::time::Instant);

impl VirtualClock {
    pub fn new() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        let since = Nanos::from(self.0.elapsed());
        let mono = since.saturating_add(Nanos::from_secs(3_600));
        // The beginning of a window of thirty days.
        Now { mono, wall: since.saturating_add(Nanos::from_secs(1_798_848_000)) }
    }

    fn date(&self, at: Now) -> Nanos {
        at.wall
    }
}

/// What becomes of a call, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is executed, and answered after the delay.
    Answer,
    /// It is not executed, and fails after the delay.
    Fail(StoreFailure),
    /// It is executed, and nobody learns of it before the call's timeout.
    LoseReply,
}

/// The store.
pub struct VirtualStore {
    pub lua: Mutex<Server>,
    pub clock: Arc<VirtualClock>,
    delay: Duration,
    plan: Mutex<Plan>,
    readiness: Mutex<Readiness>,
    changed: Notify,
    slots: bool,
    /// Calls, and charges that were executed.
    pub calls: AtomicU64,
    /// Each call's cells.
    pub sent: Mutex<Vec<Vec<String>>>,
}

impl VirtualStore {
    pub fn start(delay: Duration, timeout: Duration) -> (Arc<Self>, Arc<SharedStore>) {
        Self::start_with(delay, timeout, false)
    }

    pub fn start_with(
        delay: Duration,
        timeout: Duration,
        slots: bool,
    ) -> (Arc<Self>, Arc<SharedStore>) {
        let clock = Arc::new(VirtualClock::new());
        let store = Arc::new(Self {
            lua: Mutex::new(Server::new()),
            clock: Arc::clone(&clock),
            delay,
            plan: Mutex::new(Plan::Answer),
            readiness: Mutex::new(Readiness::Ready),
            changed: Notify::new(),
            slots,
            calls: AtomicU64::new(0),
            sent: Mutex::default(),
        });
        let transport = Arc::clone(&store) as Arc<dyn StoreTransport>;
        let remote = SharedStore::with_transport(transport, "t".to_owned(), timeout, clock);
        (store, remote)
    }

    pub fn plan(&self, plan: Plan) {
        *self.plan.lock() = plan;
    }

    pub fn set_readiness(&self, readiness: Readiness) {
        *self.readiness.lock() = readiness;
        self.changed.notify_waiters();
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// What a cell of a fixed window says was spent.
    pub fn spent(&self, key: KeyHash) -> u64 {
        self.cell(&format!("t:{key}"))
    }

    pub fn cell(&self, name: &str) -> u64 {
        match self.lua.lock().get(name) {
            Some((support::lua::Kept::Text(text), _)) => {
                text.split(' ').nth(2).unwrap().parse().unwrap()
            }
            _ => 0,
        }
    }

    /// Half of the way, the execution as it is planned, and back.
    async fn carry<R>(
        &self,
        timeout: Duration,
        execute: impl FnOnce() -> Result<R, StoreFailure> + Send,
    ) -> Result<R, StoreFailure> {
        let plan = *self.plan.lock();
        let carry = async {
            pause_of_a_slow_link(self.delay / 2).await;
            let reply = match plan {
                Plan::Fail(failure) => Err(failure),
                Plan::Answer | Plan::LoseReply => execute(),
            };
            pause_of_a_slow_link(self.delay / 2).await;
            if plan == Plan::LoseReply {
                std::future::pending::<()>().await;
            }
            reply
        };
        tokio::time::timeout(timeout, carry).await.unwrap_or(Err(StoreFailure::Timeout))
    }

    fn execute(&self, arguments: &Arguments) -> Result<Vec<u64>, StoreFailure> {
        let lua = self.lua.lock();
        lua.set_time(self.clock.now().wall.get() / 1_000);
        self.sent.lock().push(arguments.keys.clone());
        lua.run(arguments).map_err(|error| {
            let text = error.to_string();
            assert!(text.contains("TOLLGATE") || text.contains("WRONGTYPE"), "{text}");
            StoreFailure::Unreadable
        })
    }
}

#[async_trait]
impl StoreTransport for VirtualStore {
    fn has_slots(&self) -> bool {
        self.slots
    }

    fn readiness(&self, _: u16) -> Readiness {
        *self.readiness.lock()
    }

    async fn readiness_changed(&self) {
        self.changed.notified().await;
    }

    async fn call(
        &self,
        _: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.carry(timeout, || self.execute(arguments)).await
    }

    async fn evaluate(
        &self,
        _: u16,
        script: &str,
        keys: &[String],
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Vec<String>, StoreFailure> {
        self.carry(timeout, || {
            let lua = self.lua.lock();
            lua.set_time(self.clock.now().wall.get() / 1_000);
            Ok(lua.evaluate(script, keys, arguments).unwrap())
        })
        .await
    }

    fn record_invalid_reply(&self, _: u16) {}

    fn is_up(&self) -> bool {
        *self.readiness.lock() != Readiness::Away
    }
}

/// So many in a month.
pub fn quota(limit: u32) -> Arc<IssuedQuota> {
    let rate = Rate::new(limit, Nanos::from_secs(30 * 86_400)).unwrap();
    let quota = Quota::FixedWindow(FixedWindow::new(rate));
    let windows = WindowLengths::of([&quota]);
    let claim = QuotaSpec {
        quota,
        windows,
        budget: Arc::<CellBudget>::default(),
        denies_after_crash: false,
    };
    EmbeddedStore::default().issue(claim, None)
}

pub fn key(n: u64) -> KeyHash {
    KeyHash { high: n, low: 7 }
}

pub fn charge(spends: &[(u64, &Arc<IssuedQuota>)]) -> StoreCharge {
    let spend = |&(n, quota): &(u64, &Arc<IssuedQuota>)| {
        CellCharge::new(key(n), None, Arc::clone(quota), 1)
    };
    StoreCharge { operation: Operation::Charge, cell_charges: spends.iter().map(spend).collect() }
}
