//! Classes of bytes: where in a head a byte is allowed, and where it needs attention. One table holds all classes of a
//! byte.

/// Allowed in a token, which names and methods are (RFC 9110, section 5.6.2).
pub(crate) const TOKEN: u16 = 1;
/// Allowed in a request target on the wire: ASCII, neither blank nor control byte.
pub(crate) const TARGET: u16 = 1 << 1;
/// Refused in a query: it is allowed only escaped (RFC 3986, appendix A), and parsers cut it off, drop it or refuse it.
pub(crate) const STRANGE_IN_QUERY: u16 = 1 << 2;
/// Allowed in the path of a target; a `?` ends the path. [`super::path`] checks the path further.
pub(crate) const IN_PATH: u16 = 1 << 3;
/// Allowed in the name of a host.
pub(crate) const NAME: u16 = 1 << 4;
/// A letter in upper case.
pub(crate) const UPPER: u16 = 1 << 5;
/// Allowed in a path and read alike by all readers wherever it stands, except for `/` and `.`, which depend on the byte
/// before.
pub(crate) const PLAIN: u16 = 1 << 6;
/// Allowed in the value of a field: no control byte except for the tab.
const VALUE: u16 = 1 << 7;
/// Allowed in the name of a field and read alike by all readers. CGI gateways read every other byte as `_`.
const USUAL_IN_NAME: u16 = 1 << 8;
/// Allowed in a path and kept as it came: no `%`, and none of the marks that [`super::path`] looks at.
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

/// How many bytes at the beginning are valid in a field's value. Long values are tested by vector instructions; the
/// rest of them, and short ones, by the table.
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
    // Looks at all bytes without a branch for each, which is faster: a hit is rare, and the length is bounded.
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
        // Clients never send a fragment, and only some parsers drop it. The framework's parser refuses a quote in a
        // query, and would answer by itself.
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
