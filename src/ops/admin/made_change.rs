//! Makes a change that was read, and records it: also where its caller leaves, or the store answers too late.
//!
//! It runs on a task of its own. What must always hold: a change that holds on any node is in the audit log of the node
//! that was asked for it.

use std::sync::Arc;

use http::StatusCode;

use super::keys::{Unanswered, unanswered};
use crate::clock::Nanos;
use crate::engine::{Engine, KeyCell};
use crate::ops::audit::{AuditEntry, AuditLog, ChangeKind};
use crate::ops::key_changes::KeyChanges;
use crate::policy::{KeyHash, LimitIndex};
use crate::proxy::Live;
use crate::store::redis::{RuleChange, RuleChangeError};

/// Who asks for a change.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) by: String,
    pub(super) from: String,
}

/// A change with all that it needs.
pub(super) struct MadeChange {
    pub(super) engine: Arc<Engine>,
    pub(super) changes: Arc<KeyChanges>,
    pub(super) audit: Arc<AuditLog>,
    pub(super) operator: Operator,
    /// What is told to the store, or to this node.
    pub(super) told: Vec<RuleChange>,
    /// The key that is forgotten in addition.
    pub(super) reset: Option<(Arc<Live>, LimitIndex, KeyCell)>,
    pub(super) entry: AuditEntry,
}

impl MadeChange {
    /// Makes the change. It goes on when the caller leaves.
    pub(super) async fn run(self) -> Result<(), Unanswered> {
        match tokio::spawn(self.make()).await {
            Ok(made) => made,
            Err(error) => Err(Unanswered {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                detail: format!("the change broke off: {error}"),
            }),
        }
    }

    async fn make(mut self) -> Result<(), Unanswered> {
        let told = self.changes.make(&self.told).await;
        if let Err(error) = told {
            if matches!(error, RuleChangeError::Store(failure) if failure.may_have_charged()) {
                self.record("the store did not answer: it may have been made");
            }
            return Err(not_made(&error));
        }
        if let Some((live, limit, cell)) = self.reset.take()
            && let Err(error) = self.engine.reset_key(&live.generation, limit, cell).await
        {
            self.record("the store did not answer: what is counted there may be left");
            return Err(unanswered(error));
        }
        self.record("");
        Ok(())
    }

    /// Records the change, with what is not certain about it.
    fn record(&mut self, doubt: &str) {
        let mut entry = self.entry.clone();
        entry.at = self.engine.date(self.engine.now());
        (entry.by, entry.from) = (self.operator.by.clone(), self.operator.from.clone());
        entry.detail = match (entry.detail.is_empty(), doubt.is_empty()) {
            (_, true) => entry.detail,
            (true, false) => doubt.to_owned(),
            (false, false) => format!("{} ({doubt})", entry.detail),
        };
        self.audit.record(entry);
    }

    /// An entry whose time and operator are filled in when the change is made.
    pub(super) fn entry(
        kind: ChangeKind,
        detail: String,
        target: (String, KeyHash),
        until: Option<Nanos>,
        reason: String,
    ) -> AuditEntry {
        AuditEntry {
            at: Nanos::ZERO,
            by: String::new(),
            from: String::new(),
            kind,
            detail,
            target: Some(target),
            until,
            reason,
        }
    }
}

fn not_made(error: &RuleChangeError) -> Unanswered {
    match error {
        RuleChangeError::Full | RuleChangeError::Foreign | RuleChangeError::HandedOver => {
            Unanswered { status: StatusCode::CONFLICT, detail: error.to_string() }
        }
        RuleChangeError::Lost => Unanswered {
            status: StatusCode::SERVICE_UNAVAILABLE,
            detail: format!("{error}; nothing was changed"),
        },
        RuleChangeError::Store(failure) => Unanswered {
            status: StatusCode::SERVICE_UNAVAILABLE,
            detail: match failure.may_have_charged() {
                true => format!("{error}; the change may have been made: see /overrides"),
                false => format!("{error}; nothing was changed"),
            },
        },
    }
}
