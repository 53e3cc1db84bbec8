//! What a reload did to the counters of each limit.

use std::fmt;
use std::sync::Arc;

/// The names of the limits by what a reload did to them, in the order of the files.
///
/// ```
/// use tollgate::{Limiter, LimiterError, ReloadReport};
///
/// let policy = "version: 1\nlimits: { a: { tier: exact, rate: 1/1s, key: client_ip } }\nroutes: [{ name: site, limits: [a] }]";
/// let limiter = Limiter::builder().policy_text(policy).build()?;
/// let report: ReloadReport = limiter.reload_text(policy.replace("1/1s", "2/1s"))?;
/// assert_eq!((report.converted.len(), report.restarts()), (1, false));
/// # Ok::<(), LimiterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// Limits that are unchanged; their counters continue.
    pub kept: Vec<Arc<str>>,
    /// Limits whose counters are read under another quota.
    pub converted: Vec<Arc<str>>,
    /// Limits whose counters start empty: another key, tier, algorithm or sketch.
    pub restarted: Vec<Arc<str>>,
    /// Limits that are new.
    pub added: Vec<Arc<str>>,
    /// Limits that were removed.
    pub dropped: Vec<Arc<str>>,
}

/// What a reload does to a limit's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carryover {
    Kept,
    Converted,
    Restarted,
}

impl ReloadReport {
    /// Whether the counters of a limit start empty.
    pub const fn restarts(&self) -> bool {
        !self.restarted.is_empty()
    }

    /// Adds a limit that was in the previous policy.
    pub(super) fn add(&mut self, name: &Arc<str>, carryover: Carryover) {
        let list = match carryover {
            Carryover::Kept => &mut self.kept,
            Carryover::Converted => &mut self.converted,
            Carryover::Restarted => &mut self.restarted,
        };
        list.push(Arc::clone(name));
    }
}

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("kept", &self.kept),
            ("converted", &self.converted),
            ("restarted", &self.restarted),
            ("added", &self.added),
            ("dropped", &self.dropped),
        ];
        let mut is_first = true;
        for (label, names) in lists.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{}{label}: {}", if is_first { "" } else { "; " }, names.join(", "))?;
            is_first = false;
        }
        if is_first { f.write_str("no limits") } else { Ok(()) }
    }
}
