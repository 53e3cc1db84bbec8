//! Finds the number at a JSON pointer while a document passes, without keeping the document.
//!
//! It is a pushdown automaton: its memory is one bit for each open array or object, at most [`MAX_DEPTH`] of them, and
//! the digits of one number. Only names on the pointer's path are compared; everything else is only checked to be JSON
//! (RFC 8259). What must always hold: the same bytes give the same result however they are cut.
//!
//! - Of members with equal names the last counts, as in most parsers: the number of an earlier member is dropped.
//! - A text of decimal digits is a number too, because some serializers write 64-bit integers so.
//! - A name or text that is not UTF-8 does not make a document invalid. Such a name equals no token.
//! - A document that is deeper than [`MAX_DEPTH`] is invalid; `serde_json` has the same bound.

use super::json_number::JsonNumber;
use super::json_pointer::JsonPointer;

/// The most arrays and objects that are open at once.
const MAX_DEPTH: u8 = 127;

const _: () = assert!((MAX_DEPTH as u32) < u128::BITS);

/// Scans one document for the number at one pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonScanner {
    state: ScanState,
    /// For each open container whether it is an object; the outermost one has the lowest bit.
    objects: u128,
    /// How many containers are open.
    depth: u8,
    /// How many of them, from the outermost on, are on the path of the pointer.
    on_path: u8,
    /// If the innermost container on the path is an array: the index of its current element.
    index: u32,
    /// Whether the member whose name was read last is on the path.
    is_selected: bool,
    /// Whether the current number is the value at the pointer.
    is_target: bool,
    text: TextUse,
    /// A leading surrogate whose other half must follow; 0 if there is none.
    surrogate: u16,
    number: JsonNumber,
    /// The number at the pointer, as far as the document was read.
    found: Option<u32>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    Value,
    /// A value, or the end of the array.
    FirstElement,
    /// A name, or the end of the object.
    FirstName,
    Name,
    Colon,
    /// A comma, or the end of the container; white space only if none is open.
    AfterValue,
    Text,
    Escape,
    /// The digits of an escape in hexadecimal.
    Unicode {
        digit_count: u8,
        code: u16,
    },
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(NumberState),
    Invalid,
}

/// Where in a number the scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberState {
    Minus,
    /// After a leading zero, which no digit follows.
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// What a text is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextUse {
    /// A name that is not on the path.
    OtherName,
    /// A name that may be on the path: how many bytes of the token it equals.
    ComparedName(u16),
    OtherValue,
    /// The value at the pointer: the number of its digits, `None` before the first digit.
    Digits(Option<u32>),
}

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            state: ScanState::Value,
            objects: 0,
            depth: 0,
            on_path: 0,
            index: 0,
            is_selected: false,
            is_target: false,
            text: TextUse::OtherValue,
            surrogate: 0,
            number: JsonNumber::default(),
            found: None,
        }
    }
}

