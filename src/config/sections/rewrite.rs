//! `rewrite` of a route: the path that the origin is asked for.

use crate::config::reader::Located;
use crate::policy::{PathPrefix, RequestMatch, Rewrite};

/// `{ strip_prefix: /api, add_prefix: /v2 }`, or one of the two. Every path that the route takes must have the prefix that
/// is cut.
pub(super) fn rewrite(at: &Located<'_>, matches: &RequestMatch) -> Option<Rewrite> {
    let mut map = at.mapping()?;
    let (strip_at, add_at) = (map.get("strip_prefix"), map.get("add_prefix"));
    map.finish();
    if strip_at.is_none() && add_at.is_none() {
        at.error_with("nothing is rewritten", "write strip_prefix: /api");
    }
    let prefix = |at: &Located<'_>| at.parse(PathPrefix::parse);
    let strip = strip_at.as_ref().and_then(prefix).unwrap_or_default();
    let add = add_at.as_ref().and_then(prefix).unwrap_or_default();
    if let Some(at) = strip_at
        && (matches.paths.is_empty() || matches.paths.iter().any(|path| !path.is_below(&strip)))
    {
        let prefix = at.text().unwrap_or_default();
        at.error_with(
            format!("the route takes paths that do not begin with {prefix}"),
            format!("write match: {{ path: {prefix}/** }}"),
        );
    }
    Some(Rewrite::new(strip, add))
}
