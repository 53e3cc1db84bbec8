//! Questions about traffic: refusals, refused keys and the last day. They change nothing, and their answers may
//! be long, so they wait in the queue of answers.

use http::{Response, StatusCode, Uri};

use super::AdminApi;
use super::endpoints::{Endpoint, REFUSAL};
use super::keys::Unanswered;
use super::replies::{body, problem};

impl AdminApi {
    /// Answers a question about traffic.
    pub(super) fn traffic(&self, endpoint: Endpoint, uri: &Uri) -> Response<Vec<u8>> {
        let query = uri.query();
        let answer = match endpoint {
            Endpoint::Refusals => self.refusals(query).map(|answer| format!("{answer:#}\n")),
            Endpoint::Top => self.top(query).map(|answer| format!("{answer:#}\n")),
            Endpoint::History => self.minutes(query),
            _ => {
                let id = uri.path().strip_prefix(REFUSAL).unwrap_or_default();
                self.refusal(id, query).map(|answer| format!("{answer:#}\n"))
            }
        };
        match answer {
            Ok(text) => body(StatusCode::OK, "application/json", text),
            Err(Unanswered { status, detail }) => problem(status, &detail),
        }
    }
}
