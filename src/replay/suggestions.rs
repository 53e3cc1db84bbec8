//! Suggested rates, as a report shows them.

use super::names::{LimitLabel, Names};
use super::observer::LimitDemand;
use super::report::{Percentiles, Share, SuggestedRate, counted};
use super::suggest::{KeyShare, LimitLines, PeakMeasure, SuggestedLimit, paste};
use crate::limit::TypedRate;

/// What is suggested for each limit that keys were counted for.
/// `unseen`: how many requests each limit did not see because their keys were banned.
pub(super) fn of(
    demands: &[LimitDemand],
    unseen: &[u64],
    names: &Names,
    share: KeyShare,
) -> Vec<SuggestedRate> {
    let limits = demands.iter().zip(unseen).zip(&names.limits);
    let found = limits.filter_map(|((demand, unseen), label)| {
        let (suggestion, measure) = match demand {
            LimitDemand::Rate(demand) => (demand.settled.suggest(share), demand.settled.measure()),
            LimitDemand::InFlight(demand) => (demand.suggest(share), PeakMeasure::AtOnce),
        };
        let suggested = suggestion.suggested?;
        let keys = suggestion.keys;
        let refused = |share: KeyShare| Share { number: share.count_of(keys), total: keys };
        let (rate, burst) = match suggested {
            SuggestedLimit::Rate(rate) => (TypedRate(rate).to_string(), None),
            SuggestedLimit::Bucket { rate, burst } => {
                (TypedRate(rate).to_string(), Some(u64::from(burst)))
            }
            SuggestedLimit::InFlight(max) => (format!("{max} at once"), None),
        };
        let peaks = suggestion.percentiles;
        let mut sentences = suggestion.certainty;
        if *unseen > 0 {
            sentences.push(format!(
                "{} of keys that a penalty had banned are not in this, and may need more: run it again without the penalty.",
                counted(*unseen, "request")
            ));
        }
        if demand.has_refunds() && measure == PeakMeasure::Burst {
            sentences.push(
                "A bucket may give a little less than a refund back, so the burst has an eighth more than what was used.".to_owned(),
            );
        }
        Some(SuggestedRate {
            limit: std::sync::Arc::clone(&label.name),
            rate,
            burst,
            refuses_keys: refused(suggestion.refuses),
            measure,
            percentiles: Percentiles {
                p50: peaks.p50,
                p90: peaks.p90,
                p99: peaks.p99,
                p99_9: peaks.p999,
                max: peaks.max,
            },
            curve: suggestion
                .curve
                .iter()
                .map(|point| (point.units, refused(point.refuses)))
                .collect(),
            yaml: paste(LimitLines { name: &label.name, settings: &[] }, suggested),
            sentence: sentences.join(" "),
        })
    });
    found.collect()
}

/// Why limits have no suggestion.
pub(super) fn without(
    demands: &[LimitDemand],
    names: &Names,
    found: &[SuggestedRate],
) -> Vec<String> {
    let limits = demands.iter().zip(&names.limits);
    let missing = limits.filter(|(_, label)| found.iter().all(|found| found.limit != label.name));
    let sentence = |(demand, label): (&LimitDemand, &LimitLabel)| {
        let why = match demand {
            LimitDemand::Rate(_) => "no key was judged by its own rate alone",
            LimitDemand::InFlight(_) => "no request with a duration was judged by its own number",
        };
        format!("nothing is suggested for {}: {why}", label.name)
    };
    missing.map(sentence).collect()
}
