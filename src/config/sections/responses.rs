//! `responses`: what clients receive from the proxy itself, for all routes or for one route. A route
//! inherits what it does not set.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::pages::{body_content, media_type_text, pages, refuse_unsent};
use crate::config::model::{Cors, Pages, RefusalBody, Responses};
use crate::config::reader::Located;
use crate::config::scalars::duration;
use crate::policy::Exempt;

/// The responses if nothing is configured.
pub(crate) fn standard() -> Responses {
    Responses {
        ratelimit_fields: true,
        x_ratelimit_fields: true,
        bodies: vec![RefusalBody::Problem],
        pages: Pages::default(),
        cors: Cors::Only(Vec::new()),
        exempt: Exempt::STANDARD,
        retry_after_jitter: Duration::ZERO,
    }
}

/// `responses`. Keys that are absent have the values of `base`.
pub(crate) fn responses(at: &Located<'_>, base: &Responses, folder: &Path) -> Arc<Responses> {
    let mut responses = base.clone();
    let Some(mut map) = at.mapping() else {
        return Arc::new(responses);
    };
    if let Some(at) = map.get("headers") {
        let words = selected_words(&at.list(), ["ratelimit", "x-ratelimit"]);
        [responses.ratelimit_fields, responses.x_ratelimit_fields] = words;
    }
    if let Some(at) = map.get("body") {
        responses.bodies = bodies(&at, folder);
    }
    if let Some(at) = map.get("pages") {
        responses.pages = pages(&at, folder);
        refuse_unsent(&at, &responses);
    }
    if let Some(at) = map.get("cors") {
        responses.cors = cors(&at);
    }
    if let Some(at) = map.get("exempt") {
        let [preflight, acme] = selected_words(&at.list_or_single(), ["preflight", "acme"]);
        responses.exempt = Exempt { preflight, acme };
    }
    if let Some(jitter) = map.get("retry_after_jitter").and_then(|at| at.parse(duration)) {
        responses.retry_after_jitter = jitter;
    }
    map.finish();
    Arc::new(responses)
}

/// Which of two words the items contain.
fn selected_words(items: &[Located<'_>], words: [&str; 2]) -> [bool; 2] {
    let choices = [(words[0], 0), (words[1], 1)];
    let mut selected = [false; 2];
    for index in items.iter().filter_map(|at| at.choice::<usize>(&choices)) {
        selected[index] = true;
    }
    selected
}

/// `[]`, `"*"`, or a list of origins such as `https://app.example.com`.
fn cors(at: &Located<'_>) -> Cors {
    let items = at.list_or_single();
    if items.iter().any(|at| at.is_text("*")) {
        return Cors::All;
    }
    Cors::Only(items.iter().filter_map(|at| at.parse(web_origin)).collect())
}

/// A web origin as browsers write it (RFC 6454, section 6.2): scheme, host and port, no path.
fn web_origin(text: &str) -> Result<HeaderValue, String> {
    let wrong = || format!("{text:?} is not an origin; write https://app.example.com, or \"*\"");
    let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
    let is_plain = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.:[]_".contains(&b))
    };
    if !is_plain(scheme) || !is_plain(authority) {
        return Err(wrong());
    }
    HeaderValue::try_from(text).map_err(|_| wrong())
}

fn bodies(at: &Located<'_>, folder: &Path) -> Vec<RefusalBody> {
    let items = at.list_or_single();
    if items.is_empty() {
        at.error_with("no body", "write body: problem");
    }
    let bodies: Vec<RefusalBody> = items.iter().filter_map(|at| body(at, folder)).collect();
    if bodies.first() == Some(&RefusalBody::Grpc) {
        at.error_with("grpc is only for gRPC calls", "begin the list with problem or a file");
    }
    bodies
}

fn body(at: &Located<'_>, folder: &Path) -> Option<RefusalBody> {
    if !at.is_mapping() {
        if let Some(text) = at.scalar().filter(|text| !["problem", "grpc"].contains(text)) {
            let cure = "one of problem, grpc, or a file: { file: denied.html, type: text/html }";
            at.error_with(format!("unknown word {text:?}"), cure);
            return None;
        }
        let is_grpc = at.choice(&[("problem", false), ("grpc", true)])?;
        return Some(if is_grpc { RefusalBody::Grpc } else { RefusalBody::Problem });
    }
    let mut map = at.mapping()?;
    let file = map.require("file", "write { file: denied.html, type: text/html }");
    let media_type = map.require("type", "write type: text/html");
    map.finish();
    let media_type = media_type.and_then(|at| at.parse(media_type_text));
    let content = file.and_then(|at| at.parse(|text| body_content(&folder.join(text))));
    Some(RefusalBody::File { content: content?.into(), media_type: media_type? })
}
