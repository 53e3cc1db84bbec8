//! When the log is told that a server is away, and that it is back. A server that is back for moments only, because it answers probes
//! and no charges, is told of once a minute.

use crate::clock::Nanos;

/// A server that is away again so soon was not really back.
const RELAPSE: Nanos = Nanos::SECOND;

/// How often such a server is told of.
const RELAPSE_TOLD_EVERY: Nanos = Nanos::from_secs(60);

/// What the log was told of one server.
#[derive(Debug, Default)]
pub(super) struct AwayLog {
    /// Since when (monotonic) it is away, and whether the log was told.
    away: Option<(Nanos, bool)>,
    /// When it was back last.
    back_at: Option<Nanos>,
    relapse_told_at: Option<Nanos>,
}

impl AwayLog {
    /// The server is away. Returns whether the log has to be told.
    pub(super) fn record_away(&mut self, now: Nanos) -> bool {
        if self.away.is_some() {
            return false;
        }
        let is_within =
            |at: Option<Nanos>, span| at.is_some_and(|at| now.saturating_sub(at) < span);
        let is_relapse = is_within(self.back_at, RELAPSE);
        let is_told = !is_relapse || !is_within(self.relapse_told_at, RELAPSE_TOLD_EVERY);
        if is_relapse && is_told {
            self.relapse_told_at = Some(now);
        }
        self.away = Some((now, is_told));
        is_told
    }

    /// The server is back. Returns for how long it was away (`None`: it was not), and whether the log has to be told.
    pub(super) fn record_back(&mut self, now: Nanos) -> (Option<Nanos>, bool) {
        self.back_at = Some(now);
        match self.away.take() {
            Some((since, is_told)) => (Some(now.saturating_sub(since)), is_told),
            None => (None, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_comes_and_goes_is_told_of_once_a_minute() {
        let (mut log, at) = (AwayLog::default(), Nanos::from_millis);
        assert!(log.record_away(at(1)) && !log.record_away(at(2)));
        assert_eq!(log.record_back(at(500)), (Some(at(499)), true));
        let told = (0..1_200).filter(|n| {
            let is_told = log.record_away(at(600 + 100 * n));
            assert_eq!(log.record_back(at(650 + 100 * n)), (Some(at(50)), is_told));
            is_told
        });
        assert_eq!(told.count(), 2, "in two minutes");
        // An outage of its own is told.
        assert!(log.record_away(at(200_000)));
        assert_eq!(log.record_back(at(200_100)), (Some(at(100)), true));
        assert_eq!(AwayLog::default().record_back(at(1)), (None, true));
    }
}
