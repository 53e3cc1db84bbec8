//! A server of the store: the script in an interpreter, a clock of its own, and moods.

use tollgate::store::redis::StoreFailure;

use super::link::{Reply, Request};
use support::lua::{Kept, Server as Scripted};

/// One server.
pub(crate) struct Server {
    script: Scripted,
    pub(crate) up: bool,
    /// What it answers to commands that write, if it takes none.
    pub(crate) refuses: Option<&'static str>,
    /// How far its clock is off, in microseconds.
    pub(crate) off: i64,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self { script: Scripted::new(), up: true, refuses: None, off: 0 }
    }

    /// Runs a script at `now`, nanoseconds since the epoch.
    pub(crate) fn answer(&self, request: &Request, now: u64) -> Result<Reply, StoreFailure> {
        self.script.set_time((now / 1_000).saturating_add_signed(self.off));
        self.script.refuse_writes(self.refuses);
        let reply = match request {
            Request::Call(arguments) => self.script.run(arguments).map(Reply::Numbers),
            Request::Script { text, keys, words } => {
                self.script.evaluate(text, keys, words).map(Reply::Texts)
            }
        };
        reply.map_err(|error| {
            let text = error.to_string();
            if text.contains("was not written by tollgate") || text.contains("WRONGTYPE") {
                StoreFailure::Unreadable
            } else if text.contains("OOM") || text.contains("READONLY") {
                StoreFailure::Refused
            } else {
                panic!("the script fails: {text}");
            }
        })
    }

    /// It restarts with nothing on disk.
    pub(crate) fn empty(&self) {
        self.script.empty();
    }

    /// Somebody else writes where a cell lies; says which, if there is any.
    pub(crate) fn spoil(&self, n: usize) -> Option<String> {
        let all = self.script.all();
        let (key, _) = all.get(n % all.len().max(1))?;
        self.script.put(key, Kept::Text("not a cell".to_owned()));
        Some(key.clone())
    }

    /// What was spoilt is taken away.
    pub(crate) fn mend(&self) {
        let spoilt = Kept::Text("not a cell".to_owned());
        for (key, kept) in self.script.all() {
            if kept == spoilt {
                self.script.forget(&key);
            }
        }
    }

    /// What it keeps, for a trace.
    pub(crate) fn kept(&self) -> Vec<String> {
        self.script.all().iter().map(|(key, kept)| format!("{key} = {kept:?}")).collect()
    }
}
