use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use pingora::http::RequestHeader;
use tollgate::http::{
    Head, HeadScan, HostCache, Length, RejectReason, WireHead, validate, validate_scanned,
};

use super::gate::{BOUNDS, is_clean};

/// An HTTP/1 head and what follows it. However it is cut, the scan says the same; what it accepts is
/// the head that the framework's parser finds, with the same fields and the same length of the body.
pub fn heads(bytes: &[u8]) {
    let whole = scanned(bytes, bytes.len());
    for cut in super::cuts(bytes.len()) {
        let pieces = scanned(bytes, cut);
        match whole {
            Ok(Some(_)) => assert_eq!(pieces, whole, "cut at {cut}"),
            // What is refused may be refused for another reason before all of it has come, and a line
            // that came in pieces when it ends.
            Err(_) if pieces.is_err() => {}
            Err(_) => {
                assert_eq!(pieces, Ok(None), "cut at {cut}");
                let ended = [bytes, b"\r\n"].concat();
                assert!(scanned(&ended, cut).is_err(), "cut at {cut}");
            }
            Ok(None) => assert_eq!(pieces, Ok(None), "cut at {cut}"),
        }
    }
    if let Ok(Some(head)) = whole {
        let bytes = &bytes[..head.size];
        assert_eq!(scanned(bytes, bytes.len()), Ok(Some(head.clone())), "what follows matters");
        is_strict(bytes);
        is_parsed_alike(bytes, &head);
    }
}

/// A scan in two pieces.
fn scanned(bytes: &[u8], cut: usize) -> Result<Option<WireHead>, RejectReason> {
    let (mut scan, mut last) = (HeadScan::default(), HostCache::default());
    if let Some(head) = scan.advance(&bytes[..cut], BOUNDS, &mut last)? {
        return Ok(Some(head));
    }
    scan.advance(bytes, BOUNDS, &mut last)
}

/// What no two readers differ about, said in another way than the scan says it.
fn is_strict(head: &[u8]) {
    let text: String = head.iter().map(|byte| char::from(*byte)).collect();
    let lines: Vec<&str> = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").collect();
    let control = |c: char| c < ' ' && c != '\t' || c == '\x7f';
    assert!(!lines.iter().any(|line| line.contains(control)), "{text:?}");
    let named = |name: &str| {
        let named = |line: &&&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        lines[1..].iter().filter(named).count()
    };
    let begins_a_field = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        line.contains(':') && !name.is_empty() && name.chars().all(token)
    };
    assert!(lines[1..].iter().all(begins_a_field), "{text:?}");
    assert!(named("host") == 1 || named("host") == 0 && lines[0].ends_with("HTTP/1.0"));
    assert!(named("content-length") + named("transfer-encoding") <= 1, "{text:?}");
    assert_eq!(lines[0].split(' ').count(), 3, "{text:?}");
    assert!(lines.len() <= BOUNDS.header_fields + 1 && head.len() <= BOUNDS.header_size);
}

/// The framework's parser finds the same head, answers nothing by itself, and the gate says of the
/// parsed head what it says of the bytes.
fn is_parsed_alike(bytes: &[u8], head: &WireHead) {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut fields);
    let size = parsed.parse(bytes).unwrap_or_else(|error| panic!("the framework says {error}"));
    assert_eq!(size, httparse::Status::Complete(bytes.len()));
    let (method, target) = (parsed.method.unwrap(), parsed.path.unwrap());
    assert!(RequestHeader::build(method, target.as_bytes(), None).is_ok(), "{target}");
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap();
    let version = if parsed.version == Some(0) { "1.0" } else { "1.1" };
    assert_eq!(line, format!("{method} {target} HTTP/{version}").as_bytes());
    let mut headers = HeaderMap::new();
    for field in parsed.headers.iter() {
        headers.append(
            HeaderName::from_bytes(field.name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(field.value).unwrap(),
        );
    }
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(headers.len(), lines - 2, "each line is one field");
    assert_eq!(body(&headers), Some(head.body));
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let version = if version == "1.0" { Version::HTTP_10 } else { Version::HTTP_11 };
    let target = target.as_bytes();
    let framed = Head { method: &method, target, authority: None, version, headers: &headers };
    // Of several reasons to refuse it either may be told.
    let read = validate_scanned(&head.scanned, target, BOUNDS).unwrap();
    match (validate(framed, BOUNDS), read) {
        (Ok(clean), read) => {
            is_clean(&clean, &method);
            assert_eq!(Ok(clean), read);
        }
        (Err(_), read) => assert!(read.is_err(), "{read:?}"),
    }
}

/// The length that RFC 9112, section 6.3, gives a request; `None`: it is not to be told.
fn body(headers: &HeaderMap) -> Option<Length> {
    match (headers.get("content-length"), headers.get("transfer-encoding")) {
        (None, None) => Some(Length::None),
        (Some(length), None) => length.to_str().ok()?.parse().ok().map(Length::Bytes),
        (None, Some(coding)) => {
            coding.as_bytes().eq_ignore_ascii_case(b"chunked").then_some(Length::Chunked)
        }
        (Some(_), Some(_)) => None,
    }
}
