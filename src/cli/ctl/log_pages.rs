//! `tollgate ctl log`: writes the last lines of the access log to standard output, as `tollgate replay` reads them.
//!
//! It asks for one page after the other until it has the last line that there was when it began, so that it ends while
//! requests go on. What must always hold: lines that are missing are told on standard error, never passed over in silence.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use serde_json::Value;

use super::{TIMEOUT, ask, refused};
use crate::cli::admin_client::AdminClient;
use crate::cli::output::{self, Ending};
use crate::cli::table;
use crate::config;
use crate::ops::{LOG_DROPPED, LOG_KEPT_SINCE, LOG_LAST, LOG_NEXT};

/// Which lines are written.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// The lines of this last span, as 30s, 5m or 1h.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = config::read_duration)]
    last: Duration,
}

/// How a page stands among the others.
struct PageNumbers {
    next: u64,
    last: u64,
    dropped: u64,
}

/// Writes all pages. The ending is negative if the process refuses.
pub(super) fn write(client: &AdminClient, args: &LogArgs, is_json: bool) -> Ending {
    let mut path = format!("/log?since={}ms", args.last.as_millis());
    let (mut after, mut end) = (None, None);
    loop {
        let asked = ask(|| client.get(&path, TIMEOUT).map(|answer| (answer.status(), answer)));
        let answer = match asked {
            Ok((StatusCode::OK, answer)) => answer,
            Ok((status, answer)) => return refused(status, &problem(&answer), is_json),
            Err(why) => return output::refuse("ctl", &why),
        };
        let page = match PageNumbers::read(answer.headers(), after) {
            Ok(page) => page,
            Err(why) => return output::refuse("ctl", &why),
        };
        tell_missing(answer.headers(), &page, after);
        let ending = write_text(answer.body());
        if ending != Ending::Success {
            return ending;
        }
        if page.next >= *end.get_or_insert(page.last) {
            return Ending::Success;
        }
        after = Some(page.next);
        path = format!("/log?after={}", page.next);
    }
}

fn write_text(body: &[u8]) -> Ending {
    match std::str::from_utf8(body) {
        Ok(text) => output::answer(text, Ending::Success),
        Err(_) => output::refuse("ctl", "an answer that is no text"),
    }
}

impl PageNumbers {
    /// The numbers of a page after a line; they are larger than its number.
    fn read(fields: &HeaderMap, after: Option<u64>) -> Result<Self, String> {
        let number = |name: HeaderName| {
            let value = fields.get(&name).and_then(|value| value.to_str().ok()?.parse().ok());
            value.ok_or_else(|| format!("an answer without {name}; is it another version?"))
        };
        let page = Self {
            next: number(LOG_NEXT)?,
            last: number(LOG_LAST)?,
            dropped: number(LOG_DROPPED)?,
        };
        match after {
            // It would be asked for again and again.
            Some(after) if page.next <= after => Err(format!("the page after {after} is empty")),
            Some(_) | None => Ok(page),
        }
    }
}

/// Says which lines are missing before a page.
fn tell_missing(fields: &HeaderMap, page: &PageNumbers, after: Option<u64>) {
    let since = fields.get(LOG_KEPT_SINCE).map(|since| String::from_utf8_lossy(since.as_bytes()));
    let since = since.map(|since| table::text(&Value::from(&*since)));
    match (after, since) {
        (None, Some(since)) => output::complain(&format!(
            "tollgate ctl: lines of the access log are kept since {since}; earlier ones are missing"
        )),
        (Some(_), _) if page.dropped > 0 => output::complain(&format!(
            "tollgate ctl: {} lines were dropped before they could be read; they are missing",
            page.dropped
        )),
        (None, None) | (Some(_), _) => {}
    }
}

/// The problem document of an answer, or its text.
fn problem(answer: &Response<Bytes>) -> Value {
    let body = answer.body();
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_leads_nowhere_is_refused() {
        let fields = |next: &str| {
            let mut fields = HeaderMap::new();
            for (name, value) in [(LOG_NEXT, next), (LOG_LAST, "9"), (LOG_DROPPED, "0")] {
                fields.insert(name, value.parse().unwrap());
            }
            fields
        };
        let check = |next: &str, after, expected: &str| {
            let read = PageNumbers::read(&fields(next), after);
            let told = read.map_or_else(|why| why, |page| page.next.to_string());
            assert!(told.contains(expected), "{next} {after:?}: {told}");
        };
        check("0", None, "0");
        check("7", Some(6), "7");
        check("6", Some(6), "the page after 6 is empty");
        check("-1", None, "without x-tollgate-next");
        check("99999999999999999999", None, "without x-tollgate-next");
        assert!(PageNumbers::read(&HeaderMap::new(), None).is_err());
    }
}
