use serde_json::Value;
use tollgate::policy::{BodyNumber, BodyScan, JsonPointer};

/// The pointer and whether the body is an event stream, then the body. The scan finds what a parser of whole documents
/// finds, however the body is cut.
pub fn response_costs(bytes: &[u8]) {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let (first, body) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let first = String::from_utf8_lossy(first);
    let (is_event_stream, pointer) = match first.strip_prefix('e') {
        Some(pointer) => (true, pointer),
        None => (false, &*first),
    };
    let Ok(pointer) = JsonPointer::parse(pointer) else {
        return;
    };
    let uncut = scanned(&pointer, is_event_stream, &[body]);
    for cut in super::cuts(body.len()) {
        let (before, after) = body.split_at(cut);
        assert_eq!(scanned(&pointer, is_event_stream, &[before, after]), uncut, "cut at {cut}");
    }
    let single: Vec<&[u8]> = body.chunks(1).take(1 << 16).collect();
    if body.len() <= 1 << 16 {
        assert_eq!(scanned(&pointer, is_event_stream, &single), uncut, "byte by byte");
    }
    let text = String::from_utf8_lossy(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body));
    let documents = match is_event_stream {
        true => events(&text),
        false => vec![text.into_owned()],
    };
    // Beyond what a 64-bit float can hold, the reference refuses a document that is valid.
    if documents.iter().any(|document| is_out_of_range(document)) {
        return;
    }
    let named = documents.iter().filter_map(|document| {
        units(serde_json::from_str::<Value>(document).ok()?.pointer(&pointer.to_string())?)
    });
    let is_valid = is_event_stream || serde_json::from_str::<Value>(&documents[0]).is_ok();
    match (uncut, named.last()) {
        (BodyNumber::Final(found), Some(named)) => {
            // The reference rounds numbers of many digits to the nearest float.
            let slack = 1.0 + named * 1e-9;
            assert!(
                (f64::from(found) - named.min(f64::from(u32::MAX))).abs() <= slack,
                "{found} {named}"
            );
        }
        (BodyNumber::Absent, None) => assert!(is_valid || body.is_empty()),
        (BodyNumber::Invalid | BodyNumber::SoFar(_), None) => assert!(!is_valid),
        (found, named) => panic!("{found:?}, and the reference: {named:?}"),
    }
}

fn scanned(pointer: &JsonPointer, is_event_stream: bool, chunks: &[&[u8]]) -> BodyNumber {
    let pointers = || std::iter::once(pointer);
    let mut scan = BodyScan::new(1, is_event_stream);
    chunks.iter().for_each(|chunk| scan.push(pointers(), chunk));
    scan.finish(pointers(), true)[0]
}

/// The texts of the events, as the HTML standard reads a whole stream; the last one needs no empty line.
fn events(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut lines) = (Vec::new(), Vec::new());
    for line in text.split('\n').chain([""]) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if line.is_empty() && !lines.is_empty() {
            events.push(std::mem::take(&mut lines).join("\n"));
        } else if field == "data" {
            lines.push(value.strip_prefix(' ').unwrap_or(value).to_owned());
        }
    }
    events
}

/// A number, rounded up, or a text of digits; negative zero is negative.
fn units(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text)
            if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            text.parse().ok()?
        }
        _ => return None,
    };
    (!number.is_sign_negative()).then(|| number.ceil())
}

fn is_out_of_range(document: &str) -> bool {
    serde_json::from_str::<Value>(document)
        .is_err_and(|error| error.to_string().starts_with("number out of range"))
}
