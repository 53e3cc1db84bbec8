//! Reads the times of a log. Lines that follow each other mostly have the same second, so the second before is
//! remembered, and so is the zone's offset of the minute before.

use super::civil::{self, Civil};
use super::decimal::{self, TimeUnit};
use super::zone::{self, LocalOffset, Zone};

/// Bytes of a time in the common form with its offset: `24/Nov/2026:06:46:29 +0000`.
pub(super) const CLF_LENGTH: usize = 26;

/// How a time is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeForm {
    /// `24/Nov/2026:06:46:29 +0000`, as Apache and NGINX write it.
    Clf,
    /// `2026-11-24T06:46:29.123Z`.
    Rfc3339,
    /// A number since 1970.
    Epoch(TimeUnit),
    /// A number since 1970 whose magnitude tells the unit, or either of the texts.
    Any,
}

/// A time that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundTime {
    /// Nanoseconds since the Unix epoch.
    pub(super) nanos: u64,
    /// Nanoseconds of the last digit.
    pub(super) resolution: u64,
}

/// Reads times, and remembers the last.
#[derive(Clone, Debug)]
pub(super) struct TimeReader {
    zone: Zone,
    last_clf: [u8; CLF_LENGTH],
    last_found: Option<FoundTime>,
    /// A local minute since 1970, and the zone's offset in it.
    last_offset: Option<(i64, LocalOffset)>,
    /// Whether a time that was read comes twice in its zone.
    has_doubtful: bool,
}

impl TimeReader {
    /// Stamps that name no zone are in this one.
    pub(super) fn new(zone: Zone) -> Self {
        Self {
            zone,
            last_clf: [0; CLF_LENGTH],
            last_found: None,
            last_offset: None,
            has_doubtful: false,
        }
    }

    /// Reads a time.
    pub(super) fn read(&mut self, form: TimeForm, text: &[u8]) -> Option<FoundTime> {
        match form {
            TimeForm::Clf => self.clf(text),
            TimeForm::Rfc3339 => self.rfc3339(text),
            TimeForm::Epoch(unit) => epoch(std::str::from_utf8(text).ok()?, unit),
            TimeForm::Any => match text {
                [_, _, b'/', ..] => self.clf(text),
                [b'[', inner @ .., b']'] => self.clf(inner),
                [_, _, _, _, b'-' | b'/', ..] => self.rfc3339(text),
                number => by_magnitude(std::str::from_utf8(number).ok()?),
            },
        }
    }

    /// Reads `24/Nov/2026:06:46:29 +0000`; the seconds may have a fraction, and the offset may be missing.
    pub(super) fn clf(&mut self, text: &[u8]) -> Option<FoundTime> {
        if self.last_found.is_some() && text == self.last_clf {
            return self.last_found;
        }
        let found = self.resolve(civil::clf(text)?, text.get(20..)?)?;
        if let Ok(same_length) = text.try_into() {
            self.last_clf = same_length;
            self.last_found = Some(found);
        }
        Some(found)
    }

    /// Reads `2026-11-24T06:46:29.123Z`.
    pub(super) fn rfc3339(&mut self, text: &[u8]) -> Option<FoundTime> {
        self.resolve(civil::rfc3339(text)?, text.get(19..)?)
    }

    /// Applies what stands after the seconds: a fraction and an offset.
    fn resolve(&mut self, civil: Civil, after: &[u8]) -> Option<FoundTime> {
        let digits = match after {
            [b'.' | b',', fraction @ ..] => {
                fraction.iter().take_while(|byte| byte.is_ascii_digit()).count()
            }
            _ => 0,
        };
        let (fraction, offset) = match digits {
            0 => (&b""[..], after),
            _ => (after.get(1..=digits)?, after.get(digits + 1..)?),
        };
        let offset = match offset.trim_ascii() {
            b"" => None,
            b"Z" | b"z" | b"UTC" | b"GMT" => Some(0),
            signed => Some(zone::offset(signed)?),
        };
        self.found(civil.seconds()?, offset, fraction)
    }

    /// A time by its parts: local seconds since 1970, the offset if the log names it, and the digits of the fraction.
    pub(super) fn found(
        &mut self,
        local: i64,
        offset: Option<i64>,
        fraction: &[u8],
    ) -> Option<FoundTime> {
        let offset = match offset {
            Some(offset) => offset,
            None => self.zone_offset(local)?,
        };
        let seconds = u64::try_from(local.checked_sub(offset)?).ok()?;
        let mut step = TimeUnit::Seconds.nanos();
        let mut nanos = seconds.checked_mul(step)?;
        for digit in fraction {
            step /= 10;
            nanos = nanos.checked_add(step * u64::from(digit.checked_sub(b'0')?))?;
        }
        let resolution = match fraction.len() {
            0 => 1_000_000_000,
            1..=3 => 1_000_000,
            4..=8 => 1_000,
            _ => 1,
        };
        Some(FoundTime { nanos, resolution })
    }

