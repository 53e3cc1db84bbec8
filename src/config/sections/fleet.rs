//! `fleet`: how nodes exchange the counts of limits with `scope: fleet`.

use std::time::Duration;

use crate::clock::Nanos;
use crate::config::reader::Mapping;
use crate::config::scalars::{duration, share};
use crate::policy::FleetTerms;

/// Smallest error, in parts per million. With less, nodes would publish nearly every key.
const MIN_ERROR_PPM: u32 = 10_000;

/// Bounds of the time between two exchanges: at most ten calls a second for each node, and a count that is older than a
/// minute helps few limits.
const MIN_EVERY: Duration = Duration::from_millis(100);
const MAX_EVERY: Duration = Duration::from_secs(60);

/// `fleet`: the defaults if the section is absent.
pub(crate) fn fleet(root: &mut Mapping<'_>) -> FleetTerms {
    let mut terms = FleetTerms::default();
    let Some(mut map) = root.get("fleet").and_then(|at| at.mapping()) else {
        return terms;
    };
    if let Some(error_ppm) = map.get("error").and_then(|at| at.parse(error)) {
        terms.error_ppm = error_ppm;
    }
    if let Some(between) = map.get("every").and_then(|at| at.parse(every)) {
        terms.every = between;
    }
    map.finish();
    terms
}

/// A share of the limit, in parts per million.
fn error(text: &str) -> Result<u32, String> {
    let ppm = share(text)?;
    match ppm < MIN_ERROR_PPM {
        true => Err(format!("{text:?} is too small; write at least 1%")),
        false => Ok(ppm),
    }
}

fn every(text: &str) -> Result<Nanos, String> {
    let between = duration(text)?;
    if between < MIN_EVERY {
        return Err(format!("{text:?} is too short; write at least 100ms"));
    }
    if between > MAX_EVERY {
        return Err(format!("{text:?} is too long; write at most 60s"));
    }
    Ok(Nanos::from(between))
}
