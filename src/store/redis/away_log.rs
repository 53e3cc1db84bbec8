//! When the log is told that a server is away, and that it is back. A server that is back for moments only, because it dies again or
//! answers probes and no charges, is told of once a minute, and as back when it has stayed so. An outage that lasts is always told.

use crate::clock::Nanos;

/// For so long a server has to stay away, or back, until that is told in any case.
const STEADY: Nanos = Nanos::from_secs(5);

/// How often a server that comes and goes is told of.
const TOLD_EVERY: Nanos = Nanos::from_secs(60);

/// What the log has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwayNews {
    /// The server is away.
    Away,
    /// It is away again, soon after it was back.
    ComesAndGoes,
    /// It is back after this time.
    Back(Nanos),
    /// It has come and gone, and stays now.
    Stays,
    /// It answers, and was not away before.
    Answers,
}

/// What the log was told of one server. All times are monotonic.
#[derive(Debug, Default)]
pub(super) struct AwayLog {
    /// The present outage.
    outage: Option<Outage>,
    back_at: Option<Nanos>,
    comes_and_goes_told_at: Option<Nanos>,
    /// Whether the log was not told of the latest return.
    is_return_untold: bool,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Nanos,
    is_told: bool,
}

impl AwayLog {
    /// The server is away, or still is.
    #[must_use]
    pub(super) fn record_away(&mut self, now: Nanos) -> Option<AwayNews> {
        let is_within =
            |at: Option<Nanos>, span| at.is_some_and(|at| now.saturating_sub(at) < span);
        if let Some(outage) = &mut self.outage {
            let is_late = !outage.is_told && now.saturating_sub(outage.since) >= STEADY;
            outage.is_told |= is_late;
            return is_late.then_some(AwayNews::Away);
        }
        let is_told = !is_within(self.back_at, STEADY);
        self.outage = Some(Outage { since: now, is_told });
        if is_told {
            return Some(AwayNews::Away);
        }
        if is_within(self.comes_and_goes_told_at, TOLD_EVERY) {
            return None;
        }
        self.comes_and_goes_told_at = Some(now);
        Some(AwayNews::ComesAndGoes)
    }

    /// The server is back.
    #[must_use]
    pub(super) fn record_back(&mut self, now: Nanos) -> Option<AwayNews> {
        let Some(Outage { since, is_told }) = self.outage.take() else {
            return Some(AwayNews::Answers);
        };
        self.back_at = Some(now);
        let span = now.saturating_sub(since);
        self.is_return_untold = !is_told && span < STEADY;
        (!self.is_return_untold).then_some(AwayNews::Back(span))
    }

    /// The server is there.
    #[must_use]
    pub(super) fn record_there(&mut self, now: Nanos) -> Option<AwayNews> {
        let stays = self.outage.is_none()
            && self.is_return_untold
            && self.back_at.is_some_and(|at| now.saturating_sub(at) >= STEADY);
        self.is_return_untold &= !stays;
        stays.then_some(AwayNews::Stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn a_server_that_comes_and_goes_is_told_of_once_a_minute_and_when_it_stays() {
        let mut log = AwayLog::default();
        assert_eq!(log.record_away(at(1)), Some(AwayNews::Away));
        assert_eq!((log.record_away(at(2)), log.record_there(at(3))), (None, None));
        assert_eq!(log.record_back(at(500)), Some(AwayNews::Back(at(499))));
        let mut told = Vec::new();
        for n in 0..1_200 {
            told.extend(log.record_away(at(600 + 100 * n)));
            assert_eq!(log.record_back(at(650 + 100 * n)), None);
            assert_eq!(log.record_there(at(660 + 100 * n)), None);
        }
        assert_eq!(told, [AwayNews::ComesAndGoes; 2], "in two minutes");
        assert_eq!(log.record_there(at(125_000)), None);
        assert_eq!(log.record_there(at(125_600)), Some(AwayNews::Stays));
        assert_eq!(log.record_there(at(125_700)), None);
        // An outage of its own is told at once.
        assert_eq!(log.record_away(at(200_000)), Some(AwayNews::Away));
        assert_eq!(log.record_back(at(200_100)), Some(AwayNews::Back(at(100))));
        // One that answers for the first time has not come and gone.
        let mut log = AwayLog::default();
        assert_eq!(log.record_back(at(1)), Some(AwayNews::Answers));
        assert_eq!(log.record_away(at(900)), Some(AwayNews::Away));
    }

    #[test]
    fn an_outage_that_lasts_is_told_whatever_came_before() {
        let mut log = AwayLog::default();
        for begin in [0, 1_000, 2_000] {
            let _news = log.record_away(at(begin));
            let _news = log.record_back(at(begin + 500));
        }
        assert_eq!(log.record_away(at(3_000)), None);
        assert_eq!(log.record_away(at(7_999)), None);
        assert_eq!(log.record_away(at(8_000)), Some(AwayNews::Away));
        assert_eq!(log.record_away(at(9_000)), None);
        assert_eq!(log.record_back(at(90_000)), Some(AwayNews::Back(at(87_000))));
        assert_eq!(log.record_there(at(99_000)), None);
        // One of which nothing was heard before its end.
        let _news = log.record_away(at(91_000));
        assert_eq!(log.record_back(at(97_000)), Some(AwayNews::Back(at(6_000))));
    }
}
