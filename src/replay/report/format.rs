//! Numbers, times and texts for people.

use std::time::{Duration, UNIX_EPOCH};

use super::{Share, SuggestedRate};
use crate::clock::{Nanos, RoundedSpan};
use crate::http::is_no_text;
use crate::replay::tally::{KeyNumber, RequestExample};

/// Nanoseconds of a day.
const DAY: u64 = 86_400 * Nanos::SECOND.get();

/// A number with thousands separators.
pub(in crate::replay) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of keys; "about" for an estimate.
pub(super) fn keys(keys: KeyNumber) -> String {
    let about = if keys.is_estimate { "about " } else { "" };
    format!("{about}{}", grouped(keys.number))
}

/// A number with its noun.
pub(in crate::replay) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// A number of keys with its noun.
pub(super) fn counted_keys(number: KeyNumber) -> String {
    let plural = if number.number == 1 { "" } else { "s" };
    format!("{} key{plural}", keys(number))
}

/// A share in per cent. It is 0 or 100 only if it is so exactly.
pub(super) fn percent(share: Share) -> String {
    let Share { number, total } = share;
    if total == 0 || number == 0 {
        return "0 %".to_owned();
    }
    let hundredths = (u128::from(number) * 20_000 / u128::from(total)).div_ceil(2);
    match hundredths {
        _ if number == total => "100 %".to_owned(),
        0 => "< 0.01 %".to_owned(),
        10_000 => "> 99.99 %".to_owned(),
        _ => format!("{}.{:02} %", hundredths / 100, hundredths % 100),
    }
}

/// The same of two numbers.
pub(super) fn percent_of(number: u64, total: u64) -> String {
    percent(Share { number, total })
}

/// A date in seconds.
pub(in crate::replay) fn time(at: Nanos) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from(at)).to_string()
}

/// A date in milliseconds.
pub(super) fn exact_time(at: Nanos) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from(at)).to_string()
}

/// A date as short as a report of such a span allows.
pub(super) fn short_time(at: Nanos, span: Option<(Nanos, Nanos)>) -> String {
    let (first, last) = span.unwrap_or((at, at));
    let text = time(at).replace('T', " ");
    let shown = match (last.get() / DAY).saturating_sub(first.get() / DAY) {
        0 => text.get(11..19),
        1..300 => text.get(5..19),
        _ => text.get(..16),
    };
    shown.unwrap_or(&text).to_owned()
}

/// A span, in days if it is long.
pub(super) fn span(span: Nanos) -> String {
    match span.get() / DAY {
        0..=2 => RoundedSpan(span).to_string(),
        days => format!("{} days", grouped(days)),
    }
}

/// A text of the log: at most `max` characters, and no character that a terminal would obey.
pub(super) fn shown(text: &str, max: usize) -> String {
    let mut shown = String::new();
    let mut width = 0;
    for letter in text.chars() {
        let escaped = is_no_text(letter);
        width += if escaped { letter.escape_default().count() } else { 1 };
        if width > max {
            while shown.chars().count() >= max.max(1) {
                shown.pop();
            }
            shown.push('…');
            return shown;
        }
        match escaped {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// What was asked for: `GET example.com/path`.
pub(super) fn request_line(example: &RequestExample) -> String {
    format!("{} {}{}", example.method, example.host, example.path)
}

/// A suggested rate: `120/1m, burst 20`.
pub(super) fn rate(suggestion: &SuggestedRate) -> String {
    match suggestion.burst {
        Some(burst) => format!("{}, burst {}", suggestion.rate, grouped(burst)),
        None => suggestion.rate.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, expected) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (u64::MAX, "18,446,744,073,709,551,615")]
        {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!([counted(1, "key"), counted(0, "key")], ["1 key", "0 keys"]);
    }

    #[test]
    fn shares_are_nothing_or_all_only_if_they_are() {
        for (number, total, expected) in [
            (0, 0, "0 %"),
            (0, 9, "0 %"),
            (9, 9, "100 %"),
            (1, 3, "33.33 %"),
            (2, 3, "66.67 %"),
            (1, 20_000, "0.01 %"),
            (1, 20_001, "< 0.01 %"),
            (1, u64::MAX, "< 0.01 %"),
            (u64::MAX - 1, u64::MAX, "> 99.99 %"),
        ] {
            assert_eq!(percent_of(number, total), expected, "{number} of {total}");
        }
    }

    #[test]
    fn all_times_and_spans_can_be_shown() {
        assert_eq!(time(Nanos::ZERO), "1970-01-01T00:00:00Z");
        assert_eq!(exact_time(Nanos::from_millis(1_500)), "1970-01-01T00:00:01.500Z");
        assert_eq!(time(Nanos::new(u64::MAX)), "2554-07-21T23:34:33Z");
        let at = Nanos::from_secs(1_700_000_000);
        for (days, expected) in [
            (0, "22:13:20"),
            (1, "11-14 22:13:20"),
            (299, "11-14 22:13:20"),
            (300, "2023-11-14 22:13"),
        ] {
            let last = Nanos::new(at.get() + days * DAY);
            assert_eq!(short_time(at, Some((at, last))), expected);
        }
        assert_eq!(span(Nanos::from_secs(90)), "90 s");
        assert_eq!(span(Nanos::from_secs(86_400)), "24 h");
        assert_eq!(span(Nanos::from_secs(86_400 * 1_100)), "1,100 days");
    }

    #[test]
    fn texts_are_bounded_and_hold_nothing_that_terminals_obey() {
        for (text, max, expected) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("\u{1b}[2J", 20, "\\u{1b}[2J"),
            ("äöü\n", 4, "äöü…"),
            ("\n\n", 3, "\\n…"),
            ("a\u{202e}b", 20, "a\\u{202e}b"),
            ("", 5, ""),
        ] {
            assert_eq!(shown(text, max), expected);
            assert!(expected.chars().count() <= max);
        }
    }
}
