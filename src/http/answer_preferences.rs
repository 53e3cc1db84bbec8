//! What a client prefers in its refusal: one of the operator's bodies, by `Accept`, and which web page may read it, by
//! `Origin`.

use http::header::{self, HeaderMap, HeaderValue};

use crate::config::{Cors, Page, RefusalBody, Responses};

const PROBLEM_JSON: &str = "application/problem+json";

/// The preferences of a client for the answer that refuses it.
#[derive(Clone, Copy, Debug)]
pub struct AnswerPreferences<'r> {
    /// The fields of the request.
    pub headers: &'r HeaderMap,
    /// A random number from 0 to 1: the position in the jitter of `Retry-After`.
    pub chance: f64,
    /// The identifier of the request, which the answer repeats: letters, digits and `-._~:/+=@` only. Empty for none.
    pub request_id: &'r str,
}

/// A body that an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferedBody<'b> {
    /// One that `responses.body` lists.
    Listed(&'b RefusalBody),
    /// A page of the status.
    Page(&'b Page),
}

impl<'b> OfferedBody<'b> {
    fn problem() -> Self {
        Self::Listed(&RefusalBody::Problem)
    }

    fn media_type(self) -> &'b str {
        match self {
            Self::Listed(RefusalBody::Problem | RefusalBody::Grpc) => PROBLEM_JSON,
            Self::Listed(RefusalBody::File { media_type, .. }) => media_type,
            Self::Page(page) => &page.media_type,
        }
    }
}

/// The body that a client prefers.
pub(crate) struct ChosenBody<'b> {
    pub(crate) body: OfferedBody<'b>,
    /// Whether another `Accept` could have had another body.
    pub(crate) varies: bool,
}

#[cfg(feature = "bin")]
impl ChosenBody<'_> {
    /// The problem document, for a client of which nothing is known.
    pub(crate) fn problem() -> Self {
        Self { body: OfferedBody::problem(), varies: false }
    }
}

/// The largest number of ranges of `Accept` that are read.
const MAX_RANGES: usize = 32;

impl AnswerPreferences<'_> {
    /// The body of a refusal by a limit: one of `responses.body`, or a page for 429. A gRPC call gets a gRPC status if the
    /// list has one, and no page.
    pub(crate) fn limited_body<'b>(&self, responses: &'b Responses) -> ChosenBody<'b> {
        let pages = responses.pages.of(429);
        if let ([only], []) = (responses.bodies.as_slice(), pages)
            && *only != RefusalBody::Grpc
        {
            return ChosenBody { body: OfferedBody::Listed(only), varies: false };
        }
        if self.is_grpc() && responses.bodies.contains(&RefusalBody::Grpc) {
            let body = OfferedBody::Listed(&RefusalBody::Grpc);
            return ChosenBody { body, varies: responses.bodies.len() > 1 };
        }
        self.choose(&responses.bodies, pages)
    }

    /// The body of any other answer: the problem document, or a page for its status.
    pub(crate) fn body_for<'b>(&self, status: u16, responses: &'b Responses) -> ChosenBody<'b> {
        match responses.pages.of(status) {
            [] => ChosenBody { body: OfferedBody::problem(), varies: false },
            pages => self.choose(&[RefusalBody::Problem], pages),
        }
    }

    /// What the client prefers (RFC 9110, section 12.5.1), among equals what it named itself, and then the first.
    fn choose<'b>(&self, listed: &'b [RefusalBody], pages: &'b [Page]) -> ChosenBody<'b> {
        let listed = listed.iter().filter(|body| **body != RefusalBody::Grpc);
        let offered = listed.map(OfferedBody::Listed);
        // A gRPC call cannot read a page.
        let pages = if self.is_grpc() { &[] } else { pages };
        let mut best: Option<(OfferedBody<'b>, (u16, bool))> = None;
        let mut count = 0;
        for body in offered.chain(pages.iter().map(OfferedBody::Page)) {
            count += 1;
            let quality = self.quality(body.media_type());
            if best.is_none_or(|(_, best)| quality > best) {
                best = Some((body, quality));
            }
        }
        ChosenBody {
            body: best.map_or_else(OfferedBody::problem, |(body, _)| body),
            varies: count > 1,
        }
    }

    /// The web origin that may read the answer, as the operator wrote it. `None` if no page may read it.
    pub(crate) fn reader<'c>(&self, cors: &'c Cors) -> Option<&'c HeaderValue> {
        static ANY: HeaderValue = HeaderValue::from_static("*");
        if matches!(cors, Cors::Only(none) if none.is_empty()) {
            return None;
        }
        let origin = self.headers.get(header::ORIGIN)?;
        match cors {
            Cors::All => Some(&ANY),
            Cors::Only(origins) => origins.iter().find(|allowed| *allowed == origin),
        }
    }

    fn is_grpc(&self) -> bool {
        let kind = self.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
        // `application/grpc`, `+proto` and so on; `-web` is another protocol.
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
    }

    /// The quality of a media type by `Accept`, in thousandths, and whether it stands for itself: a problem document also
    /// stands for JSON, but less well than JSON. Without `Accept` all are equal.
    fn quality(&self, media_type: &str) -> (u16, bool) {
        let mut lines = self.headers.get_all(header::ACCEPT).iter().peekable();
        if lines.peek().is_none() {
            return (1_000, true);
        }
        let ranges = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
        let mut found = (0, 0);
        for range in ranges.take(MAX_RANGES) {
            let mut parameters = range.split(';').map(str::trim);
            let Some(exactness) = parameters.next().and_then(|range| exactness(range, media_type))
            else {
                continue;
            };
            let quality = parameters
                .find_map(|parameter| parameter.strip_prefix("q="))
                .map_or(1_000, thousandths);
            if exactness > found.0 {
                found = (exactness, quality);
            }
        }
        (found.1, found.1 == 0 || found.0 != AS_JSON)
    }
}

