//! Dates and times of day as seconds since 1970. Plain arithmetic, without a time zone.

use super::zone::two_digits;

/// A date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Civil {
    pub(super) year: i64,
    /// 1 to 12.
    pub(super) month: i64,
    /// 1 to 31.
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    /// Up to 60: a leap second is the first second of the next minute.
    pub(super) second: i64,
}

impl Civil {
    /// Seconds since 1970-01-01 00:00 of the same clock. `None` for a date that does not exist.
    pub(super) fn seconds(&self) -> Option<i64> {
        let is_time = self.hour < 24 && self.minute < 60 && self.second <= 60;
        let is_date = (1..=12).contains(&self.month)
            && (1..=days_of_month(self.year, self.month)).contains(&self.day);
        (is_time && is_date && (1_970..=9_999).contains(&self.year)).then(|| {
            let days = days_since_1970(self.year, self.month, self.day);
            days * 86_400 + self.hour * 3_600 + self.minute * 60 + self.second
        })
    }
}

fn days_of_month(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar. The year begins in March, so that a leap day is its last day; 153
/// days are five months of that year. <https://howardhinnant.github.io/date_algorithms.html#days_from_civil>
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The number of an English month, by its three letters.
pub(super) fn month(letters: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8; 3]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let index = MONTHS.iter().position(|month| month.eq_ignore_ascii_case(letters))?;
    i64::try_from(index + 1).ok()
}

/// Reads `24/Nov/2026:06:46:29`; the text goes on after 20 bytes.
pub(super) fn clf(text: &[u8]) -> Option<Civil> {
    match text.get(..20)? {
        [d, e, b'/', m @ .., b'/', y, z, a, b, b':', h, i, b':', n, o, b':', s, t] => Some(Civil {
            year: two_digits(*y, *z)? * 100 + two_digits(*a, *b)?,
            month: month(m)?,
            day: two_digits(*d, *e)?,
            hour: two_digits(*h, *i)?,
            minute: two_digits(*n, *o)?,
            second: two_digits(*s, *t)?,
        }),
        _ => None,
    }
}

/// Reads `2026-11-24T06:46:29`, also with a space, or with `/` between the date's numbers; the text goes on after 19
/// bytes.
pub(super) fn rfc3339(text: &[u8]) -> Option<Civil> {
    match text.get(..19)? {
        [
            y,
            z,
            a,
            b,
            b'-' | b'/',
            m,
            n,
            b'-' | b'/',
            d,
            e,
            b'T' | b't' | b' ',
            h,
            i,
            b':',
            o,
            p,
            b':',
            s,
            t,
        ] => Some(Civil {
            year: two_digits(*y, *z)? * 100 + two_digits(*a, *b)?,
            month: two_digits(*m, *n)?,
            day: two_digits(*d, *e)?,
            hour: two_digits(*h, *i)?,
            minute: two_digits(*o, *p)?,
            second: two_digits(*s, *t)?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_through_leap_years() {
        let at = |text: &str| rfc3339(text.as_bytes()).and_then(|civil| civil.seconds());
        assert_eq!(at("1970-01-01T00:00:00"), Some(0));
        assert_eq!(at("2000-02-29 23:59:60"), Some(951_868_800));
        assert_eq!(at("2026-11-24T06:46:29"), Some(1_795_502_789));
        for wrong in ["2026-02-29T00:00:00", "2026-13-01T00:00:00", "2026-01-01T24:00:00", "2026"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_day_follows_the_day_before() {
        let mut expected = 0;
        for year in 1_970..2_405 {
            for month in 1..=12 {
                for day in 1..=days_of_month(year, month) {
                    assert_eq!(days_since_1970(year, month, day), expected);
                    expected += 1;
                }
            }
        }
    }

    #[test]
    fn the_common_form_has_month_names() {
        let civil = clf(b"24/Nov/2026:06:46:29 +0000").unwrap();
        assert_eq!(civil.seconds(), Some(1_795_502_789));
        assert_eq!(clf(b"24/Nix/2026:06:46:29"), None);
        assert_eq!(clf(b"24-Nov-2026:06:46:29"), None);
    }
}