    /// The zone's offset. Zones change theirs at full minutes.
    fn zone_offset(&mut self, local: i64) -> Option<i64> {
        let minute = local.div_euclid(60);
        if let Some((last, offset)) = self.last_offset
            && last == minute
        {
            return Some(offset.seconds);
        }
        let offset = self.zone.offset_at(local)?;
        self.last_offset = Some((minute, offset));
        self.has_doubtful |= offset.is_doubtful;
        Some(offset.seconds)
    }

    /// Whether a time that was read names no zone and comes twice in the zone of the log.
    pub(super) const fn has_doubtful(&self) -> bool {
        self.has_doubtful
    }
}

fn epoch(text: &str, unit: TimeUnit) -> Option<FoundTime> {
    let read = decimal::decimal(text, unit)?;
    Some(FoundTime { nanos: read.nanos, resolution: read.resolution })
}

/// Reads a number whose integer digits tell the unit: seconds have up to 11 digits until the year 5138, and each unit
/// below has three more.
fn by_magnitude(text: &str) -> Option<FoundTime> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit()).count();
    let unit = match digits {
        0 => return None,
        1..=11 => TimeUnit::Seconds,
        12..=14 => TimeUnit::Millis,
        15..=17 => TimeUnit::Micros,
        _ => TimeUnit::Nanos,
    };
    epoch(text, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_795_502_789_000_000_000;

    #[test]
    fn times_are_read_in_every_form() {
        let mut reader = TimeReader::new(Zone::parse("+01:00").unwrap());
        let mut check = |text: &str, expected: Option<(u64, u64)>| {
            let found = reader.read(TimeForm::Any, text.as_bytes());
            assert_eq!(found.map(|found| (found.nanos, found.resolution)), expected, "{text}");
        };
        let hour = 3_600_000_000_000;
        check("24/Nov/2026:06:46:29 +0000", Some((AT, 1_000_000_000)));
        check("24/Nov/2026:06:46:29 +0000", Some((AT, 1_000_000_000)));
        check("24/Nov/2026:06:46:29 -0100", Some((AT + hour, 1_000_000_000)));
        check("[24/Nov/2026:06:46:29 +0000]", Some((AT, 1_000_000_000)));
        check("24/Nov/2026:06:46:29.250", Some((AT - hour + 250_000_000, 1_000_000)));
        check("2026-11-24T06:46:29Z", Some((AT, 1_000_000_000)));
        check("2026/11/24 06:46:29.25+0000", Some((AT + 250_000_000, 1_000_000)));
        check("2026-11-24 06:46:29,123456 +00:00", Some((AT + 123_456_000, 1_000)));
        check("2026-11-24T06:46:29.123456789+00:00", Some((AT + 123_456_789, 1)));
        check("1795502789", Some((AT, 1_000_000_000)));
        check("1795502789.5", Some((AT + 500_000_000, 1_000_000)));
        check("1795502789000", Some((AT, 1_000_000)));
        check("1795502789000000", Some((AT, 1_000)));
        check("1795502789000000001", Some((AT + 1, 1)));
        for wrong in ["", "-", "yesterday", "2026-11-24", "2026-11-24T06:46:29+0x", "-5"] {
            check(wrong, None);
        }
    }

    #[test]
    fn the_remembered_second_is_used_for_the_same_text_only() {
        let mut reader = TimeReader::new(Zone::UTC);
        let first = reader.clf(b"24/Nov/2026:06:46:29 +0000").unwrap();
        let next = reader.clf(b"24/Nov/2026:06:46:30 +0000").unwrap();
        assert_eq!(next.nanos - first.nanos, 1_000_000_000);
        assert_eq!(reader.clf(&[0; CLF_LENGTH]), None);
    }

    #[test]
    fn a_named_zone_follows_its_summer_time() {
        let mut reader = TimeReader::new(Zone::parse("Europe/Berlin").unwrap());
        let winter = reader.clf(b"29/Mar/2026:01:59:59").unwrap();
        let summer = reader.clf(b"29/Mar/2026:03:00:00").unwrap();
        assert_eq!(summer.nanos - winter.nanos, 1_000_000_000);
    }
}
