//! The text that Envoy writes without a `format`, and the longer one of Istio.
//!
//! ```text
//! [2026-11-24T06:46:29.250Z] "GET /a HTTP/1.1" 200 - 0 135 28 27 "x-forwarded-for" "user agent" "request id" "host" "upstream"
//! [2026-11-24T06:46:29.250Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 135 28 27 "x-forwarded-for" ..
//! ```
//!
//! The time is the start of the request, and the duration is in milliseconds. The text has no address of the client: of
//! `x-forwarded-for`, only the operator knows which entry a trusted proxy wrote. Istio's has it near its end.

use super::decimal::{self, TimeUnit};
use super::draft::{self, Draft};
use super::record::{AccessLine, LineError, Moment};
use super::text::{Escapes, decode};
use super::time_reader::TimeReader;
use super::words::Words;

/// Reads a line.
pub(super) fn parse<'l>(
    line: &'l [u8],
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    let mut draft = Draft::new();
    let mut words = Words::of(line);
    let time = words.enclosed(b'[', b']').ok_or(LineError::WrongShape)?;
    draft.time(times.rfc3339(time), Moment::Start);
    after_time(&mut words, &mut draft).ok_or(LineError::WrongShape)?;
    draft.finish(times)
}

fn after_time<'l>(words: &mut Words<'l>, draft: &mut Draft<'l>) -> Option<()> {
    draft.request_line(decode(words.quoted()?, Escapes::Backslash));
    draft.status(text(words.word()?)?);
    let _flags = words.word()?;
    let mut received = words.field()?;
    let is_istio = !received.iter().all(u8::is_ascii_digit);
    if is_istio {
        // The details of the response and of the connection's end, then the failure of the upstream's transport.
        let _end = words.field()?;
        let _failure = words.quoted()?;
        received = words.word()?;
    }
    text(received)?.parse::<u64>().ok()?;
    draft.response_bytes(text(words.word()?)?, 1);
    draft.duration(decimal::duration(text(words.word()?)?, TimeUnit::Millis));
    let _upstream_time = words.word()?;
    draft.header("x-forwarded-for".into(), decode(words.quoted()?, Escapes::Backslash));
    draft.header("user-agent".into(), decode(words.quoted()?, Escapes::Backslash));
    let _request_id = words.quoted()?;
    draft.host(decode(words.quoted()?, Escapes::Backslash), 2);
    if is_istio {
        after_host(words, draft);
    }
    Some(())
}

/// Reads `"upstream host" cluster upstream-local downstream-local downstream-remote ..`, as far as it is there.
fn after_host(words: &mut Words<'_>, draft: &mut Draft<'_>) {
    let remote = (0..5).map(|_| words.field()).last().flatten();
    draft.client(remote.and_then(text).and_then(draft::address), 2);
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}
