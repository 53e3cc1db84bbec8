//! What an operator had in mind who wrote a value in the spelling of another product. Each guess is a text for the cure
//! of an error; it is never used as a value.

/// The longest text that is looked at; a longer one is no value with a slip.
const MAX_TEXT: usize = 64;

/// A number with its decimals, as a numerator and a power of ten.
struct Decimal {
    digits: u64,
    scale: u64,
}

/// `write 60/1m` for `60/min`, `60 per minute`, `100 r/s`, `1.5/s` and so on.
pub(super) fn rate_cure(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let lower = text.trim().to_ascii_lowercase();
    if let Ok(count) = lower.parse::<u64>() {
        return Some(format!("say in which time: write {count}/s, {count}/1m or {count}/1h"));
    }
    // `100 nodelay`, `rate=10r/s` and `10r/s burst=5` of NGINX.
    let lower = lower.strip_prefix("rate=").unwrap_or(&lower);
    let lower = lower.split(" burst").next().unwrap_or(lower).trim();
    let (count, unit) = match lower.split_once('/').or_else(|| lower.split_once(" per ")) {
        Some((count, unit)) => (count, unit),
        None => [("rps", "s"), ("rpm", "m"), ("rph", "h")]
            .iter()
            .find_map(|(suffix, unit)| Some((lower.strip_suffix(suffix)?, *unit)))?,
    };
    let count = count.trim().trim_end_matches("requests").trim_end_matches("reqs");
    let count = count.trim_end_matches("req").trim_end_matches('r').trim();
    let Decimal { digits, scale } = decimal(count)?;
    let (number, unit) = number_and_unit(unit)?;
    // A rate of 1.5/s is one of 3/2s.
    let divisor = gcd(digits, scale).max(1);
    let (digits, number) = (digits / divisor, number.checked_mul(scale / divisor)?);
    if digits == 0 {
        return None;
    }
    Some(match (number, unit) {
        (1, "s") => format!("write {digits}/s"),
        (number, unit) => format!("write {digits}/{number}{unit}"),
    })
}

/// `write 5m` for `5 min`, `90m` for `1h30m`, `1500ms` for `1.5s` and so on.
pub(super) fn duration_cure(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let lower = text.trim().to_ascii_lowercase();
    if let Ok(number) = lower.parse::<u64>() {
        return Some(format!("say in which unit: write {number}s or {number}ms"));
    }
    let mut millis: u64 = 0;
    let mut rest = lower.as_str();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let Decimal { digits, scale } = decimal(number)?;
        let unit = unit_millis(unit)?;
        millis = millis.checked_add(digits.checked_mul(unit)?.checked_div(scale)?)?;
        rest = after.trim_start();
    }
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let (unit, size) =
        units.into_iter().find(|(_, size)| millis.is_multiple_of(*size) && millis > 0)?;
    Some(format!("write {}{unit}", millis / size))
}

/// `write 64KiB` for `64K`, `64kb` and `64 KiB`.
pub(super) fn size_cure(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = lower.split_at(digits);
    let Decimal { digits, scale } = decimal(number)?;
    let units = ["b", "kib", "mib", "gib"];
    let unit = match unit.trim() {
        "b" | "byte" | "bytes" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        _ => return None,
    };
    let bytes = digits.checked_mul(1 << (10 * unit))?.checked_div(scale)?;
    let unit = (0..units.len()).rev().find(|unit| bytes.is_multiple_of(1 << (10 * unit)))?;
    let names = ["B", "KiB", "MiB", "GiB"];
    Some(format!("write {}{}", bytes >> (10 * unit), names[unit]))
}

/// `write 10000` for `10,000`, `10_000`, `10k` and `1e4`.
pub(super) fn integer_cure(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    // A prefix of an address: /64.
    let bare = text.strip_prefix('/').unwrap_or(text);
    let plain: String = bare.chars().filter(|c| !matches!(c, ',' | '_' | ' ' | '\'')).collect();
    let plain = plain.to_ascii_lowercase();
    if let Some(first) = text.split(' ').next().filter(|_| text.contains(' '))
        && first.parse::<u64>().is_ok()
        && plain.parse::<u64>().is_err()
    {
        return Some(format!("write {first} and nothing behind it"));
    }
    let number = match plain.split_once('e') {
        Some((digits, zeros)) => {
            let zeros = zeros.parse().ok().filter(|zeros| *zeros <= 9)?;
            digits.parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(zeros)?)?
        }
        None => {
            let Decimal { digits, scale } = decimal(&plain)?;
            (digits % scale == 0).then_some(digits / scale)?
        }
    };
    (number.to_string() != text).then(|| format!("write {number}"))
}

