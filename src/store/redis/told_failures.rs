//! Failures that the log was told of. Several tasks ask one server, and one of them may fail again and again while others succeed:
//! each reason is told once, and again when it has not occurred for a minute.

use parking_lot::Mutex;

use crate::clock::Nanos;

/// A reason that has not occurred for so long is told again.
const QUIET: Nanos = Nanos::from_secs(60);

/// The most reasons that are remembered. With more, the one that occurred longest ago is told again.
const MAX_REASONS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct ToldFailures {
    /// Each reason, and when (monotonic) it occurred last.
    reasons: Mutex<Vec<(String, Nanos)>>,
}

impl ToldFailures {
    /// Records a failure. Returns whether the log has to be told.
    pub(super) fn record(&self, why: &str, now: Nanos) -> bool {
        let mut reasons = self.reasons.lock();
        reasons.retain(|(_, at)| now.saturating_sub(*at) < QUIET);
        if let Some((_, at)) = reasons.iter_mut().find(|(known, _)| known == why) {
            *at = now;
            return false;
        }
        if reasons.len() >= MAX_REASONS {
            let oldest = (0..reasons.len()).min_by_key(|index| reasons[*index].1);
            oldest.map(|index| reasons.swap_remove(index));
        }
        reasons.push((why.to_owned(), now));
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
        for n in 0..50 {
            assert!(told.record(&n.to_string(), at(101 + n)), "each is another one");
        }
        assert_eq!(told.reasons.lock().len(), MAX_REASONS);
    }
}
