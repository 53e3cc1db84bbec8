//! A share of keys. It is an integer, so that equal inputs give equal reports on every machine.

use std::fmt;

/// A share of keys, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyShare(u32);

impl KeyShare {
    /// All keys.
    pub const ALL: Self = Self(1_000_000);
    /// No key.
    pub const NONE: Self = Self(0);

    /// A share in millionths, at most all.
    pub const fn from_millionths(millionths: u32) -> Self {
        if millionths > Self::ALL.0 { Self::ALL } else { Self(millionths) }
    }

    /// `count` of `total`, rounded up; none of none.
    pub fn of(count: u64, total: u64) -> Self {
        if total == 0 {
            return Self::NONE;
        }
        let millionths = (u128::from(count) * 1_000_000).div_ceil(u128::from(total));
        u32::try_from(millionths).map_or(Self::ALL, Self::from_millionths)
    }

    /// Millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// The largest number among `total` that is at most this share.
    pub fn count_of(self, total: u64) -> u64 {
        let count = u128::from(total) * u128::from(self.0) / 1_000_000;
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The smallest number of keys of which this share is `count`; `None` for no key.
    pub fn keys_for(self, count: u64) -> Option<u64> {
        let keys = (u128::from(count) * 1_000_000).checked_div(u128::from(self.0))?;
        let exact = keys * u128::from(self.0) == u128::from(count) * 1_000_000;
        u64::try_from(if exact { keys } else { keys + 1 }).ok()
    }
}

/// Per cent without needless digits: `0.1 %`.
impl fmt::Display for KeyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (integer, fraction) = (self.0 / 10_000, self.0 % 10_000);
        if fraction == 0 {
            return write!(f, "{integer} %");
        }
        let digits = format!("{fraction:04}");
        write!(f, "{integer}.{} %", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_counted_and_shown() {
        for (millionths, shown, of_2500, needed) in [
            (1_000, "0.1 %", 2, Some(1_000)),
            (20_000, "2 %", 50, Some(50)),
            (300, "0.03 %", 0, Some(3_334)),
            (1, "0.0001 %", 0, Some(1_000_000)),
            (2_000_000, "100 %", 2_500, Some(1)),
            (0, "0 %", 0, None),
        ] {
            let share = KeyShare::from_millionths(millionths);
            assert_eq!(share.to_string(), shown);
            assert_eq!((share.count_of(2_500), share.keys_for(1)), (of_2500, needed), "{shown}");
        }
        assert_eq!(KeyShare::of(1, 3), KeyShare::from_millionths(333_334));
        assert_eq!(KeyShare::of(u64::MAX, u64::MAX), KeyShare::ALL);
        assert_eq!(KeyShare::of(0, 0), KeyShare::NONE);
    }
}
