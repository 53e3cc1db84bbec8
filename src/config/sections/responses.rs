//! `responses`, for all routes or for one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::config::files::read_bounded;
use crate::config::reader::Located;
use crate::config::scalars::duration;
use crate::config::source::SourceContent;
use crate::config::{Cors, RefusalBody, Responses};
use crate::policy::Exempt;

/// The largest body of a refusal: it is sent to everybody who is refused.
const MAX_BODY: u64 = 64 * 1024;

/// What holds where nothing is written.
pub(crate) fn standard() -> Responses {
    Responses {
        ratelimit_fields: true,
        x_ratelimit_fields: true,
        bodies: vec![RefusalBody::Problem],
        cors: Cors::Only(Vec::new()),
        exempt: Exempt::STANDARD,
        retry_after_jitter: Duration::ZERO,
    }
}

/// Reads `responses`; what is not written is as in `base`.
pub(crate) fn responses(at: &Located<'_>, base: &Responses, folder: &Path) -> Arc<Responses> {
    let mut read = base.clone();
    let Some(mut map) = at.map() else {
        return Arc::new(read);
    };
    if let Some(at) = map.get("headers") {
        let words = [("ratelimit", false), ("x-ratelimit", true)];
        let wanted: Vec<bool> = at.list().iter().filter_map(|at| at.choice(&words)).collect();
        read.ratelimit_fields = wanted.contains(&false);
        read.x_ratelimit_fields = wanted.contains(&true);
    }
    if let Some(at) = map.get("body") {
        let items = at.one_or_more();
        if items.is_empty() {
            at.error_with("no body", "write body: problem");
        }
        read.bodies = items.iter().filter_map(|at| body(at, folder)).collect();
        if read.bodies.first() == Some(&RefusalBody::Grpc) {
            at.error_with("grpc is for gRPC calls alone", "begin the list with problem or a file");
        }
    }
    if let Some(at) = map.get("cors") {
        read.cors = cors(&at);
    }
    if let Some(at) = map.get("exempt") {
        let words = [("preflight", false), ("acme", true)];
        let named: Vec<bool> = at.one_or_more().iter().filter_map(|at| at.choice(&words)).collect();
        read.exempt = Exempt { preflight: named.contains(&false), acme: named.contains(&true) };
    }
    if let Some(jitter) = map.get("retry_after_jitter").and_then(|at| at.parse(duration)) {
        read.retry_after_jitter = jitter;
    }
    map.finish();
    Arc::new(read)
}

/// `[]`, `"*"`, or a list as `https://app.example.com`.
fn cors(at: &Located<'_>) -> Cors {
    let items = at.one_or_more();
    if items
        .iter()
        .any(|at| matches!(&at.node.kind, SourceContent::Scalar { text, .. } if text == "*"))
    {
        return Cors::All;
    }
    Cors::Only(items.iter().filter_map(|at| at.parse(web_origin)).collect())
}

/// An origin as browsers write it (RFC 6454, section 6.2): scheme, host and port, no path.
fn web_origin(text: &str) -> Result<HeaderValue, String> {
    let wrong = || format!("{text:?} is not an origin; write https://app.example.com, or \"*\"");
    let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.:[]_".contains(&b))
    };
    if !plain(scheme) || !plain(authority) {
        return Err(wrong());
    }
    HeaderValue::try_from(text).map_err(|_| wrong())
}

fn body(at: &Located<'_>, folder: &Path) -> Option<RefusalBody> {
    if !at.is_map() {
        let word = at.choice(&[("problem", false), ("grpc", true)])?;
        return Some(if word { RefusalBody::Grpc } else { RefusalBody::Problem });
    }
    let mut map = at.map()?;
    let file = map.require("file", "write { file: denied.html, type: text/html }");
    let media_type = map.require("type", "write type: text/html");
    map.finish();
    let media_type = media_type.and_then(|at| at.parse(is_media_type));
    let content = file.and_then(|at| at.parse(|text| read_bounded(&folder.join(text), MAX_BODY)));
    Some(RefusalBody::File { content: content?.into(), media_type: media_type? })
}

fn is_media_type(text: &str) -> Result<String, String> {
    let plausible = text.split_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty())
        && http::HeaderValue::try_from(text).is_ok();
    if plausible { Ok(text.to_owned()) } else { Err(format!("{text:?} is not a media type")) }
}
