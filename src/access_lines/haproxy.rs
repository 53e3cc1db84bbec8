//! HAProxy's `option httplog`, with or without what syslog writes before it.
//!
//! ```text
//! 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in~ static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {ua|key} {} "GET / HTTP/1.1"
//! ```
//!
//! The time is the start of the request in the time zone of the server. The last timer is the duration in milliseconds. A
//! frontend whose name ends in `~` terminates TLS. Captured fields have no names in the log; the operator names them by
//! their index.

use std::borrow::Cow;

use memchr::memchr;

use super::decimal::{self, TimeUnit};
use super::draft::{self, Draft, Meaning};
use super::record::{AccessLine, LineError, Moment};
use super::text::{Escapes, decode};
use super::time_reader::TimeReader;
use super::words::Words;

/// Reads a line. The names of captures are pairs of index and meaning.
pub(super) fn parse<'l>(
    captures: &[(usize, Meaning)],
    line: &'l [u8],
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    let mut draft = Draft::new();
    let bracket = time_bracket(line).ok_or(LineError::WrongShape)?;
    let mut words = Words::of(&line[bracket..]);
    let time = words.enclosed(b'[', b']').ok_or(LineError::WrongShape)?;
    draft.time(times.clf(time), Moment::Start);
    client(&line[..bracket - 1], &mut draft).ok_or(LineError::WrongShape)?;
    after_time(captures, &mut words, &mut draft, times).ok_or(LineError::WrongShape)?;
    draft.finish(times)
}

/// The index of the bracket before the time. That of the process (`haproxy[123]`) has no space before it.
fn time_bracket(line: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr(b'[', line.get(from..)?)?;
        if at > 0 && line[at - 1] == b' ' && line.get(at + 3) == Some(&b'/') {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Reads the client, which is the last word before the time: `10.0.1.2:33317`. An address of IPv6 has no brackets.
fn client(before: &[u8], draft: &mut Draft<'_>) -> Option<()> {
    let start = memchr::memrchr(b' ', before).map_or(0, |space| space + 1);
    let word = std::str::from_utf8(&before[start..]).ok()?;
    let (address, port) = word.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    draft.client(draft::address(address), 1);
    Some(())
}

fn after_time<'l>(
    captures: &[(usize, Meaning)],
    words: &mut Words<'l>,
    draft: &mut Draft<'l>,
    times: &mut TimeReader,
) -> Option<()> {
    draft.tls(words.word()?.ends_with(b"~"));
    let _server = words.word()?;
    let timers = text(words.word()?)?;
    let total = timers.rsplit_once('/')?.1.trim_start_matches('+');
    draft.duration(decimal::decimal(total, TimeUnit::Millis));
    draft.status(text(words.word()?)?);
    draft.response_bytes(text(words.word()?)?, 1);
    // Captured cookies, the state at the end, connections and queues.
    for _ in 0..5 {
        words.word()?;
    }
    let mut is_request = true;
    while let Some(braced) = words.enclosed(b'{', b'}') {
        if is_request {
            take_captures(captures, braced, draft, times);
        }
        is_request = false;
    }
    let quoted = words.rest().strip_prefix(b"\"")?;
    // A line that syslog has cut ends within the request.
    let end = memchr(b'"', quoted).unwrap_or(quoted.len());
    draft.request_line(decode(&quoted[..end], Escapes::Hash));
    Some(())
}

/// Takes the captured fields of the request: `{first|second}`.
fn take_captures<'l>(
    captures: &[(usize, Meaning)],
    braced: &'l [u8],
    draft: &mut Draft<'l>,
    times: &mut TimeReader,
) {
    if captures.is_empty() {
        return;
    }
    for (index, value) in braced.split(|byte| *byte == b'|').enumerate() {
        let value: Cow<'l, str> = decode(value, Escapes::Hash);
        for (_, meaning) in captures.iter().filter(|(capture, _)| *capture == index) {
            draft.set(meaning, value.clone(), times);
        }
    }
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}
