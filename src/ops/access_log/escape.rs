//! Escapes texts of clients for lines that are not JSON, as NGINX does.
//!
//! What must always hold: what is written has neither line ends nor quotes nor control characters, and is ASCII.

use std::fmt::Write;

/// Writes a text. A quote, a backslash and every byte that is no printable ASCII character become `\xHH`.
pub(super) fn escape(out: &mut String, text: &str) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        out.push_str(text);
        return;
    }
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(out, "\\x{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_characters_are_written_and_all_can_be_read_back() {
        let escaped = |text: &str| {
            let mut out = String::new();
            escape(&mut out, text);
            out
        };
        assert_eq!(escaped("curl/8.0 (x)"), "curl/8.0 (x)");
        assert_eq!(
            escaped("a\" 200 \"\r\n\\\u{fc}\x7f"),
            r"a\x22 200 \x22\x0D\x0A\x5C\xC3\xBC\x7F"
        );
        for byte in 0..=0x7f_u8 {
            let text = char::from(byte).to_string();
            let shown = escaped(&text);
            let read = shown.strip_prefix("\\x").map_or(shown.clone(), |hex| {
                char::from(u8::from_str_radix(hex, 16).unwrap()).to_string()
            });
            assert_eq!(read, text);
        }
    }
}
