//! `responses`, for all routes or for one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::read::At;
use super::scalars::duration;
use super::{Body, Responses};

/// The largest body of a refusal: it is sent to everybody who is refused.
const MAX_BODY: u64 = 64 * 1024;

/// What holds where nothing is written.
pub(super) const fn standard() -> Responses {
    Responses { ratelimit_fields: true, x_ratelimit_fields: true, body: Body::Problem }
}

/// Reads `responses`; what is not written is as in `base`.
pub(super) fn responses(at: &At<'_>, base: &Responses, folder: &Path) -> Arc<Responses> {
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
    if let Some(body) = map.get("body").and_then(|at| body(&at, folder)) {
        read.body = body;
    }
    // Accepted where they ask for nothing.
    if let Some(at) = map.get("cors")
        && !at.one_or_more().is_empty()
    {
        at.not_yet("cors");
    }
    if let Some(at) = map.get("exempt")
        && !at.one_or_more().is_empty()
    {
        at.not_yet("exempt");
    }
    if let Some(at) = map.get("retry_after_jitter")
        && at.parse(duration).is_some_and(|jitter| jitter != Duration::ZERO)
    {
        at.not_yet("retry_after_jitter");
    }
    map.finish(&[]);
    Arc::new(read)
}

fn body(at: &At<'_>, folder: &Path) -> Option<Body> {
    use super::yaml::Kind;
    match &at.node.kind {
        Kind::Scalar { .. } => at.choice(&[("problem", ())]).map(|()| Body::Problem),
        Kind::List(_) => {
            at.not_yet("a list of bodies");
            None
        }
        Kind::Map(_) => {
            let mut map = at.map()?;
            let file = map.require("file", "write { file: denied.html, type: text/html }");
            let media_type = map.require("type", "write type: text/html");
            map.finish(&[]);
            let media_type = media_type.and_then(|at| at.parse(is_media_type));
            let content = file.and_then(|at| read_file(&at, &folder.join(at.text()?)));
            Some(Body::File { content: content?, media_type: media_type? })
        }
    }
}

fn is_media_type(text: &str) -> Result<String, String> {
    let plausible = text.split_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty())
        && http::HeaderValue::try_from(text).is_ok();
    if plausible { Ok(text.to_owned()) } else { Err(format!("{text:?} is not a media type")) }
}

fn read_file(at: &At<'_>, file: &Path) -> Option<Vec<u8>> {
    let size = std::fs::metadata(file).map(|about| about.len());
    let content = match size {
        Ok(size) if size > MAX_BODY => Err(format!("{} is larger than 64KiB", file.display())),
        _ => std::fs::read(file).map_err(|error| format!("{}: {error}", file.display())),
    };
    match content {
        Ok(content) => Some(content),
        Err(why) => {
            at.error(why);
            None
        }
    }
}
