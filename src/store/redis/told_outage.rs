//! An outage of which the log is told once when it begins, and once when it has been over for a while. What fails every other time
//! is one outage.

use crate::clock::Nanos;

/// For so long everything has to succeed until an outage is over.
const STEADY: Nanos = Nanos::from_secs(5);

/// What the log was told last.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToldOutage {
    is_told: bool,
    /// When (monotonic) something failed last.
    failed_at: Nanos,
}

impl ToldOutage {
    /// Something fails. Returns whether the log has to be told that an outage begins.
    #[must_use]
    pub const fn fail(&mut self, now: Nanos) -> bool {
        self.failed_at = now;
        !std::mem::replace(&mut self.is_told, true)
    }

    /// Something succeeds. Returns whether the log has to be told that the outage is over.
    #[must_use]
    pub fn succeed(&mut self, now: Nanos) -> bool {
        let is_over = self.is_told && now.saturating_sub(self.failed_at) >= STEADY;
        self.is_told &= !is_over;
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_while_failures_alternate_with_successes() {
        let (mut outage, at) = (ToldOutage::default(), Nanos::from_secs);
        assert!(!outage.succeed(at(1)));
        assert!(outage.fail(at(2)));
        for second in 3..60 {
            assert!(!outage.succeed(at(second)) && !outage.fail(at(second)), "{second}");
        }
        assert!(!outage.succeed(at(63)) && outage.succeed(at(64)) && !outage.succeed(at(65)));
        assert!(outage.fail(at(66)));
    }
}
