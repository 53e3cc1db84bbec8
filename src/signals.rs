//! Signals, as requests of the operator.
//!
//! HUP asks for a reload, QUIT for a handover to a successor, USR1 for the access log to be reopened. TERM asks for an
//! orderly end. INT, or TERM while the process is ending, asks for an immediate one. USR2 does nothing. XFSZ (a file
//! may not grow, `RLIMIT_FSIZE`) is treated like a full disk: the write fails, and its line is dropped and counted. By
//! default USR2 and XFSZ would end the process.
//!
//! This file only records what was requested; `ops` and `edge` carry it out. A request to end is never withdrawn.

use std::os::raw::c_int;
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals as SignalStream;
use tokio::sync::{Notify, watch};

/// Exit status after INT: 128 + the signal's number, as shells report it.
const EXIT_INTERRUPTED: i32 = 130;

/// Exit status after a TERM while the process is ending.
const EXIT_NOW: i32 = 1;

type ExitHook = Box<dyn Fn() + Send + Sync>;

/// The signals that the process receives instead of their default actions. Install them before anything else: by
/// default a HUP kills the process.
pub struct Signals {
    stream: SignalStream,
}

/// What the operator has requested.
pub struct OperatorRequests {
    /// Notified once for any number of HUPs since it was last awaited.
    pub reload: Notify,
    /// Notified once for any number of QUITs since it was last awaited.
    pub hand_over: Notify,
    /// Notified once for any number of USR1s since it was last awaited.
    pub reopen: Notify,
    exit_hook: OnceLock<ExitHook>,
    shutdown: watch::Sender<Shutdown>,
}

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownCause {
    /// TERM: drain, then end.
    Term,
    /// A successor accepts connections instead of this process.
    Replaced,
}

/// Whether the process is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    NotRequested,
    Requested(ShutdownCause),
    /// TERM arrived while the process was ending: end now.
    Immediate,
}

impl Signals {
    /// Installs handlers for every signal that operators, log rotation and system limits send.
    ///
    /// # Errors
    /// The system's error when a handler cannot be installed.
    pub fn install() -> std::io::Result<Self> {
        let signals = [SIGHUP, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXFSZ];
        Ok(Self { stream: SignalStream::new(signals)? })
    }

    /// Starts a thread that turns signals into requests.
    ///
    /// # Errors
    /// The system's error when no thread can be started.
    pub fn listen(mut self) -> std::io::Result<Arc<OperatorRequests>> {
        let requests = Arc::new(OperatorRequests::new());
        let received = Arc::clone(&requests);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in self.stream.forever() {
                received.receive(signal);
            }
        })?;
        Ok(requests)
    }
}

impl OperatorRequests {
    fn new() -> Self {
        Self {
            reload: Notify::new(),
            hand_over: Notify::new(),
            reopen: Notify::new(),
            exit_hook: OnceLock::new(),
            shutdown: watch::Sender::new(Shutdown::NotRequested),
        }
    }

    /// A successor accepts connections from now on. Ignored if the process is ending already.
    pub fn replace(&self) {
        self.shutdown.send_if_modified(|shutdown| {
            let first = *shutdown == Shutdown::NotRequested;
            if first {
                *shutdown = Shutdown::Requested(ShutdownCause::Replaced);
            }
            first
        });
    }

    /// Returns when a successor accepts connections instead of this process.
    pub async fn until_replaced(&self) {
        let replaced = Shutdown::Requested(ShutdownCause::Replaced);
        // An error is impossible: the sender lives as long as `self`.
        let _ = self.shutdown.subscribe().wait_for(|shutdown| *shutdown == replaced).await;
    }

    /// Returns when the process is told to end.
    pub async fn until_shutdown(&self) -> ShutdownCause {
        let mut shutdown = self.shutdown.subscribe();
        // An error is impossible: the sender lives as long as `self`.
        let _ = shutdown.wait_for(|shutdown| *shutdown != Shutdown::NotRequested).await;
        match *self.shutdown.borrow() {
            Shutdown::Requested(cause) => cause,
            Shutdown::NotRequested | Shutdown::Immediate => ShutdownCause::Term,
        }
    }

    /// Whether the process has been told to end.
    pub fn is_ending(&self) -> bool {
        *self.shutdown.borrow() != Shutdown::NotRequested
    }

    /// Sets what runs before [`Self::exit`] ends the process. The first hook stays.
    pub fn set_exit_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        // A process has one access log to flush, so there is one hook.
        let _ = self.exit_hook.set(Box::new(hook));
    }

    /// Runs the exit hook, flushes the operator's log and ends the process.
    pub fn exit(&self, code: i32) -> ! {
        if let Some(hook) = self.exit_hook.get() {
            hook();
        }
        log::logger().flush();
        std::process::exit(code)
    }

    fn receive(&self, signal: c_int) {
        match signal {
            SIGHUP => self.reload.notify_one(),
            SIGTERM => self.receive_term(),
            SIGINT => self.exit(EXIT_INTERRUPTED),
            SIGQUIT => self.hand_over.notify_one(),
            SIGUSR1 => self.reopen.notify_one(),
            _ => {}
        }
    }

    fn receive_term(&self) {
        let mut is_repeated = false;
        self.shutdown.send_modify(|shutdown| {
            is_repeated = *shutdown != Shutdown::NotRequested;
            *shutdown = match is_repeated {
                false => Shutdown::Requested(ShutdownCause::Term),
                true => Shutdown::Immediate,
            };
        });
        if is_repeated {
            self.exit(EXIT_NOW);
        }
    }
}
