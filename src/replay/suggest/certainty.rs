//! How sure a suggestion is, in sentences.

use super::share::KeyShare;
use crate::clock::{Nanos, RoundedSpan};
use crate::replay::report::grouped;

/// A suggestion rests on at least this many windows.
const MIN_WINDOWS: u64 = 10;

/// With this many refused keys, chance moves the share by about a fifth.
const STEADY_KEYS: u64 = 25;

/// A day has its busiest hour.
const DAY: Nanos = Nanos::from_secs(86_400);

/// What a suggestion rests on.
pub(super) struct Evidence {
    pub(super) keys: u64,
    pub(super) sampling_ratio: u64,
    pub(super) left_out: u64,
    /// Asked for.
    pub(super) share: KeyShare,
    /// What the suggested limit refuses.
    pub(super) refuses: KeyShare,
    /// From the first request to the last.
    pub(super) span: Nanos,
    pub(super) window: Nanos,
}

/// The sentences, most important first.
pub(super) fn sentences(evidence: &Evidence) -> Vec<String> {
    let mut sentences = vec![keys_sentence(evidence)];
    sentences.extend(length_sentence(evidence));
    if evidence.sampling_ratio > 1 {
        sentences.push(format!(
            "One in {} keys was counted, chosen by its hash, because the log has too many.",
            evidence.sampling_ratio
        ));
    }
    match evidence.left_out {
        0 => {}
        1 => sentences.push("1 key with a rate of its own is left out.".to_owned()),
        keys => sentences.push(format!("{keys} keys with rates of their own are left out.")),
    }
    sentences
}

fn keys_sentence(evidence: &Evidence) -> String {
    let Evidence { keys, share, .. } = *evidence;
    if keys == 0 {
        return "No key met this limit.".to_owned();
    }
    if evidence.refuses > share {
        return format!("This limit refuses more than {share} of {}.", key_count(keys));
    }
    let Some(needed) = share.keys_for(1) else {
        return format!("The limit admits the largest use of {}.", key_count(keys));
    };
    let asked = share.count_of(keys);
    if asked == 0 {
        return format!(
            "At least {} keys are needed for a share of {share}; the log has {}, so the limit admits the largest use \
             of any key.",
            grouped(needed),
            grouped(keys)
        );
    }
    let refused = evidence.refuses.count_of(keys);
    if refused == 0 {
        return format!("No use of {} is above the limit.", key_count(keys));
    }
    if asked < STEADY_KEYS {
        let steady = share.keys_for(STEADY_KEYS).unwrap_or(u64::MAX);
        return format!(
            "Of {} keys only {} above the limit, so chance moves it strongly; from {} keys on it is steady.",
            grouped(keys),
            if refused == 1 { "1 is".to_owned() } else { format!("{refused} are") },
            grouped(steady)
        );
    }
    // The number of refused keys varies by its square root.
    let percent = 100u64.div_ceil(refused.isqrt().max(1));
    format!(
        "{} of {} keys are above the limit; chance alone moves that number by about {percent} %.",
        grouped(refused),
        grouped(keys)
    )
}

fn length_sentence(evidence: &Evidence) -> Option<String> {
    let Evidence { span, window, .. } = *evidence;
    if evidence.keys == 0 {
        return None;
    }
    let (log, length) = (RoundedSpan(span), RoundedSpan(window));
    if span < window.saturating_mul(MIN_WINDOWS) {
        return Some(format!(
            "The log covers {log}, less than {MIN_WINDOWS} windows of {length}: longer logs have larger peaks."
        ));
    }
    (span < DAY)
        .then(|| format!("The log covers {log}, which may not have the busiest hour of a day."))
}

fn key_count(keys: u64) -> String {
    if keys == 1 { "1 key".to_owned() } else { format!("all {} keys", grouped(keys)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_and_short_logs_are_admitted() {
        let hours = |hours: u64| Nanos::from_secs(3_600 * hours);
        for (keys, millionths, span, expected) in [
            (0, 1_000, hours(48), vec!["No key met this limit."]),
            (
                300,
                1_000,
                hours(48),
                vec![
                    "At least 1,000 keys are needed for a share of 0.1 %; the log has 300, so the limit admits the \
                     largest use of any key.",
                ],
            ),
            (
                2_000,
                1_000,
                hours(9),
                vec![
                    "Of 2,000 keys only 2 are above the limit, so chance moves it strongly; from 25,000 keys on it \
                     is steady.",
                    "The log covers 9 h, less than 10 windows of 60 min: longer logs have larger peaks.",
                ],
            ),
            (
                100_000,
                1_000,
                hours(12),
                vec![
                    "100 of 100,000 keys are above the limit; chance alone moves that number by about 10 %.",
                    "The log covers 12 h, which may not have the busiest hour of a day.",
                ],
            ),
            (1, 0, hours(48), vec!["The limit admits the largest use of 1 key."]),
        ] {
            let share = KeyShare::from_millionths(millionths);
            let evidence = Evidence {
                keys,
                sampling_ratio: 1,
                left_out: 0,
                share,
                refuses: share,
                span,
                window: hours(1),
            };
            assert_eq!(sentences(&evidence), expected);
        }
    }
}