impl JsonScanner {
    /// Reads the next bytes of the document. The pointer is the same at every call.
    pub(super) fn push(&mut self, pointer: &JsonPointer, mut bytes: &[u8]) {
        loop {
            // Nearly all bytes of a document are plain characters of texts.
            if self.state == ScanState::Text && self.surrogate == 0 {
                let end = bytes.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
                let (plain, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                self.add_to_text(pointer, plain);
                bytes = rest;
            }
            let Some((byte, rest)) = bytes.split_first() else {
                return;
            };
            let is_used = match self.state {
                ScanState::Invalid => return,
                ScanState::Number(state) => self.step_number(state, *byte),
                _ => {
                    self.state = self.step(pointer, *byte);
                    true
                }
            };
            if is_used {
                bytes = rest;
            }
        }
    }

    /// The number at the pointer, as far as the document was read.
    pub(super) const fn found(&self) -> Option<u32> {
        self.found
    }

    /// Whether the bytes so far are a document, with nothing but white space after it.
    pub(super) const fn is_complete(&self) -> bool {
        let is_ended = match self.state {
            ScanState::AfterValue => true,
            ScanState::Number(state) => state.may_end(),
            _ => false,
        };
        is_ended && self.depth == 0
    }

    /// Whether the bytes so far begin no document.
    pub(super) const fn is_invalid(&self) -> bool {
        matches!(self.state, ScanState::Invalid)
    }

    /// The state after a byte that belongs to no number.
    fn step(&mut self, pointer: &JsonPointer, byte: u8) -> ScanState {
        match (self.state, byte) {
            (ScanState::Text, _) => self.step_text(pointer, byte),
            (ScanState::Escape, _) => self.step_escape(pointer, byte),
            (ScanState::Unicode { digit_count, code }, _) => {
                self.step_unicode(pointer, digit_count, code, byte)
            }
            (ScanState::Word(rest), _) => match rest.split_first() {
                Some((expected, rest)) if *expected == byte => match rest {
                    [] => ScanState::AfterValue,
                    rest => ScanState::Word(rest),
                },
                _ => ScanState::Invalid,
            },
            (state, b' ' | b'\t' | b'\n' | b'\r') => state,
            (ScanState::FirstElement, b']') | (ScanState::FirstName, b'}') => self.close(pointer),
            (ScanState::Value | ScanState::FirstElement, _) => self.begin_value(pointer, byte),
            (ScanState::FirstName | ScanState::Name, b'"') => {
                self.text = match self.is_on_path() {
                    true => TextUse::ComparedName(0),
                    false => TextUse::OtherName,
                };
                ScanState::Text
            }
            (ScanState::Colon, b':') => ScanState::Value,
            (ScanState::AfterValue, b',') if self.is_in_object() => ScanState::Name,
            (ScanState::AfterValue, b',') if self.depth > 0 => {
                if self.is_on_path() {
                    self.index = self.index.saturating_add(1);
                }
                ScanState::Value
            }
            (ScanState::AfterValue, b'}') if self.is_in_object() => self.close(pointer),
            (ScanState::AfterValue, b']') if self.depth > 0 && !self.is_in_object() => {
                self.close(pointer)
            }
            _ => ScanState::Invalid,
        }
    }

    fn begin_value(&mut self, pointer: &JsonPointer, byte: u8) -> ScanState {
        let is_selected = match self.is_in_object() {
            true => std::mem::take(&mut self.is_selected),
            false if self.is_on_path() => {
                let token = &pointer.tokens()[usize::from(self.depth) - 1];
                token.index == Some(self.index)
            }
            false => false,
        };
        let is_target = is_selected && usize::from(self.depth) == pointer.tokens().len();
        match byte {
            b'{' | b'[' => self.open(byte == b'{', is_selected && !is_target),
            b'"' => {
                self.text = if is_target { TextUse::Digits(None) } else { TextUse::OtherValue };
                ScanState::Text
            }
            b't' => ScanState::Word(b"rue"),
            b'f' => ScanState::Word(b"alse"),
            b'n' => ScanState::Word(b"ull"),
            b'-' | b'0'..=b'9' => {
                (self.number, self.is_target) = (JsonNumber::default(), is_target);
                ScanState::Number(match byte {
                    b'-' => {
                        self.number.set_negative();
                        NumberState::Minus
                    }
                    digit => self.first_digit(digit),
                })
            }
            _ => ScanState::Invalid,
        }
    }

    /// Opens a container. The outermost one is on every path.
    fn open(&mut self, is_object: bool, is_selected: bool) -> ScanState {
        if self.depth == MAX_DEPTH {
            return ScanState::Invalid;
        }
        if self.depth == 0 || is_selected {
            (self.on_path, self.index) = (self.depth + 1, 0);
        }
        let bit = 1 << self.depth;
        self.objects = if is_object { self.objects | bit } else { self.objects & !bit };
        self.depth += 1;
        if is_object { ScanState::FirstName } else { ScanState::FirstElement }
    }

    /// Closes the innermost container.
    fn close(&mut self, pointer: &JsonPointer) -> ScanState {
        self.depth = self.depth.saturating_sub(1);
        if self.on_path > self.depth {
            self.on_path = self.depth;
            // The path leads through the element that ends here.
            let token = usize::from(self.depth).checked_sub(1).map(|at| &pointer.tokens()[at]);
            self.index = token.and_then(|token| token.index).unwrap_or(0);
        }
        ScanState::AfterValue
    }

    /// Whether the innermost container is on the path.
    const fn is_on_path(&self) -> bool {
        self.depth > 0 && self.on_path == self.depth
    }

    const fn is_in_object(&self) -> bool {
        self.depth > 0 && self.objects >> (self.depth - 1) & 1 == 1
    }

    fn step_text(&mut self, pointer: &JsonPointer, byte: u8) -> ScanState {
        match byte {
            b'\\' => ScanState::Escape,
            0..0x20 => ScanState::Invalid,
            _ if self.surrogate != 0 => ScanState::Invalid,
            b'"' => self.end_text(pointer),
            other => {
                self.add_to_text(pointer, &[other]);
                ScanState::Text
            }
        }
    }

    fn step_escape(&mut self, pointer: &JsonPointer, byte: u8) -> ScanState {
        let character = match byte {
            b'u' => return ScanState::Unicode { digit_count: 0, code: 0 },
            _ if self.surrogate != 0 => return ScanState::Invalid,
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return ScanState::Invalid,
        };
        self.add_to_text(pointer, &[character]);
        ScanState::Text
    }

    fn step_unicode(
        &mut self,
        pointer: &JsonPointer,
        digit_count: u8,
        code: u16,
        byte: u8,
    ) -> ScanState {
        let Some(digit) = char::from(byte).to_digit(16) else {
            return ScanState::Invalid;
        };
        let code = code << 4 | digit as u16;
        if digit_count < 3 {
            return ScanState::Unicode { digit_count: digit_count + 1, code };
        }
        let leading = std::mem::take(&mut self.surrogate);
        let character = match (leading, code) {
            (0, 0xd800..=0xdbff) => {
                self.surrogate = code;
                return ScanState::Text;
            }
            (0, code) => char::from_u32(code.into()),
            (leading, 0xdc00..=0xdfff) => {
                let offset = u32::from(leading - 0xd800) << 10 | u32::from(code - 0xdc00);
                char::from_u32(0x1_0000 + offset)
            }
            _ => None,
        };
        // `None` is half of a surrogate pair.
        let Some(character) = character else {
            return ScanState::Invalid;
        };
        self.add_to_text(pointer, character.encode_utf8(&mut [0; 4]).as_bytes());
        ScanState::Text
    }

    /// Takes characters of a text, unescaped.
    fn add_to_text(&mut self, pointer: &JsonPointer, bytes: &[u8]) {
        match &mut self.text {
            TextUse::OtherName | TextUse::OtherValue => {}
            TextUse::ComparedName(equal) => {
                let name = pointer.tokens()[usize::from(self.depth) - 1].name.as_bytes();
                let expected = &name[usize::from(*equal)..];
                match expected.starts_with(bytes) {
                    // A pointer is short, so the count fits.
                    true => *equal += bytes.len() as u16,
                    false => self.text = TextUse::OtherName,
                }
            }
            TextUse::Digits(sum) => {
                for byte in bytes {
                    if !byte.is_ascii_digit() {
                        self.text = TextUse::OtherValue;
                        return;
                    }
                    let before = sum.unwrap_or(0).saturating_mul(10);
                    *sum = Some(before.saturating_add(u32::from(byte - b'0')));
                }
            }
        }
    }

    fn end_text(&mut self, pointer: &JsonPointer) -> ScanState {
        match self.text {
            TextUse::OtherName => ScanState::Colon,
            TextUse::ComparedName(equal) => {
                let name = &pointer.tokens()[usize::from(self.depth) - 1].name;
                self.is_selected = usize::from(equal) == name.len();
                if self.is_selected {
                    // The last of several members with this name counts.
                    self.found = None;
                }
                ScanState::Colon
            }
            TextUse::OtherValue => ScanState::AfterValue,
            TextUse::Digits(sum) => {
                self.found = sum;
                ScanState::AfterValue
            }
        }
    }

    fn first_digit(&mut self, byte: u8) -> NumberState {
        self.number.push_integer_digit(byte - b'0');
        if byte == b'0' { NumberState::Zero } else { NumberState::Integer }
    }

    /// Takes a byte of a number. `false`: the byte belongs to what follows the number.
    fn step_number(&mut self, state: NumberState, byte: u8) -> bool {
        use NumberState::{
            Exponent, ExponentDigits, ExponentSign, Fraction, Integer, Minus, Point, Zero,
        };
        let next = match (state, byte) {
            (Minus, b'0'..=b'9') => self.first_digit(byte),
            (Integer, b'0'..=b'9') => {
                self.number.push_integer_digit(byte - b'0');
                Integer
            }
            (Zero | Integer, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => {
                self.number.push_fraction_digit(byte - b'0');
                Fraction
            }
            (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+') => ExponentSign,
            (Exponent, b'-') => {
                self.number.set_exponent_negative();
                ExponentSign
            }
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => {
                self.number.push_exponent_digit(byte - b'0');
                ExponentDigits
            }
            (state, _) if state.may_end() => {
                if std::mem::take(&mut self.is_target) {
                    self.found = self.number.units();
                }
                self.state = ScanState::AfterValue;
                return false;
            }
            _ => {
                self.state = ScanState::Invalid;
                return true;
            }
        };
        self.state = ScanState::Number(next);
        true
    }
}

impl NumberState {
    /// Whether a number can end here.
    const fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}