/// How exactly `application/json` names a problem document.
const AS_JSON: u8 = 3;

/// How exactly a range names a media type: the type itself most, then `type/*`, then `*/*`. `None` if it does not name
/// it. A client that accepts JSON accepts a problem document.
fn exactness(range: &str, media_type: &str) -> Option<u8> {
    let media_type = media_type.split(';').next().unwrap_or("").trim();
    let (kind, _) = media_type.split_once('/')?;
    if range.eq_ignore_ascii_case(media_type) {
        return Some(4);
    }
    if media_type == PROBLEM_JSON && range.eq_ignore_ascii_case("application/json") {
        return Some(AS_JSON);
    }
    match range.split_once('/')? {
        ("*", "*") => Some(1),
        (other, "*") if other.eq_ignore_ascii_case(kind) => Some(2),
        _ => None,
    }
}

/// Reads a quality such as `0.5` in thousandths. A text that is not a number is 0.
fn thousandths(text: &str) -> u16 {
    let quality: f64 = text.trim().parse().unwrap_or(0.0);
    // The value is in range, so the cast only drops the fraction.
    (quality.clamp(0.0, 1.0) * 1_000.0) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PageEscape, Pages, StatusClass};
    use crate::policy::Exempt;

    fn responses() -> Responses {
        let html = RefusalBody::File { content: "<p>".into(), media_type: "text/html".to_owned() };
        Responses {
            ratelimit_fields: true,
            x_ratelimit_fields: true,
            bodies: vec![RefusalBody::Problem, html, RefusalBody::Grpc],
            pages: Pages::default(),
            cors: Cors::Only(vec![HeaderValue::from_static("https://app.example.com")]),
            exempt: Exempt::STANDARD,
            retry_after_jitter: std::time::Duration::ZERO,
        }
    }

    fn chosen(name: &'static str, value: &str) -> &'static str {
        let mut headers = HeaderMap::new();
        if !value.is_empty() {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let preferences = AnswerPreferences { headers: &headers, chance: 0.0, request_id: "" };
        match preferences.limited_body(&responses()).body {
            OfferedBody::Listed(RefusalBody::Problem) => "problem",
            OfferedBody::Listed(RefusalBody::Grpc) => "grpc",
            OfferedBody::Listed(RefusalBody::File { .. }) | OfferedBody::Page(_) => "html",
        }
    }

    #[test]
    fn a_client_is_sent_what_it_likes_best() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(chosen("accept", browser), "html");
        assert_eq!(chosen("accept", ""), "problem");
        assert_eq!(chosen("accept", "*/*"), "problem");
        assert_eq!(chosen("accept", "application/json"), "problem");
        assert_eq!(chosen("accept", "application/problem+json;q=0.1, text/*;q=0.2"), "html");
        assert_eq!(chosen("accept", "text/html;q=0, */*"), "problem");
        // Who takes nothing of it is told all the same.
        assert_eq!(chosen("accept", "image/png"), "problem");
        assert_eq!(chosen("accept", "text/html;q=x"), "problem");
        assert_eq!(chosen("content-type", "application/grpc+proto"), "grpc");
        assert_eq!(chosen("content-type", "application/grpc-web"), "problem");
    }

    /// The type that a client names is better than a problem document in its stead; a problem document is better than nothing.
    #[test]
    fn a_page_of_json_is_sent_to_a_client_that_names_json() {
        let page = |media_type: &str| Page {
            items: Vec::new(),
            media_type: media_type.to_owned(),
            escape: PageEscape::None,
        };
        let html_and_json = vec![page("text/html"), page("application/json")];
        let pages = vec![(StatusClass::Class(4), html_and_json)];
        let responses = Responses { pages: Pages::new(pages), ..responses() };
        for (accept, expected) in [
            ("application/json", "application/json"),
            ("application/json, */*;q=0.5", "application/json"),
            ("application/problem+json, application/json", PROBLEM_JSON),
            ("application/problem+json, application/json;q=0.9", PROBLEM_JSON),
            ("application/json;q=0.9, application/problem+json;q=0.8", "application/json"),
            ("text/html, application/json;q=0.9", "text/html"),
            ("application/*", PROBLEM_JSON),
            ("application/json;q=0", PROBLEM_JSON),
            ("*/*", PROBLEM_JSON),
            ("", PROBLEM_JSON),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            }
            let preferences = AnswerPreferences { headers: &headers, chance: 0.0, request_id: "" };
            let chosen = preferences.body_for(400, &responses);
            assert_eq!(chosen.body.media_type(), expected, "{accept}");
        }
    }

    #[test]
    fn a_page_may_read_the_answer_if_its_origin_is_written_down() {
        let responses = responses();
        let reads = |origin: &'static str, cors: &Cors| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            let preferences = AnswerPreferences { headers: &headers, chance: 0.0, request_id: "" };
            preferences.reader(cors).map(|origin| origin.to_str().unwrap().to_owned())
        };
        let same = "https://app.example.com";
        assert_eq!(reads(same, &responses.cors).as_deref(), Some(same));
        assert_eq!(reads("https://app.example.com.evil", &responses.cors), None);
        assert_eq!(reads("https://evil.example", &Cors::All).as_deref(), Some("*"));
    }
}
