//! The audit log: who has changed what, from where, why, and until when.
//!
//! Each change is a line in the operator's log and is kept for `GET /audit`. No value of a key is in it. What must always
//! hold: its memory is bounded, and a text of an operator cannot forge a line.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::log::timestamp;
use crate::clock::Nanos;
use crate::policy::KeyHash;

/// The number of changes that are kept.
const MAX_CHANGES: usize = 1_000;

/// What was changed: the label of `tollgate_admin_changes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The spending of a key was forgotten.
    Reset,
    /// A key was banned.
    Ban,
    /// The ban of a key was lifted.
    Unban,
    /// A key was given another rate, or allowed, or denied.
    Override,
    /// The override of a key was ended.
    EndOverride,
    /// The configuration was read again.
    Reload,
}

impl ChangeKind {
    /// All kinds, in the order of the counters.
    pub const ALL: [Self; 6] =
        [Self::Reset, Self::Ban, Self::Unban, Self::Override, Self::EndOverride, Self::Reload];

    /// The name in the audit log and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Ban => "ban",
            Self::Unban => "unban",
            Self::Override => "override",
            Self::EndOverride => "end_override",
            Self::Reload => "reload",
        }
    }
}

/// One change.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// When, since the Unix epoch.
    pub at: Nanos,
    /// Who.
    pub by: String,
    /// The address that asked.
    pub from: String,
    /// What.
    pub kind: ChangeKind,
    /// What of it: the rate of an override, the outcome of a reload.
    pub detail: String,
    /// The limit and the key.
    pub target: Option<(String, KeyHash)>,
    /// Until when.
    pub until: Option<Nanos>,
    /// Why.
    pub reason: String,
}

/// The latest changes.
#[derive(Debug, Default)]
pub struct AuditLog {
    entries: Mutex<VecDeque<AuditEntry>>,
    counters: [AtomicU64; ChangeKind::ALL.len()],
}

impl AuditLog {
    /// Records a change.
    pub fn record(&self, entry: AuditEntry) {
        log::warn!("audit: {}", entry.json());
        self.counters[entry.kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_CHANGES {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// How often something was changed.
    pub fn count(&self, kind: ChangeKind) -> u64 {
        self.counters[kind as usize].load(Ordering::Relaxed)
    }

    /// The latest `count` changes, newest first.
    pub fn latest(&self, count: usize) -> Vec<Value> {
        self.entries.lock().iter().rev().take(count).map(AuditEntry::json).collect()
    }
}

impl AuditEntry {
    /// JSON escapes line ends and quotes, so that nobody can write a line of another's.
    fn json(&self) -> Value {
        let hash = self.target.as_ref().map(|(_, key)| key.to_string());
        json!({
            "time": timestamp(self.at.into()),
            "by": self.by,
            "from": self.from,
            "change": self.kind.name(),
            "detail": self.detail,
            "limit": self.target.as_ref().map(|(limit, _)| limit),
            "hash": hash,
            "until": self.until.map(|until| timestamp(until.into())),
            "reason": self.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_changes_are_kept_and_all_are_counted() {
        let log = AuditLog::default();
        for n in 0..MAX_CHANGES as u64 + 5 {
            log.record(AuditEntry {
                at: Nanos::from_secs(n),
                by: "token".to_owned(),
                from: "127.0.0.1".to_owned(),
                kind: ChangeKind::Reset,
                detail: String::new(),
                target: None,
                until: None,
                reason: format!("{n}\n\u{2028}audit: forged"),
            });
        }
        assert_eq!(log.count(ChangeKind::Reset), MAX_CHANGES as u64 + 5);
        let latest = log.latest(usize::MAX);
        assert_eq!(latest.len(), MAX_CHANGES);
        assert_eq!(latest[0]["reason"], "1004\n\u{2028}audit: forged");
        assert!(!latest[0].to_string().contains('\n'));
        assert_eq!(log.latest(2).len(), 2);
    }
}
