//! Which bytes may stand where, in one table: every byte of a head is looked up once.

/// Of names and methods (RFC 9110, section 5.6.2).
pub(super) const TOKEN: u8 = 1;
/// Of a field's value: no control byte but the tab.
pub(super) const VALUE: u8 = 1 << 1;
/// Of a request target on the wire: neither blank nor control byte, and ASCII.
pub(super) const TARGET: u8 = 1 << 2;
/// What stands for itself in no query (RFC 3986, appendix A) and no reader's parser takes.
pub(super) const STRANGE_IN_QUERY: u8 = 1 << 3;
/// The same of paths, as far as [`super::path`] does not know better.
pub(super) const STRANGE_IN_PATH: u8 = 1 << 4;
/// Of a host's name.
pub(super) const NAME: u8 = 1 << 5;
/// A letter in upper case.
pub(super) const UPPER: u8 = 1 << 6;
/// Of a path, and read alike by everybody wherever it stands; `/` and `.` depend on what is before.
pub(super) const PLAIN: u8 = 1 << 7;

const CLASSES: [u8; 256] = classes();

/// All classes of a byte.
pub(super) const fn of(byte: u8) -> u8 {
    CLASSES[byte as usize]
}

/// Whether all bytes are of a class.
pub(super) fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|byte| of(*byte) & class != 0)
}

/// Whether any byte is of a class.
pub(super) fn any(bytes: &[u8], class: u8) -> bool {
    bytes.iter().any(|byte| of(*byte) & class != 0)
}

const fn classes() -> [u8; 256] {
    let mut all = [0; 256];
    let mut place = 0;
    while place < all.len() {
        let byte = place as u8;
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
        if matches!(byte, b'\t' | b' '..=b'~' | 0x80..) {
            classes |= VALUE;
        }
        if matches!(byte, 0x20..0x7f) {
            classes |= TARGET;
        }
        if matches!(byte, 0..=0x20 | b'<' | b'>' | 0x7f..) {
            classes |= STRANGE_IN_QUERY;
        }
        if matches!(byte, b'<' | b'>' | b'`') {
            classes |= STRANGE_IN_PATH;
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
        all[place] = classes;
        place += 1;
    }
    all
}
