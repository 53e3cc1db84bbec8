//! The value of a JSON number as units: rounded up, without floating point.
//!
//! The digits arrive one by one. Only as many are kept as a cost can have; of the rest it is kept whether one of them is not
//! zero, because then the number is rounded up. What must always hold: a number of any length costs a few words of memory.

/// The most digits that are kept: all integers below 10^19 fit into 64 bits.
const MAX_DIGITS: u32 = 19;

/// The decimal digits of a number, as far as they matter: `digits` x 10^`scale`, and a little more if `has_rest`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JsonNumber {
    is_negative: bool,
    digits: u64,
    digit_count: u32,
    scale: i64,
    has_rest: bool,
    exponent: i64,
    exponent_is_negative: bool,
}

impl JsonNumber {
    pub(super) const fn set_negative(&mut self) {
        self.is_negative = true;
    }

    /// Adds a digit before the point.
    pub(super) const fn push_integer_digit(&mut self, digit: u8) {
        if !self.push(digit) {
            self.scale = self.scale.saturating_add(1);
        }
    }

    /// Adds a digit after the point.
    pub(super) const fn push_fraction_digit(&mut self, digit: u8) {
        if self.push(digit) {
            self.scale = self.scale.saturating_sub(1);
        }
    }

    pub(super) const fn set_exponent_negative(&mut self) {
        self.exponent_is_negative = true;
    }

    pub(super) fn push_exponent_digit(&mut self, digit: u8) {
        self.exponent = self.exponent.saturating_mul(10).saturating_add(i64::from(digit));
    }

    /// Keeps a digit. `false`: there is no room for it.
    const fn push(&mut self, digit: u8) -> bool {
        if self.digit_count == MAX_DIGITS {
            self.has_rest |= digit != 0;
            return false;
        }
        self.digits = self.digits * 10 + digit as u64;
        // Zeros before the first other digit do not count.
        if self.digits > 0 {
            self.digit_count += 1;
        }
        true
    }

    /// The number, rounded up, at most `u32::MAX`; `None` if it has a minus sign.
    pub(super) fn units(&self) -> Option<u32> {
        if self.is_negative {
            return None;
        }
        if self.digits == 0 {
            return Some(0);
        }
        let exponent = if self.exponent_is_negative { -self.exponent } else { self.exponent };
        let scale = self.scale.saturating_add(exponent);
        let power =
            |scale: i64| u32::try_from(scale).ok().and_then(|scale| 10_u64.checked_pow(scale));
        let units = if scale >= 0 {
            // A rest lies behind 19 digits, which are more than any cost.
            power(scale).map_or(u64::MAX, |factor| self.digits.saturating_mul(factor))
        } else {
            match power(scale.saturating_neg()) {
                // Less than one unit.
                None => 1,
                Some(divisor) => {
                    let is_rounded = self.has_rest || !self.digits.is_multiple_of(divisor);
                    self.digits / divisor + u64::from(is_rounded)
                }
            }
        };
        Some(u32::try_from(units).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units of a valid number.
    fn units(text: &str) -> Option<u32> {
        let mut number = JsonNumber::default();
        let (mut after_point, mut after_e) = (false, false);
        for byte in text.bytes() {
            match byte {
                b'-' if after_e => number.set_exponent_negative(),
                b'-' => number.set_negative(),
                b'.' => after_point = true,
                b'e' => after_e = true,
                b'+' => {}
                digit if after_e => number.push_exponent_digit(digit - b'0'),
                digit if after_point => number.push_fraction_digit(digit - b'0'),
                digit => number.push_integer_digit(digit - b'0'),
            }
        }
        number.units()
    }

    #[test]
    fn numbers_are_rounded_up_and_capped() {
        let zeros = "0".repeat(400);
        let rows = [
            ("0", 0),
            ("150", 150),
            ("150.0", 150),
            ("150.000000000000000000000000000000000001", 151),
            ("0.1", 1),
            ("1e-400", 1),
            ("0e400", 0),
            ("0.000e9", 0),
            ("1.5e3", 1_500),
            ("1.2345e3", 1_235),
            ("12345e-2", 124),
            ("12300e-2", 123),
            ("4294967295", u32::MAX),
            ("4294967296", u32::MAX),
            ("1e999999999999999999999999", u32::MAX),
            ("1e-999999999999999999999999", 1),
            (&*format!("1{zeros}"), u32::MAX),
            (&*format!("1{zeros}e-400"), 1),
            (&*format!("1{zeros}1e-400"), 11),
            (&*format!("0.{zeros}1e401"), 1),
            (&*format!("7.{zeros}1"), 8),
            (&*format!("0.{zeros}"), 0),
        ];
        for (text, expected) in rows {
            assert_eq!(units(text), Some(expected), "{text}");
        }
        for text in ["-1", "-0", "-0.0", "-1e-400"] {
            assert_eq!(units(text), None, "{text}");
        }
    }
}
