//! Which characters people can read as they are.

/// Whether a character is obeyed by terminals or changes how others are shown: control characters, line and paragraph
/// separators, and the marks of Unicode that are not seen or turn the direction (Bidi_Control, UAX 9).
pub(crate) fn is_no_text(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
