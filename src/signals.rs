//! Signals, as requests of the operator.
//!
//! HUP asks for a reload, QUIT for a handover to a successor, USR1 for the access log to be reopened. TERM asks for an
//! orderly end. INT, or a second TERM, asks for an immediate one. USR2 does nothing. XFSZ (a file
//! may not grow, `RLIMIT_FSIZE`) is treated like a full disk: the write fails, and its line is dropped and counted. By
//! default USR2 and XFSZ would end the process.
//!
//! This file only records what was requested; `ops` and `edge` carry it out. A request to end is never withdrawn.

use std::os::raw::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals as SignalStream;
use tokio::sync::{Notify, watch};

/// Exit status after INT: 128 + the signal's number, as shells report it.
const EXIT_INTERRUPTED: i32 = 130;

/// Exit status after a second TERM.
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
    /// The status of the exit, once its hook has run.
    exit: OnceLock<i32>,
    /// The first cause stays; `None`: the process goes on.
    shutdown: watch::Sender<Option<ShutdownCause>>,
    /// Whether a TERM has arrived.
    is_terminated: AtomicBool,
}

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownCause {
    /// TERM: drain, then end.
    Term,
    /// A successor accepts connections instead of this process.
    Replaced,
    /// INT: it ends as soon as its state is saved.
    Exit,
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
            exit: OnceLock::new(),
            shutdown: watch::Sender::new(None),
            is_terminated: AtomicBool::new(false),
        }
    }

    /// A successor accepts connections from now on. Ignored if the process is ending already.
    pub fn replace(&self) {
        self.shut_down(ShutdownCause::Replaced);
    }

    fn shut_down(&self, cause: ShutdownCause) {
        self.shutdown.send_if_modified(|shutdown| {
            let is_first = shutdown.is_none();
            shutdown.get_or_insert(cause);
            is_first
        });
    }

    /// Returns when a successor accepts connections instead of this process.
    pub async fn until_replaced(&self) {
        let replaced = Some(ShutdownCause::Replaced);
        // An error is impossible: the sender lives as long as `self`.
        let _ = self.shutdown.subscribe().wait_for(|shutdown| *shutdown == replaced).await;
    }

    /// Returns when the process is told to end.
    pub async fn until_shutdown(&self) -> ShutdownCause {
        let mut shutdown = self.shutdown.subscribe();
        let cause = shutdown.wait_for(Option::is_some).await;
        // There is one: the sender lives as long as `self`.
        cause.ok().and_then(|cause| *cause).unwrap_or(ShutdownCause::Term)
    }

    /// Whether the process has been told to end.
    pub fn is_ending(&self) -> bool {
        self.shutdown.borrow().is_some()
    }

    /// Sets what runs before [`Self::exit`] ends the process. The first hook stays.
    pub fn set_exit_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        // A process has one access log to flush, so there is one hook.
        let _ = self.exit_hook.set(Box::new(hook));
    }

    /// Runs the exit hook, flushes the operator's log and ends the process. Whoever calls it later waits for the first: what
    /// the hook saves must not be cut.
    pub fn exit(&self, code: i32) -> ! {
        let code = self.exit.get_or_init(|| {
            self.shut_down(ShutdownCause::Exit);
            if let Some(hook) = self.exit_hook.get() {
                hook();
            }
            log::logger().flush();
            code
        });
        std::process::exit(*code)
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
        if self.is_terminated.swap(true, Ordering::Relaxed) {
            self.exit(EXIT_NOW);
        }
        self.shut_down(ShutdownCause::Term);
    }
}
