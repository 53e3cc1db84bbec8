//! Suggested rates, as a report shows them.

use super::names::Names;
use super::observer::{LimitDemand, RateDemand};
use super::report::{Percentiles, Share, SuggestedRate};
use super::suggest::{KeyShare, LimitLines, SuggestedLimit, Suggestion, paste};
use crate::limit::TypedRate;

/// The suggestion for a rate. Where answers give units back, what requests hold until then is added: each of both refuses half
/// of the share.
fn with_held(demand: &RateDemand, share: KeyShare) -> Suggestion {
    let Some(held) = &demand.held else {
        return demand.settled.suggest(share);
    };
    let half = KeyShare::from_millionths(share.millionths() / 2);
    let (mut suggestion, held) = (demand.settled.suggest(half), held.suggest(half));
    let Some(SuggestedLimit::InFlight(units)) = held.suggested else {
        return suggestion;
    };
    suggestion.suggested = suggestion.suggested.map(|suggested| suggested.with_more(units));
    let refuses = suggestion.refuses.millionths().saturating_add(held.refuses.millionths());
    suggestion.refuses = KeyShare::from_millionths(refuses);
    suggestion.certainty.push(format!(
        "{units} of the units are for requests that wait for their answers, which may give units back."
    ));
    suggestion
}

/// What is suggested for each limit that keys were counted for.
pub(super) fn of(demands: &[LimitDemand], names: &Names, share: KeyShare) -> Vec<SuggestedRate> {
    let limits = demands.iter().zip(&names.limits);
    let found = limits.filter_map(|(demand, label)| {
        let suggestion = match demand {
            LimitDemand::Rate(demand) => with_held(demand, share),
            LimitDemand::InFlight(demand) => demand.suggest(share),
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
        Some(SuggestedRate {
            limit: std::sync::Arc::clone(&label.name),
            rate,
            burst,
            refuses_keys: refused(suggestion.refuses),
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
            sentence: suggestion.certainty.join(" "),
        })
    });
    found.collect()
}
