//! Signals, and how the process ends.
//!
//! HUP reloads. TERM: not ready at once, accepting goes on for `drain`, then the listeners close
//! and the process ends as soon as no request is in flight, after `finish` at the latest. A second
//! TERM, or INT, ends it now. QUIT hands over to a successor; when that one accepts, this one stops
//! accepting at once, answers those that hold a connection for `drain`, and ends as after TERM.
//! USR1 opens the access log anew. USR2 does nothing, and a file that may not grow (`RLIMIT_FSIZE`)
//! is a full disk; both would end the process by default.

use std::os::raw::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals as SignalStream;
use tokio::sync::{Notify, watch};

use super::Status;
use crate::proxy::Live;

/// How often it is looked whether the last request has ended.
const IDLE_CHECK: Duration = Duration::from_millis(20);

/// How long requests may go on when the last connection has gone: streams of HTTP/2 whose client
/// left are dropped one after the other, and each is logged.
const STRAGGLERS: Duration = Duration::from_millis(100);

type ExitHook = Box<dyn Fn() + Send + Sync>;

/// What operators asked for by signals.
pub struct Orders {
    /// Rings once for any number of HUPs since the last look.
    pub reload: Notify,
    /// Rings once for any number of QUITs since the last look.
    pub hand_over: Notify,
    /// Rings once for any number of USR1s since the last look.
    pub reopen: Notify,
    /// Run before the process ends, however it ends.
    before_exit: OnceLock<ExitHook>,
    ending: watch::Sender<Ending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    NotYet,
    /// TERM.
    Drain,
    /// A successor accepts in our place.
    Replaced,
    Now,
}

/// Handlers that are in place before anything else: without one a HUP kills the process.
pub struct Signals {
    stream: SignalStream,
}

impl Signals {
    /// Takes every signal that operators, log rotation and limits of the system send.
    pub fn take() -> std::io::Result<Self> {
        let signals = [SIGHUP, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXFSZ];
        Ok(Self { stream: SignalStream::new(signals)? })
    }

    /// Starts a thread that turns signals into orders.
    pub fn listen(mut self) -> std::io::Result<Arc<Orders>> {
        let orders = Arc::new(Orders {
            reload: Notify::new(),
            hand_over: Notify::new(),
            reopen: Notify::new(),
            before_exit: OnceLock::new(),
            ending: watch::Sender::new(Ending::NotYet),
        });
        let given = Arc::clone(&orders);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in self.stream.forever() {
                given.receive(signal);
            }
        })?;
        Ok(orders)
    }
}

impl Orders {
    /// A successor accepts: nobody is accepted here any more.
    pub fn replaced(&self) {
        self.ending.send_if_modified(|ending| {
            let first = *ending == Ending::NotYet;
            if first {
                *ending = Ending::Replaced;
            }
            first
        });
    }

    /// Returns when a successor accepts in our place.
    pub async fn until_replaced(&self) {
        // The sender lives as long as the orders, which the caller holds.
        let _ = self.ending.subscribe().wait_for(|ending| *ending == Ending::Replaced).await;
    }

    /// Whether the process has been told to end.
    pub fn is_ending(&self) -> bool {
        *self.ending.borrow() != Ending::NotYet
    }

    fn receive(&self, signal: c_int) {
        match signal {
            SIGHUP => self.reload.notify_one(),
            SIGTERM => {
                self.ending.send_modify(|ending| {
                    *ending = match ending {
                        Ending::NotYet => Ending::Drain,
                        Ending::Drain | Ending::Replaced | Ending::Now => Ending::Now,
                    };
                });
                if *self.ending.borrow() == Ending::Now {
                    self.exit(1);
                }
            }
            SIGINT => self.exit(130),
            SIGQUIT => self.hand_over.notify_one(),
            SIGUSR1 => self.reopen.notify_one(),
            // USR2, and XFSZ: the write that caused it fails, and its line is dropped and counted.
            _ => {}
        }
    }

    /// Says what is to be done before the process ends. Only the first one is heard.
    pub fn before_exit(&self, hook: impl Fn() + Send + Sync + 'static) {
        // There is one process with one access log.
        let _ = self.before_exit.set(Box::new(hook));
    }

    /// Ends the process after the logs are written.
    fn exit(&self, code: i32) -> ! {
        if let Some(hook) = self.before_exit.get() {
            hook();
        }
        log::logger().flush();
        std::process::exit(code)
    }
}

/// Ends the process in order.
pub struct Lifecycle {
    /// What was asked for.
    pub orders: Arc<Orders>,
    /// Told at once.
    pub status: Arc<Status>,
    /// How long to drain, as of the present configuration.
    pub live: Arc<ArcSwap<Live>>,
    /// Set when connections are to be closed after their answer.
    pub leaving: Arc<AtomicBool>,
    /// Connections that exist.
    pub connections: Arc<AtomicUsize>,
}

#[async_trait]
impl ShutdownSignalWatch for Lifecycle {
    /// Returns when the listeners are to be closed.
    async fn recv(&self) -> ShutdownSignal {
        let mut ending = self.orders.ending.subscribe();
        // The sender lives as long as the orders, which this holds.
        let _ = ending.wait_for(|ending| *ending != Ending::NotYet).await;
        let replaced = *self.orders.ending.borrow() == Ending::Replaced;
        self.status.set_ready(false);
        self.leaving.store(true, Ordering::Relaxed);
        let bounds = self.live.load().bounds.clone();
        if replaced {
            log::info!("a successor accepts; connections end with their next answer");
            // A connection that is closed while a request is under way to it loses that request.
            let _ = tokio::time::timeout(bounds.drain, self.until_idle()).await;
        } else {
            super::supervisor::stopping();
            log::info!("TERM: not ready; accepting for {:?} more", bounds.drain);
            tokio::time::sleep(bounds.drain).await;
        }
        self.end_when_idle(bounds.finish);
        ShutdownSignal::GracefulTerminate
    }
}

impl Lifecycle {
    async fn until_idle(&self) {
        while self.connections.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(IDLE_CHECK).await;
        }
    }

    /// The framework would sleep for a fixed time; this thread ends the process when the last
    /// connection is gone, or `finish` is over.
    fn end_when_idle(&self, finish: Duration) {
        let connections = Arc::clone(&self.connections);
        let rounds = finish.as_millis() / IDLE_CHECK.as_millis();
        log::info!(
            "closing the listeners; finishing {} connections",
            connections.load(Ordering::Relaxed)
        );
        let (orders, live) = (Arc::clone(&self.orders), Arc::clone(&self.live));
        let spawned = std::thread::Builder::new().name("finish".to_owned()).spawn(move || {
            for _ in 0..rounds {
                // First of all: what was connected to while the listeners close is accepted and counted.
                std::thread::sleep(IDLE_CHECK);
                if connections.load(Ordering::Acquire) == 0 {
                    await_stragglers(&live);
                    orders.exit(0);
                }
            }
            log::warn!(
                "finish is over; {} connections are cut",
                connections.load(Ordering::Relaxed)
            );
            orders.exit(0);
        });
        if spawned.is_err() {
            self.orders.exit(0);
        }
    }
}

/// Waits until no request holds the configuration any more: its line has been handed to the log.
fn await_stragglers(live: &ArcSwap<Live>) {
    /// The configuration's own place, and the one that is looked at.
    const OURS: usize = 2;
    let rounds = STRAGGLERS.as_millis() / IDLE_CHECK.as_millis();
    for _ in 0..rounds {
        if Arc::strong_count(&live.load_full()) <= OURS {
            return;
        }
        std::thread::sleep(IDLE_CHECK);
    }
}
