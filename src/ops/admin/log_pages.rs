//! `GET /log`: the last lines of the access log, one JSON object per line, a page at a time.
//!
//! | field of an answer | value |
//! |---|---|
//! | [`LOG_NEXT`] | the number of the last line of this page: `after=` it asks for the next page |
//! | [`LOG_LAST`] | the number of the last line that there was; there are more pages while it is larger than [`LOG_NEXT`] |
//! | [`LOG_DROPPED`] | how many of the lines that were asked for are dropped; without `after`, at most so many |
//! | [`LOG_KEPT_SINCE`] | the time since which all lines are kept, if earlier ones were asked for |
//!
//! Lines have addresses of clients. What must always hold: nobody sees them unless the configuration allows it.

use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::AdminApi;
use super::keys::Unanswered;
use super::query::{Parameters, bad_request, not_found};
use super::replies::{body, problem};
use crate::clock::Nanos;
use crate::config::LogTarget;
use crate::ops::access_log::{LinePage, LogPageError};
use crate::ops::log::timestamp;

/// The field with the number of the last line of a page.
pub const LOG_NEXT: HeaderName = HeaderName::from_static("x-tollgate-next");

/// The field with the number of the last line of all.
pub const LOG_LAST: HeaderName = HeaderName::from_static("x-tollgate-last");

/// The field with the number of lines that are missing.
pub const LOG_DROPPED: HeaderName = HeaderName::from_static("x-tollgate-dropped");

/// The field with the time since which no line is missing.
pub const LOG_KEPT_SINCE: HeaderName = HeaderName::from_static("x-tollgate-kept-since");

impl AdminApi {
    /// A page of the log.
    pub(super) fn log_page(&self, query: Option<&str>) -> Response<Vec<u8>> {
        match self.find_page(query) {
            Ok(page) => page_answer(page),
            Err(Unanswered { status, detail }) => problem(status, &detail),
        }
    }

    fn find_page(&self, query: Option<&str>) -> Result<LinePage, Unanswered> {
        if !self.show_addresses {
            let detail = "lines of the access log have addresses of clients; \
                          write admin: { show_addresses: true } and restart to see them";
            return Err(Unanswered { status: StatusCode::FORBIDDEN, detail: detail.to_owned() });
        }
        let parameters = Parameters::of(query, &["since", "after"])?;
        let date = self.engine.date(self.engine.now());
        let since = parameters.date("since", date)?.unwrap_or_default();
        let after = match parameters.get("after") {
            Some(_) => Some(parameters.number("after", 0, (0, u64::MAX))?),
            None => None,
        };
        self.access_log.recent().page(after, since).map_err(|error| match error {
            LogPageError::NotKept => not_found(self.why_not_kept().to_owned()),
            LogPageError::UnknownLine { last } => bad_request(format!(
                "after={}: no line of this process has this number, the last is {last}; \
                 write the {LOG_NEXT} of an answer, or leave after out",
                after.unwrap_or_default(),
            )),
        })
    }

    fn why_not_kept(&self) -> &'static str {
        match self.live.load().access_log.to {
            LogTarget::None => {
                "there is no access log; write access_log: { to: stdout, replay: true } and reload"
            }
            LogTarget::Stdout | LogTarget::Stderr | LogTarget::File(_) => {
                "no lines of the access log are kept; write access_log: { replay: true } and reload"
            }
        }
    }
}

fn page_answer(page: LinePage) -> Response<Vec<u8>> {
    let LinePage { text, next, last, dropped, kept_since } = page;
    let mut answer = body(StatusCode::OK, "application/x-ndjson", text);
    let fields = answer.headers_mut();
    for (name, number) in [(LOG_NEXT, next), (LOG_LAST, last), (LOG_DROPPED, dropped)] {
        fields.insert(name, HeaderValue::from(number));
    }
    let since = kept_since.map(shown_since).and_then(|since| HeaderValue::try_from(since).ok());
    if let Some(since) = since {
        fields.insert(LOG_KEPT_SINCE, since);
    }
    answer
}

/// A time to the millisecond, rounded up: no line since then is missing.
fn shown_since(since: Nanos) -> String {
    const MILLISECOND: Nanos = Nanos::from_millis(1);
    timestamp(since.saturating_add(MILLISECOND).saturating_sub(Nanos::new(1)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_which_lines_are_kept_is_rounded_up() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1, "1970-01-01T00:00:00.001Z"),
            (1_000_000, "1970-01-01T00:00:00.001Z"),
            (1_000_001, "1970-01-01T00:00:00.002Z"),
        ] {
            assert_eq!(shown_since(Nanos::new(nanos)), expected);
        }
    }
}
