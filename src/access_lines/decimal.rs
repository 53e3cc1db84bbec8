//! Numbers with a fraction and a unit, as exact nanoseconds.

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Seconds,
    Millis,
    Micros,
    Nanos,
}

impl TimeUnit {
    /// Nanoseconds of the unit.
    pub(super) const fn nanos(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
            Self::Nanos => 1,
        }
    }

    /// The unit that the end of a name tells: `took_ms`.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let (_, end) = name.rsplit_once(['_', '-'])?;
        match end {
            "s" | "sec" | "secs" | "seconds" => Some(Self::Seconds),
            "ms" | "msec" | "millis" => Some(Self::Millis),
            "us" | "usec" | "micros" => Some(Self::Micros),
            "ns" | "nsec" | "nanos" => Some(Self::Nanos),
            _ => None,
        }
    }
}

/// A number that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecimalNanos {
    /// Its value in nanoseconds; fractions of one are cut.
    pub(super) nanos: u64,
    /// Nanoseconds of its last digit, as a power of 1,000.
    pub(super) resolution: u64,
}

/// Reads `12`, `0.250` or `1.5e-3` in a unit. `None` for other text, negative numbers, and more than 2^64 - 1 ns.
pub(super) fn decimal(text: &str, unit: TimeUnit) -> Option<DecimalNanos> {
    if text.bytes().any(|byte| matches!(byte, b'e' | b'E')) {
        return exponential(text, unit);
    }
    let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
    if integer.is_empty() || !integer.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut nanos = integer.parse::<u64>().ok()?.checked_mul(unit.nanos())?;
    let mut step = unit.nanos();
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() {
            return None;
        }
        step /= 10;
        nanos = nanos.checked_add(step * u64::from(digit - b'0'))?;
    }
    let resolution = match fraction.len() {
        0 => unit.nanos(),
        1..=3 => unit.nanos() / 1_000,
        // A float prints seven digits for a time since 1970, and is exact to about 200 ns.
        4..=8 => unit.nanos() / 1_000_000,
        _ => 1,
    };
    Some(DecimalNanos { nanos, resolution: resolution.max(1) })
}

/// Reads a number with an exponent. A float holds a time since 1970 to about 200 ns, and that is confessed as a
/// resolution of 1 microsecond.
fn exponential(text: &str, unit: TimeUnit) -> Option<DecimalNanos> {
    let value = text.parse::<f64>().ok()? * unit.nanos() as f64;
    let fits = value.is_finite() && (0.0..1.8e19).contains(&value);
    fits.then_some(DecimalNanos { nanos: value as u64, resolution: TimeUnit::Micros.nanos() })
}

/// Reads a duration. A suffix of the text (`12ms`, `1.5s`, `300us`) goes before the unit.
pub(super) fn duration(text: &str, unit: TimeUnit) -> Option<DecimalNanos> {
    let suffixes = [
        ("ms", TimeUnit::Millis),
        ("us", TimeUnit::Micros),
        ("\u{b5}s", TimeUnit::Micros),
        ("ns", TimeUnit::Nanos),
        ("s", TimeUnit::Seconds),
    ];
    let named =
        suffixes.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)));
    let (number, unit) = named.unwrap_or((text, unit));
    decimal(number.trim_end(), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact() {
        let check = |text: &str, unit, expected: Option<(u64, u64)>| {
            let read = decimal(text, unit).map(|read| (read.nanos, read.resolution));
            assert_eq!(read, expected, "{text}");
        };
        check("1646861401.5241024", TimeUnit::Seconds, Some((1_646_861_401_524_102_400, 1_000)));
        check("1700000000.123", TimeUnit::Seconds, Some((1_700_000_000_123_000_000, 1_000_000)));
        check("1700000000", TimeUnit::Seconds, Some((1_700_000_000_000_000_000, 1_000_000_000)));
        check("12.5", TimeUnit::Millis, Some((12_500_000, 1_000)));
        check("0.00000000019", TimeUnit::Seconds, Some((0, 1)));
        check("9.25e-05", TimeUnit::Seconds, Some((92_500, 1_000)));
        for wrong in ["", ".", "-1", "1.x", "x", "99999999999999999999", "1e300", "+1"] {
            check(wrong, TimeUnit::Seconds, None);
        }
    }

    #[test]
    fn a_suffix_tells_the_unit() {
        let nanos = |text, unit| duration(text, unit).map(|read| (read.nanos, read.resolution));
        assert_eq!(nanos("12ms", TimeUnit::Seconds), Some((12_000_000, 1_000_000)));
        assert_eq!(nanos("1.5 s", TimeUnit::Millis), Some((1_500_000_000, 1_000_000)));
        assert_eq!(nanos("300\u{b5}s", TimeUnit::Seconds), Some((300_000, 1_000)));
        assert_eq!(nanos("0.25", TimeUnit::Seconds), Some((250_000_000, 1_000_000)));
        assert_eq!(nanos("3", TimeUnit::Seconds), Some((3_000_000_000, 1_000_000_000)));
        assert_eq!(nanos("-", TimeUnit::Seconds), None);
        assert_eq!(TimeUnit::of_name("duration_us"), Some(TimeUnit::Micros));
        assert_eq!(TimeUnit::of_name("duration"), None);
    }
}
