//! The time zone of stamps that name none.

use jiff::Timestamp;
use jiff::tz::TimeZone;

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

    /// Seconds east of Greenwich at a local time, which is given as seconds since 1970-01-01 00:00 local time. Of an hour
    /// that the clock shows twice in autumn, the first is taken: a log does not tell them apart.
    pub(super) fn offset_at(&self, local: i64) -> Option<i64> {
        match &self.rule {
            ZoneRule::Fixed(seconds) => Some(*seconds),
            ZoneRule::Named(zone) => {
                let civil = Timestamp::from_second(local).ok()?.to_zoned(TimeZone::UTC).datetime();
                let utc = zone.to_ambiguous_timestamp(civil).compatible().ok()?;
                Some(local - utc.as_second())
            }
        }
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
        let at = |name: &str, local| Zone::parse(name).unwrap().offset_at(local).unwrap();
        assert_eq!(at("UTC", 0), 0);
        assert_eq!(at("+02:00", 0), 7_200);
        assert_eq!(at("-0530", 0), -19_800);
        // 2026-01-15 and 2026-07-15.
        assert_eq!(at("Europe/Berlin", 1_768_435_200), 3_600);
        assert_eq!(at("Europe/Berlin", 1_784_073_600), 7_200);
        for wrong in ["", "+2", "+25:00", "Europe/Berln", "+02:0x"] {
            assert_eq!(Zone::parse(wrong).unwrap_err(), ZoneError { name: wrong.to_owned() });
        }
    }
}
