//! Signals, and how the process ends.
//!
//! HUP reloads. TERM: not ready at once, accepting goes on for `drain`, then the listeners close
//! and the process ends as soon as no request is in flight, after `finish` at the latest. A second
//! TERM, or INT, ends it now. QUIT hands over to a successor; when that one accepts, this one stops
//! accepting at once, answers those that hold a connection for `drain`, and ends as after TERM.

use std::os::raw::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals as SignalStream;
use tokio::sync::{Notify, watch};

use super::Status;
use crate::proxy::Live;

/// How often it is looked whether the last request has ended.
const IDLE_CHECK: Duration = Duration::from_millis(20);

/// What operators asked for by signals.
#[derive(Debug)]
pub struct Orders {
    /// Rings once for any number of HUPs since the last look.
    pub reload: Notify,
    /// Rings once for any number of QUITs since the last look.
    pub hand_over: Notify,
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
    /// Takes HUP, TERM, INT and QUIT.
    pub fn take() -> std::io::Result<Self> {
        Ok(Self { stream: SignalStream::new([SIGHUP, SIGTERM, SIGINT, SIGQUIT])? })
    }

    /// Starts a thread that turns signals into orders.
    pub fn listen(mut self) -> std::io::Result<Arc<Orders>> {
        let orders = Arc::new(Orders {
            reload: Notify::new(),
            hand_over: Notify::new(),
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
                    exit_now(1);
                }
            }
            SIGINT => exit_now(130),
            SIGQUIT => self.hand_over.notify_one(),
            _ => {}
        }
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
    /// Run before the process ends.
    pub last_words: Box<dyn Fn() + Send + Sync>,
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
        (self.last_words)();
        let spawned = std::thread::Builder::new().name("finish".to_owned()).spawn(move || {
            for _ in 0..rounds {
                std::thread::sleep(IDLE_CHECK);
                if connections.load(Ordering::Acquire) == 0 {
                    exit_now(0);
                }
            }
            log::warn!(
                "finish is over; {} connections are cut",
                connections.load(Ordering::Relaxed)
            );
            exit_now(0);
        });
        if spawned.is_err() {
            exit_now(0);
        }
    }
}

/// Ends the process after the log is written.
fn exit_now(code: i32) -> ! {
    log::logger().flush();
    std::process::exit(code)
}
