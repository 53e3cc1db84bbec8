//! Which bytes may stand where, in one table: every byte of a head is looked up once.

/// Of names and methods (RFC 9110, section 5.6.2).
pub(crate) const TOKEN: u16 = 1;
/// Of a request target on the wire: neither blank nor control byte, and ASCII.
pub(crate) const TARGET: u16 = 1 << 1;
/// What stands for itself in no query (RFC 3986, appendix A) and no reader's parser takes.
pub(crate) const STRANGE_IN_QUERY: u16 = 1 << 2;
/// Of a path, as far as [`super::path`] does not know better; a `?` ends it.
pub(crate) const IN_PATH: u16 = 1 << 3;
/// Of a host's name.
pub(crate) const NAME: u16 = 1 << 4;
/// A letter in upper case.
pub(crate) const UPPER: u16 = 1 << 5;
/// Of a path, and read alike by all readers wherever it stands; `/` and `.` depend on what is before.
pub(crate) const PLAIN: u16 = 1 << 6;
/// Of a field's value: no control byte but the tab.
const VALUE: u16 = 1 << 7;
/// Of a field's name, and read alike by all readers: gateways to programs take every other byte for `_`.
const USUAL_IN_NAME: u16 = 1 << 8;
/// Of a path, and left as it came: no escape, and none of the marks that [`super::path`] looks at.
pub(crate) const KEPT_IN_PATH: u16 = 1 << 9;

const CLASSES: [u16; 256] = classes();

/// All classes of a byte.
pub(crate) const fn of(byte: u8) -> u16 {
    CLASSES[byte as usize]
}

/// How many bytes at the beginning are of a class.
pub(crate) fn lead(bytes: &[u8], class: u16) -> usize {
    bytes.iter().position(|byte| of(*byte) & class == 0).unwrap_or(bytes.len())
}

/// How many bytes at the beginning are a field's name, and whether each of them is a usual one.
pub(crate) fn lead_of_name(bytes: &[u8]) -> (usize, bool) {
    let mut all = USUAL_IN_NAME;
    let token = bytes.iter().take_while(|byte| {
        let class = of(**byte);
        let is_token = class & TOKEN != 0;
        all &= if is_token { class } else { all };
        is_token
    });
    (token.count(), all != 0)
}

/// Whether a byte of a field's name is read alike by all readers.
pub(crate) const fn is_usual_in_name(byte: u8) -> bool {
    of(byte) & USUAL_IN_NAME != 0
}

/// How many bytes at the beginning are valid in a field's value. Long values are tested by vector instructions; the rest of
/// them, and short ones, by the table.
pub(crate) fn lead_of_value(bytes: &[u8]) -> usize {
    const VECTOR: usize = 16;
    let is_clean = |vector: &&[u8]| vector.iter().fold(true, |all, byte| all & is_value(*byte));
    let long = VECTOR * bytes.chunks_exact(VECTOR).take_while(is_clean).count();
    long + lead(&bytes[long..], VALUE)
}

/// Written so that the compiler makes vectors of it.
const fn is_value(byte: u8) -> bool {
    (byte >= b' ') & (byte != 0x7f) | (byte == b'\t')
}

/// Whether any byte is of a class.
pub(crate) fn any(bytes: &[u8], class: u16) -> bool {
    // Without a branch for each: what is not clean is rare, and bounded.
    bytes.iter().fold(0, |seen, byte| seen | of(*byte)) & class != 0
}

const fn classes() -> [u16; 256] {
    let mut all = [0; 256];
    let mut index = 0;
    while index < all.len() {
        let byte = index as u8;
        let letter = byte.is_ascii_alphanumeric();
        let mark = matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
        );
        let mut classes = 0;
        if letter || mark || matches!(byte, b'|' | b'~') {
            classes |= TOKEN;
        }
        if matches!(byte, 0x21..0x7f) {
            classes |= TARGET;
        }
        // (A fragment is never sent; parsers drop it, or do not. The framework's takes no quote in a
        // query, and would answer by itself.)
        if matches!(byte, 0..=0x20 | b'"' | b'<' | b'>' | b'#' | 0x7f..) {
            classes |= STRANGE_IN_QUERY;
        }
        if !matches!(byte, b'<' | b'>' | b'`' | b'#' | b'?') {
            classes |= IN_PATH;
        }
        if letter || matches!(byte, b'.' | b'-' | b'_') {
            classes |= NAME;
        }
        if byte.is_ascii_uppercase() {
            classes |= UPPER;
        }
        if letter || matches!(byte, b'/' | b'.' | b'-' | b'_' | b'~' | b'@' | b':' | b',' | b'+') {
            classes |= PLAIN;
        }
        if matches!(byte, 0x21..0x7f) && !matches!(byte, b'%' | b'#' | b'\\' | b';') {
            classes |= KEPT_IN_PATH;
        }
        if letter || byte == b'-' {
            classes |= USUAL_IN_NAME;
        }
        if is_value(byte) {
            classes |= VALUE;
        }
        all[index] = classes;
        index += 1;
    }
    all
}
