//! `match`: the requests that a route takes.

use http::{HeaderName, HeaderValue};

use crate::config::reader::{Located, NamedValue};
use crate::config::scalars::{MAX_HOST_NAME, network};
use crate::policy::{HostPattern, MethodSet, PathPattern, RouteMatch};

/// Longest method, in bytes.
const MAX_METHOD: usize = 32;

/// `match`. A condition with a mistake is left out.
pub(super) fn route_match(at: &Located<'_>) -> RouteMatch {
    let mut conditions = RouteMatch::default();
    let Some(mut map) = at.mapping() else {
        return conditions;
    };
    if let Some(at) = map.get("host") {
        refuse_empty(&at);
        conditions.hosts = at.list_or_single().iter().filter_map(|at| at.parse(host)).collect();
    }
    if let Some(at) = map.get("path") {
        refuse_empty(&at);
        conditions.paths = at.list_or_single().iter().filter_map(|at| at.parse(path)).collect();
    }
    if let Some(at) = map.get("methods") {
        let methods = at.list_or_single();
        conditions.methods = MethodSet::new(methods.iter().filter_map(|at| at.parse(method)));
    }
    if let Some(at) = map.get("header") {
        conditions.headers = at.named_values().iter().filter_map(header).collect();
    }
    if let Some(at) = map.get("client") {
        conditions.clients =
            at.list_or_single().iter().filter_map(|at| at.parse(network)).collect();
    }
    map.finish();
    conditions
}

/// Refuses an empty list, which would match everything.
fn refuse_empty(at: &Located<'_>) {
    if at.is_empty_list() {
        at.error_with("an empty list", "leave the key out to match all");
    }
}

fn path(text: &str) -> Result<PathPattern, String> {
    PathPattern::parse(text).map_err(|error| format!("path {text:?}: {error}"))
}

/// `example.com`, `*.example.com` or an address; in lower case.
fn host(text: &str) -> Result<HostPattern, String> {
    let lower = text.to_ascii_lowercase();
    let (below, name) = match lower.strip_prefix("*.") {
        Some(domain) => (true, domain),
        None => (false, lower.as_str()),
    };
    let is_address = name.starts_with('[') && name.ends_with(']') && !below;
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if !is_address && (name.len() > MAX_HOST_NAME || !name.split('.').all(is_label)) {
        return Err(format!(
            "{text:?} is not a host; write example.com or \"*.example.com\", without scheme and port"
        ));
    }
    let name = name.into();
    Ok(if below { HostPattern::Below(name) } else { HostPattern::Exact(name) })
}

fn method(text: &str) -> Result<String, String> {
    let is_method =
        (1..=MAX_METHOD).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase());
    is_method
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text:?} is not a method; write it in capitals, for example POST"))
}

fn header(entry: &NamedValue<'_>) -> Option<(HeaderName, HeaderValue)> {
    let NamedValue { name, at } = entry;
    let Ok(header) = HeaderName::try_from(*name) else {
        at.error(format!("{name:?} is not the name of a header"));
        return None;
    };
    let text = at.text()?;
    match HeaderValue::try_from(text) {
        Ok(value) => Some((header, value)),
        Err(_) => {
            at.error(format!("{text:?} cannot be the value of a header"));
            None
        }
    }
}
