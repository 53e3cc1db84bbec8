//! Which questions are about traffic: refusals, refused keys and the last day. They change nothing, and their answers may
//! be long, so they wait in the queue of answers.

use http::{Response, StatusCode, Uri};

use super::AdminApi;
use super::keys::Unanswered;

/// Where refusals are asked for by their identifiers.
const REFUSAL: &str = "/refusals/";

/// Whether a path asks about traffic.
pub(super) fn is_about_traffic(path: &str) -> bool {
    matches!(path, "/refusals" | "/top" | "/history") || path.starts_with(REFUSAL)
}

impl AdminApi {
    /// Answers a question about traffic.
    pub(super) fn traffic(&self, uri: &Uri) -> Response<Vec<u8>> {
        let query = uri.query();
        let answer = match uri.path() {
            "/refusals" => self.refusals(query).map(|answer| format!("{answer:#}\n")),
            "/top" => self.top(query).map(|answer| format!("{answer:#}\n")),
            "/history" => self.minutes(query),
            path => {
                let id = path.strip_prefix(REFUSAL).unwrap_or_default();
                self.refusal(id, query).map(|answer| format!("{answer:#}\n"))
            }
        };
        match answer {
            Ok(text) => super::body(StatusCode::OK, "application/json", text),
            Err(Unanswered { status, detail }) => super::problem(status, &detail),
        }
    }
}
