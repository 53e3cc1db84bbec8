//! Times by the patterns of `strftime`, which Apache takes in `%{..}t`. Several patterns of a line may be pieces of one
//! time: `%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t`.

use super::civil::{self, Civil};
use super::time_reader::{FoundTime, TimeReader};
use super::zone::{offset, two_digits};

/// A pattern of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimePattern {
    items: Vec<PatternItem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternItem {
    Literal(u8),
    Day,
    MonthName,
    Month,
    Year,
    ShortYear,
    Hour,
    HalfDayHour,
    HalfDay,
    Minute,
    Second,
    Offset,
    /// Letters that are not read: the day of the week, the abbreviation of a zone.
    Letters,
    /// Seconds since 1970.
    Epoch,
    /// Digits of the fraction of a second.
    Fraction(usize),
}

/// The fields of a time that its pieces have told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CivilFields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    hour: i64,
    is_afternoon: Option<bool>,
    minute: i64,
    second: i64,
    epoch: Option<i64>,
    offset: Option<i64>,
    fraction: [u8; 6],
    fraction_digits: usize,
    is_used: bool,
}

impl CivilFields {
    /// Whether a pattern told something.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// The time. `None` if the date is missing or does not exist.
    pub(super) fn found(&self, times: &mut TimeReader) -> Option<FoundTime> {
        let fraction = self.fraction.get(..self.fraction_digits)?;
        if let Some(epoch) = self.epoch {
            return times.found(epoch, Some(0), fraction);
        }
        let hour = match self.is_afternoon {
            Some(is_afternoon) => self.hour % 12 + if is_afternoon { 12 } else { 0 },
            None => self.hour,
        };
        let civil = Civil {
            year: self.year?,
            month: self.month?,
            day: self.day?,
            hour,
            minute: self.minute,
            second: self.second,
        };
        times.found(civil.seconds()?, self.offset, fraction)
    }
}

impl TimePattern {
    /// Reads a pattern. `None` if it has a conversion that is not known.
    pub(super) fn parse(pattern: &str) -> Option<Self> {
        let mut items = Vec::new();
        match pattern {
            "sec" => items.push(PatternItem::Epoch),
            "msec_frac" => items.push(PatternItem::Fraction(3)),
            "usec_frac" => items.push(PatternItem::Fraction(6)),
            conversions => parse_conversions(conversions, &mut items)?,
        }
        Some(Self { items })
    }

    /// Reads the start of a text; returns the bytes that it took. `None` if it does not fit.
    pub(super) fn read(&self, text: &[u8], fields: &mut CivilFields) -> Option<usize> {
        fields.is_used = true;
        let mut rest = text;
        for item in &self.items {
            let used = item.read(rest, fields)?;
            rest = rest.get(used..)?;
        }
        Some(text.len() - rest.len())
    }
}

fn parse_conversions(pattern: &str, items: &mut Vec<PatternItem>) -> Option<()> {
    let mut bytes = pattern.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            items.push(PatternItem::Literal(byte));
            continue;
        }
        match bytes.next()? {
            b'd' | b'e' => items.push(PatternItem::Day),
            b'b' | b'h' | b'B' => items.push(PatternItem::MonthName),
            b'm' => items.push(PatternItem::Month),
            b'Y' => items.push(PatternItem::Year),
            b'y' => items.push(PatternItem::ShortYear),
            b'H' | b'k' => items.push(PatternItem::Hour),
            b'I' | b'l' => items.push(PatternItem::HalfDayHour),
            b'p' => items.push(PatternItem::HalfDay),
            b'M' => items.push(PatternItem::Minute),
            b'S' => items.push(PatternItem::Second),
            b'z' => items.push(PatternItem::Offset),
            b'Z' | b'a' | b'A' => items.push(PatternItem::Letters),
            b's' => items.push(PatternItem::Epoch),
            b'T' => parse_conversions("%H:%M:%S", items)?,
            b'R' => parse_conversions("%H:%M", items)?,
            b'F' => parse_conversions("%Y-%m-%d", items)?,
            b'D' => parse_conversions("%m/%d/%y", items)?,
            b'c' => parse_conversions("%a %b %e %H:%M:%S %Y", items)?,
            b'%' => items.push(PatternItem::Literal(b'%')),
            b'n' => items.push(PatternItem::Literal(b'\n')),
            b't' => items.push(PatternItem::Literal(b'\t')),
            _ => return None,
        }
    }
    Some(())
}