/// `write true` for `yes` and `on`.
pub(super) fn boolean_cure(text: &str) -> Option<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "1" | "enabled" => Some("write true"),
        "false" | "no" | "off" | "n" | "0" | "disabled" | "none" => Some("write false"),
        _ => None,
    }
}

/// A number with at most three decimals, and `k` for thousands.
fn decimal(text: &str) -> Option<Decimal> {
    let text: String = text.chars().filter(|c| !matches!(c, ',' | '_' | ' ')).collect();
    let (text, thousand) = match text.strip_suffix('k') {
        Some(text) => (text, 1_000),
        None => (text.as_str(), 1),
    };
    let (number, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let digits: u64 = format!("{number}{decimals}").parse().ok()?;
    Some(Decimal { digits: digits.checked_mul(thousand)?, scale })
}

/// `min`, `1 minute` or `60s`: a number and the unit as it is written here.
fn number_and_unit(text: &str) -> Option<(u64, &'static str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = if number.is_empty() { 1 } else { number.parse().ok()? };
    // `60/60`: of seconds, as most products count.
    let unit = if unit.trim().is_empty() { "s" } else { unit.trim() };
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let millis = unit_millis(unit)?;
    match units.iter().find(|(_, size)| *size == millis) {
        Some((name, _)) => Some((number, name)),
        // A week.
        None => Some((number.checked_mul(millis / 86_400_000)?, "d")),
    }
}

fn unit_millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" | "msec" | "millis" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        "w" | "week" | "weeks" => 7 * 86_400_000,
        _ => return None,
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_other_products_are_understood() {
        for (typed, expected) in [
            ("60/min", "write 60/1m"),
            ("60/minute", "write 60/1m"),
            ("60 per minute", "write 60/1m"),
            ("60 requests per 5 minutes", "write 60/5m"),
            ("100 r/s", "write 100/s"),
            ("10r/s", "write 10/s"),
            ("rate=10r/m", "write 10/1m"),
            ("1.5/s", "write 3/2s"),
            ("0.5/s", "write 1/2s"),
            ("2.5/m", "write 5/2m"),
            ("10rps", "write 10/s"),
            ("1k/s", "write 1000/s"),
            ("10,000/h", "write 10000/1h"),
            ("60/60", "write 60/60s"),
            ("5/S", "write 5/s"),
            ("5 / s", "write 5/s"),
            ("100/week", "write 100/7d"),
            ("10", "say in which time: write 10/s, 10/1m or 10/1h"),
        ] {
            assert_eq!(rate_cure(typed).as_deref(), Some(expected), "{typed}");
        }
        for typed in
            ["", "/", "fast", "0/min", "a/s", "1.23456/s", "99999999999999999999/s", "1/1y"]
        {
            assert_eq!(rate_cure(typed), None, "{typed}");
        }
    }

    #[test]
    fn durations_sizes_and_numbers_of_other_products_are_understood() {
        for (typed, expected) in [
            ("5 min", "write 5m"),
            ("1h30m", "write 90m"),
            ("1.5s", "write 1500ms"),
            ("10S", "write 10s"),
            ("1 week", "write 7d"),
            ("30sec", "write 30s"),
            ("60", "say in which unit: write 60s or 60ms"),
        ] {
            assert_eq!(duration_cure(typed).as_deref(), Some(expected), "{typed}");
        }
        for (typed, expected) in [
            ("64K", "write 64KiB"),
            ("64kb", "write 64KiB"),
            ("64 KiB", "write 64KiB"),
            ("1.5MiB", "write 1536KiB"),
            ("1g", "write 1GiB"),
        ] {
            assert_eq!(size_cure(typed).as_deref(), Some(expected), "{typed}");
        }
        for (typed, expected) in [
            ("10,000", "write 10000"),
            ("10_000", "write 10000"),
            ("10k", "write 10000"),
            ("1e4", "write 10000"),
            ("5.0", "write 5"),
            ("10 nodelay", "write 10 and nothing behind it"),
        ] {
            assert_eq!(integer_cure(typed).as_deref(), Some(expected), "{typed}");
        }
        for typed in ["", "x", "1y", "-", "1e", "1e99", "\u{e9}"] {
            assert_eq!(duration_cure(typed), None, "{typed}");
            assert_eq!(size_cure(typed), None, "{typed}");
            assert_eq!(integer_cure(typed), None, "{typed}");
        }
    }
}
