//! The common and the combined format, with or without the virtual host first.
//!
//! ```text
//! [host[:port] ]client ident user [24/Nov/2026:06:46:29 +0000] "GET / HTTP/1.1" 200 612 "referer" "user agent" ..
//! ```

use memchr::memchr;

use super::decimal::{self, TimeUnit};
use super::draft::{self, Draft};
use super::record::{AccessLine, LineError, Moment};
use super::text::{Escapes, decode};
use super::time_reader::{CLF_LENGTH, TimeReader};
use super::words::Words;

/// Which of the formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommonForm {
    /// Ends with the bytes of the response; what follows is tolerated.
    Common,
    /// Goes on with the referer and the user agent; what follows is tolerated.
    Combined,
    /// Goes on as Traefik's: a number, the router, the server, and the duration in milliseconds.
    Traefik,
}

/// Reads a line.
pub(super) fn parse<'l>(
    form: CommonForm,
    moment: Moment,
    line: &'l [u8],
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    let mut draft = Draft::new();
    let bracket = time_bracket(line).ok_or(LineError::WrongShape)?;
    client_and_user(&line[..bracket], &mut draft).ok_or(LineError::WrongShape)?;
    let inner = &line[bracket + 1..];
    let end = match inner.get(CLF_LENGTH) {
        Some(b']') => CLF_LENGTH,
        Some(_) | None => memchr(b']', inner).ok_or(LineError::WrongShape)?,
    };
    draft.time(times.clf(&inner[..end]), moment);
    let rest = inner[end + 1..].strip_prefix(b" ").ok_or(LineError::WrongShape)?;
    after_time(form, &mut Words::of(rest), &mut draft).ok_or(LineError::WrongShape)?;
    draft.finish(times)
}

/// The index of the bracket before the time. A user name may contain brackets.
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

/// Reads what stands before the time: `[host[:port] ]client ident user `.
fn client_and_user<'l>(before: &'l [u8], draft: &mut Draft<'l>) -> Option<()> {
    let mut words = Words::of(without_syslog(before));
    let first = words.word()?;
    let mut after_first = words;
    let second = words.word()?;
    let is_host_first = second != b"-" && {
        let mut third = words;
        is_address(second)
            || (third.word()? == b"-" && !third.rest().is_empty() && !is_address(first))
    };
    let client = if is_host_first {
        draft.host(decode(first, Escapes::Backslash), 2);
        after_first = words;
        second
    } else {
        first
    };
    draft.client(std::str::from_utf8(client).ok().and_then(draft::address), 1);
    after_first.word()?;
    let user = after_first.rest();
    draft.user(decode(user.strip_suffix(b" ").unwrap_or(user), Escapes::Backslash));
    Some(())
}

/// Removes what syslog writes before the client: `<134>Nov 24 06:46:29 web1 nginx: `.
fn without_syslog(before: &[u8]) -> &[u8] {
    if memchr(b':', before).is_none() {
        return before;
    }
    let is_tag = |bytes: &[u8]| matches!(bytes, [last, b':', b' '] if last.is_ascii_alphabetic() || *last == b']');
    let Some(at) = before.windows(3).rposition(is_tag) else {
        return before;
    };
    let client = &before[at + 3..];
    // A user name may end like a tag; then too little follows for a client, an identity and a user.
    if client.iter().filter(|byte| **byte == b' ').count() < 3 { before } else { client }
}

fn is_address(word: &[u8]) -> bool {
    std::str::from_utf8(word).ok().and_then(draft::address).is_some()
}

/// Reads what stands behind the time.
fn after_time<'l>(form: CommonForm, words: &mut Words<'l>, draft: &mut Draft<'l>) -> Option<()> {
    draft.request_line(decode(words.quoted()?, Escapes::Backslash));
    draft.status(number(words.word()?)?);
    let bytes = number(words.word()?)?;
    // Apache writes `-` for no bytes.
    draft.response_bytes(if bytes == "-" { "0" } else { bytes }, 1);
    if form == CommonForm::Common {
        return Some(());
    }
    draft.header("referer".into(), decode(words.quoted()?, Escapes::Backslash));
    draft.header("user-agent".into(), decode(words.quoted()?, Escapes::Backslash));
    if form == CommonForm::Traefik {
        traefik(words, draft)?;
    }
    Some(())
}

/// Reads `7 "router@docker" "http://10.0.0.2:80" 3ms`.
fn traefik(words: &mut Words<'_>, draft: &mut Draft<'_>) -> Option<()> {
    number(words.word()?)?;
    words.quoted()?;
    words.quoted()?;
    let millis = std::str::from_utf8(words.word()?).ok()?.strip_suffix("ms")?;
    draft.duration(Some(decimal::decimal(millis, TimeUnit::Millis)?));
    Some(())
}

/// A number as text, or `-`.
fn number(word: &[u8]) -> Option<&str> {
    let is_number = word == b"-" || word.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(word).ok())?
}
