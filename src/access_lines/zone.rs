//! The time zone of stamps that name none.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::clock::Nanos;

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone {
    rule: ZoneRule,
}

#[derive(Clone, Debug)]
enum ZoneRule {
    /// Seconds east of Greenwich.
    Fixed(i64),
    Named(TimeZone),
}

/// The offset of a zone at a local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalOffset {
    /// Seconds east of Greenwich.
    pub(super) seconds: i64,
    /// Whether the clock shows that time twice, or leaves it out.
    pub(super) is_doubtful: bool,
}

/// A time zone that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown time zone \"{name}\"; write UTC, an offset such as +02:00, or a name such as Europe/Berlin"
)]
pub struct ZoneError {
    /// What was written.
    pub name: String,
}

impl Zone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self { rule: ZoneRule::Fixed(0) };

    /// Reads `UTC`, `Z`, an offset (`+02:00`, `-0530`) or a name of the IANA database (`Europe/Berlin`).
    pub fn parse(text: &str) -> Result<Self, ZoneError> {
        if text.eq_ignore_ascii_case("utc") || text.eq_ignore_ascii_case("z") {
            return Ok(Self::UTC);
        }
        let rule = match offset(text.as_bytes()) {
            Some(seconds) => ZoneRule::Fixed(seconds),
            None => match TimeZone::get(text) {
                Ok(zone) => ZoneRule::Named(zone),
                Err(_) => return Err(ZoneError { name: text.to_owned() }),
            },
        };
        Ok(Self { rule })
    }

    /// The offset at a local time, which is given as seconds since 1970-01-01 00:00 local time. Of an hour that the clock shows
    /// twice in autumn, the first is taken: a log does not tell them apart.
    pub(super) fn offset_at(&self, local: i64) -> Option<LocalOffset> {
        match &self.rule {
            ZoneRule::Fixed(seconds) => Some(LocalOffset { seconds: *seconds, is_doubtful: false }),
            ZoneRule::Named(zone) => {
                let civil = Timestamp::from_second(local).ok()?.to_zoned(TimeZone::UTC).datetime();
                let found = zone.to_ambiguous_timestamp(civil);
                let is_doubtful = found.is_ambiguous();
                let utc = found.compatible().ok()?;
                Some(LocalOffset { seconds: local - utc.as_second(), is_doubtful })
            }
        }
    }

    /// The instant of a local time as `2026-11-24T08:00:00`.
    pub fn instant(&self, local: &str) -> Option<Nanos> {
        let local: jiff::civil::DateTime = local.parse().ok()?;
        let utc = match &self.rule {
            ZoneRule::Fixed(seconds) => {
                let offset = jiff::tz::Offset::from_seconds(i32::try_from(*seconds).ok()?).ok()?;
                offset.to_timestamp(local).ok()?
            }
            ZoneRule::Named(zone) => zone.to_ambiguous_timestamp(local).compatible().ok()?,
        };
        u64::try_from(utc.as_nanosecond()).ok().map(Nanos::new)
    }
}

/// Reads `+02:00`, `+0200` or `+02` as seconds.
pub(super) fn offset(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h, i, b':', m, n] | [h, i, m, n] => (two_digits(*h, *i)?, two_digits(*m, *n)?),
        [h, i] => (two_digits(*h, *i)?, 0),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3_600 + minutes * 60))
}

/// A number of two digits.
pub(super) fn two_digits(tens: u8, units: u8) -> Option<i64> {
    (tens.is_ascii_digit() && units.is_ascii_digit())
        .then(|| i64::from(tens - b'0') * 10 + i64::from(units - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_read() {
        let offset = |name: &str, local| Zone::parse(name).unwrap().offset_at(local).unwrap();
        let at = |name: &str, local| offset(name, local).seconds;
        assert_eq!(at("UTC", 0), 0);
        assert_eq!(at("+02:00", 0), 7_200);
        assert_eq!(at("-0530", 0), -19_800);
        // 2026-01-15 and 2026-07-15.
        assert_eq!(at("Europe/Berlin", 1_768_435_200), 3_600);
        assert_eq!(at("Europe/Berlin", 1_784_073_600), 7_200);
        // 2026-10-25 02:30, which comes twice, and 03:30.
        assert!(offset("Europe/Berlin", 1_792_895_400).is_doubtful);
        assert!(!offset("Europe/Berlin", 1_792_899_000).is_doubtful);
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.instant("2026-07-15T02:00:00"), Some(Nanos::from_secs(1_784_073_600)));
        let india = Zone::parse("+05:30").unwrap();
        assert_eq!(india.instant("2026-01-15T05:30:00"), Some(Nanos::from_secs(1_768_435_200)));
        assert_eq!(india.instant("2026-13-15T05:30:00"), None);
        for wrong in ["", "+2", "+25:00", "Europe/Berln", "+02:0x"] {
            assert_eq!(Zone::parse(wrong).unwrap_err(), ZoneError { name: wrong.to_owned() });
        }
    }
}
