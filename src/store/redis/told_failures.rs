//! Failures that the log was told of. Several tasks ask one server, and one of them may fail again and again while others succeed:
//! each reason is told once, and again when it has not occurred for a minute. A server that fails for ever other reasons is told of
//! a bounded number of times.

use parking_lot::Mutex;

use crate::clock::Nanos;

/// A reason that has not occurred for so long is told again.
const QUIET: Nanos = Nanos::from_secs(60);

/// The most reasons that are told within that time.
const MAX_REASONS: usize = 16;

/// Characters of a reason by which it is known: what follows may be other each time.
const KIND: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ToldFailures {
    /// Each reason, and when (monotonic) it occurred last.
    reasons: Mutex<Vec<(String, Nanos)>>,
}

impl ToldFailures {
    /// Records a failure. Returns whether the log has to be told.
    pub(super) fn record(&self, why: &str, now: Nanos) -> bool {
        let why: String = why.chars().take(KIND).collect();
        let mut reasons = self.reasons.lock();
        reasons.retain(|(_, at)| now.saturating_sub(*at) < QUIET);
        if let Some((_, at)) = reasons.iter_mut().find(|(known, _)| *known == why) {
            *at = now;
            return false;
        }
        if reasons.len() >= MAX_REASONS {
            return false;
        }
        reasons.push((why, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_until_it_has_been_quiet_for_a_minute() {
        let (told, at) = (ToldFailures::default(), Nanos::from_secs);
        assert!(told.record("no right", at(1)) && told.record("no room", at(1)));
        for second in 2..100 {
            assert!(!told.record("no right", at(second)));
        }
        assert!(told.record("no room", at(100)));
        let others = (0..50).filter(|n| told.record(&n.to_string(), at(101))).count();
        assert_eq!(others, MAX_REASONS - 2, "each is another one");
        assert!(told.record("no link", at(200)));
    }
}
