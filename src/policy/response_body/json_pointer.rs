//! JSON pointers (RFC 6901): where in a JSON document a cost is.
//!
//! A pointer is a list of tokens, each the name of an object's member or the index of an array's element. This module
//! reads no document; `json_scanner.rs` does.

use std::fmt;

/// The longest pointer, in bytes. Each response that is read compares names with it.
pub const MAX_POINTER_BYTES: usize = 256;

/// The most tokens of a pointer: how deep in a document a cost can be.
pub const MAX_POINTER_TOKENS: usize = 16;

/// A JSON pointer of at least one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer {
    text: Box<str>,
    tokens: Box<[PointerToken]>,
}

/// One token of a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PointerToken {
    /// The name of a member, unescaped.
    pub(super) name: Box<str>,
    /// The index of an element, if the token can be one.
    pub(super) index: Option<u32>,
}

impl JsonPointer {
    /// Reads a pointer such as `/usage/total_tokens`.
    ///
    /// # Errors
    ///
    /// What is wrong, with the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_POINTER_BYTES {
            return Err(format!(
                "a pointer of {} bytes, more than {MAX_POINTER_BYTES}",
                text.len()
            ));
        }
        let Some(tokens) = text.strip_prefix('/') else {
            let guess = text.trim_start_matches(['$', '#', '.', '/']).replace(['.', '['], "/");
            let guess = guess.replace(']', "");
            let guess = if guess.is_empty() { "usage/total_tokens" } else { &*guess };
            return Err(format!("{text:?} is not a JSON pointer; write for example /{guess}"));
        };
        let tokens: Vec<PointerToken> =
            tokens.split('/').map(PointerToken::parse).collect::<Result<_, _>>()?;
        if tokens.len() > MAX_POINTER_TOKENS {
            let count = tokens.len();
            return Err(format!("a pointer of {count} tokens, more than {MAX_POINTER_TOKENS}"));
        }
        Ok(Self { text: Box::from(text), tokens: tokens.into_boxed_slice() })
    }

    pub(super) const fn tokens(&self) -> &[PointerToken] {
        &self.tokens
    }
}

impl PointerToken {
    fn parse(text: &str) -> Result<Self, String> {
        let mut name = String::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match character {
                '~' => name.push(match characters.next() {
                    Some('0') => '~',
                    Some('1') => '/',
                    _ => return Err(format!("a ~ in {text:?}; write ~0 for ~ and ~1 for /")),
                }),
                other => name.push(other),
            }
        }
        // An index has no sign and no leading zero.
        let is_index = name == "0" || (!name.starts_with('0') && !name.starts_with('+'));
        let index = if is_index { name.parse().ok() } else { None };
        Ok(Self { name: name.into_boxed_str(), index })
    }
}

/// As it was written.
impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unescaped_once_and_numbers_can_be_indices() {
        let tokens = |text| {
            let pointer = JsonPointer::parse(text).unwrap();
            assert_eq!(pointer.to_string(), text);
            let token = |token: &PointerToken| (token.name.to_string(), token.index);
            pointer.tokens().iter().map(token).collect::<Vec<_>>()
        };
        let name = |text: &str| (text.to_owned(), None);
        assert_eq!(tokens("/usage/total_tokens"), [name("usage"), name("total_tokens")]);
        assert_eq!(tokens("/a~1b/~0~01//"), [name("a/b"), name("~~1"), name(""), name("")]);
        assert_eq!(tokens("/0/10"), [("0".to_owned(), Some(0)), ("10".to_owned(), Some(10))]);
        assert_eq!(tokens("/01/+1/-/-1"), ["01", "+1", "-", "-1"].map(name));
    }

    #[test]
    fn what_is_no_pointer_is_refused_with_a_cure() {
        let wrong = |text: &str| JsonPointer::parse(text).unwrap_err();
        assert!(wrong("$.usage.total_tokens").contains("write for example /usage/total_tokens"));
        assert!(wrong("choices[0].usage").contains("/choices/0/usage"));
        assert!(wrong("#/usage").contains("/usage"));
        assert!(wrong("").contains("/usage/total_tokens"));
        assert!(wrong("/a~2").contains("~0 for ~"));
        assert!(wrong("/a~").contains("~0 for ~"));
        assert!(wrong(&"/a".repeat(17)).contains("17 tokens"));
        assert!(wrong(&format!("/{}", "a".repeat(256))).contains("257 bytes"));
        assert!(JsonPointer::parse(&"/a".repeat(16)).is_ok());
    }
}
