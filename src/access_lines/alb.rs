//! Access logs of an Application Load Balancer of AWS.
//!
//! ```text
//! type time elb client:port target:port request_time target_time response_time status target_status received sent
//! "request" "user agent" cipher protocol group "trace" "domain" "certificate" priority creation_time ..
//! ```
//!
//! `time` is the end of the response, `request_creation_time` the start of the request; the start is taken if it is
//! there. <https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html>

use super::decimal::{self, DecimalNanos, TimeUnit};
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
    fields(line, &mut draft, times).ok_or(LineError::WrongShape)?;
    draft.finish(times)
}

fn fields<'l>(line: &'l [u8], draft: &mut Draft<'l>, times: &mut TimeReader) -> Option<()> {
    let mut words = Words::of(line);
    match words.word()? {
        b"http" | b"ws" => draft.tls(false),
        b"https" | b"h2" | b"grpcs" | b"wss" => draft.tls(true),
        _ => return None,
    }
    draft.time(times.rfc3339(words.word()?), Moment::End);
    let _balancer = words.word()?;
    draft.client(draft::address(text(words.word()?)?), 1);
    let _target = words.word()?;
    draft.duration(total(&[words.word()?, words.word()?, words.word()?]));
    draft.status(text(words.word()?)?);
    let _target_status = words.word()?;
    let _received = words.word()?;
    draft.response_bytes(text(words.word()?)?, 1);
    draft.request_line(decode(words.quoted()?, Escapes::Backslash));
    draft.header("user-agent".into(), decode(words.quoted()?, Escapes::Backslash));
    // Cipher, protocol, group, trace, domain, certificate and priority; older logs end earlier.
    let created = (0..8).map(|_| words.field()).last().flatten();
    if let Some(created) = created.filter(|created| created.ends_with(b"Z")) {
        draft.time(times.rfc3339(created), Moment::Start);
    }
    Some(())
}

/// The sum of the three times. `-1` stands for one that never came, and then the sum is not known.
fn total(spans: &[&[u8]; 3]) -> Option<DecimalNanos> {
    let none = DecimalNanos { nanos: 0, resolution: 0 };
    spans.iter().try_fold(none, |total, span| {
        let DecimalNanos { nanos, resolution } = decimal::duration(text(span)?, TimeUnit::Seconds)?;
        Some(DecimalNanos {
            nanos: total.nanos.checked_add(nanos)?,
            resolution: total.resolution.checked_add(resolution)?,
        })
    })
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}
