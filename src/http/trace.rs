//! The trace that a request belongs to: `traceparent` (W3C Trace Context, section 3.2). A field that is not valid names no
//! trace.

use http::HeaderMap;

/// The length of a field of version 00; later versions may append to it.
const LENGTH: usize = 55;

/// The identifier of the trace: 32 lower-case hexadecimal digits. `None` without the field, and if it is not valid or
/// occurs more than once.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all("traceparent").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let text = line.to_str().ok()?;
    let (fixed, more) = text.split_at_checked(LENGTH)?;
    let mut items = fixed.split('-');
    let mut next = |digits: usize| {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let item = items.next()?;
        (item.len() == digits && item.as_bytes().iter().all(is_digit)).then_some(item)
    };
    let (version, trace, parent) = (next(2)?, next(32)?, next(16)?);
    next(2)?;
    let is_known = match version {
        "00" => more.is_empty(),
        "ff" => false,
        _ => more.is_empty() || more.starts_with('-'),
    };
    let is_nothing = |id: &str| id.bytes().all(|digit| digit == b'0');
    (is_known && !is_nothing(trace) && !is_nothing(parent)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_valid_field_names_a_trace() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        let of = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("traceparent", HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            trace_id(&headers).map(str::to_owned)
        };
        let field =
            |version: &str, more: &str| format!("{version}-{TRACE}-00f067aa0ba902b7-01{more}");
        for valid in [field("00", ""), field("01", ""), field("cc", "-what-comes-later")] {
            assert_eq!(of(&[&valid]).as_deref(), Some(TRACE), "{valid}");
        }
        for invalid in [
            field("00", "-more"),
            field("ff", ""),
            field("01", "more"),
            field("0", ""),
            field("00", "").to_uppercase(),
            field("00", "").replace('-', "_"),
            field("00", "").replace(TRACE, &"0".repeat(32)),
            field("00", "").replace("00f067aa0ba902b7", &"0".repeat(16)),
            field("00", "").replace("4bf", "4b\u{fc}"),
            field("00", "")[..54].to_owned(),
            String::new(),
        ] {
            assert_eq!(of(&[&invalid]), None, "{invalid}");
        }
        assert_eq!(of(&[&field("00", ""), &field("00", "")]), None, "two lines");
        assert_eq!(of(&[]), None);
    }
}