impl PatternItem {
    fn read(self, text: &[u8], fields: &mut CivilFields) -> Option<usize> {
        match self {
            Self::Literal(byte) => return (*text.first()? == byte).then_some(1),
            Self::Letters => {
                return Some(text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count());
            }
            Self::MonthName => {
                fields.month = Some(civil::month(text.get(..3)?)?);
                return Some(text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count());
            }
            Self::Year => {
                let [a, b, c, d] = *text.first_chunk()?;
                fields.year = Some(two_digits(a, b)? * 100 + two_digits(c, d)?);
                return Some(4);
            }
            Self::Epoch => return fields.read_epoch(text),
            Self::Fraction(digits) => return fields.read_fraction(text.get(..digits)?),
            Self::Offset => {
                fields.offset = Some(offset(text.get(..5)?)?);
                return Some(5);
            }
            Self::HalfDay => {
                fields.is_afternoon = Some(text.get(..2)?.eq_ignore_ascii_case(b"pm"));
                return Some(2);
            }
            Self::Day
            | Self::Month
            | Self::ShortYear
            | Self::Hour
            | Self::HalfDayHour
            | Self::Minute
            | Self::Second => {}
        }
        let [tens, units] = *text.first_chunk()?;
        // `%e` and `%k` write a space for a leading zero.
        let number = two_digits(if tens == b' ' { b'0' } else { tens }, units)?;
        match self {
            Self::Day => fields.day = Some(number),
            Self::Month => fields.month = Some(number),
            Self::ShortYear => fields.year = Some(2_000 + number),
            Self::Hour | Self::HalfDayHour => fields.hour = number,
            Self::Minute => fields.minute = number,
            _ => fields.second = number,
        }
        Some(2)
    }
}

impl CivilFields {
    fn read_epoch(&mut self, text: &[u8]) -> Option<usize> {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        // Seconds have ten digits until the year 2286; more digits are the fraction, without anything between.
        let digits = digits.min(10);
        self.epoch = Some(std::str::from_utf8(text.get(..digits)?).ok()?.parse().ok()?);
        Some(digits)
    }

    fn read_fraction(&mut self, digits: &[u8]) -> Option<usize> {
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.fraction.get_mut(..digits.len())?.copy_from_slice(digits);
        self.fraction_digits = digits.len();
        Some(digits.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_lines::zone::Zone;

    #[test]
    fn pieces_make_a_time() {
        let check = |pieces: &[(&str, &str)], expected: Option<u64>| {
            let mut fields = CivilFields::default();
            for (pattern, text) in pieces {
                let pattern = TimePattern::parse(pattern).unwrap();
                assert_eq!(pattern.read(text.as_bytes(), &mut fields), Some(text.len()), "{text}");
            }
            let mut times = TimeReader::new(Zone::UTC);
            let found = fields.found(&mut times).map(|found| found.nanos / 1_000);
            assert_eq!(found, expected, "{pieces:?}");
        };
        let at = 1_795_502_789_000_000;
        check(&[("%d/%b/%Y:%H:%M:%S %z", "24/Nov/2026:06:46:29 +0000")], Some(at));
        check(&[("%d/%b/%Y %T", "24/Nov/2026 06:46:29"), ("msec_frac", "250")], Some(at + 250_000));
        check(&[("sec", "1795502789"), ("usec_frac", "000007")], Some(at + 7));
        check(&[("%a %b %e %T %Y", "Tue Nov 24 06:46:29 2026"), ("%z", "+0000")], Some(at));
        check(&[("%D %I:%M:%S %p", "11/24/26 06:46:29 AM")], Some(at));
        check(&[("%T", "06:46:29")], None);
        assert_eq!(TimePattern::parse("%Q"), None);
        assert_eq!(TimePattern::parse("%"), None);
    }
}
