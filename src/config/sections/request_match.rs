//! `match`, and the conditions of a class: the requests that a route takes.

use std::sync::Arc;

use super::class_list::Classes;
use super::conditions::{cookie_conditions, header_conditions, query_conditions};
use crate::config::reader::{Located, did_you_mean};
use crate::config::scalars::{MAX_HOST_NAME, network};
use crate::policy::{HostPattern, MethodSet, PathPattern, RequestMatch};

/// Longest method, in bytes.
const MAX_METHOD: usize = 32;

/// What conditions refer to.
pub(crate) struct MatchContext<'c> {
    /// `None` inside a class, which refers to no class.
    pub(crate) classes: Option<&'c Classes>,
    /// The names of the listeners.
    pub(crate) listeners: &'c [Arc<str>],
}

/// Conditions that must all hold. A condition with a mistake is left out.
pub(super) fn request_match(at: &Located<'_>, context: &MatchContext<'_>) -> RequestMatch {
    let mut conditions = RequestMatch::default();
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
        refuse_empty(&at);
        let methods = at.list_or_single();
        conditions.methods = MethodSet::new(methods.iter().filter_map(|at| at.parse(method)));
    }
    if let Some(at) = map.get("header") {
        conditions.values.extend(header_conditions(&at));
    }
    if let Some(at) = map.get("query") {
        conditions.values.extend(query_conditions(&at));
    }
    if let Some(at) = map.get("cookie") {
        conditions.values.extend(cookie_conditions(&at));
    }
    if let Some(at) = map.get("client") {
        refuse_empty(&at);
        conditions.clients =
            at.list_or_single().iter().filter_map(|at| at.parse(network)).collect();
    }
    if let Some(at) = map.get("listener") {
        refuse_empty(&at);
        let names = at.list_or_single();
        let found = names.iter().filter_map(|at| listener(at, context.listeners));
        conditions.listeners = found.collect();
    }
    match (map.get("class"), context.classes) {
        (None, _) => {}
        (Some(at), Some(classes)) => {
            refuse_empty(&at);
            let names = at.list_or_single();
            let found = names.iter().filter_map(|at| classes.find(at, at.text()?));
            conditions.classes = found.collect();
        }
        (Some(at), None) => {
            at.error_with("a class refers to no class", "repeat the conditions here");
        }
    }
    if let Some(at) = map.get("not") {
        refuse_empty(&at);
        for item in at.list_or_single() {
            let excluded = request_match(&item, context);
            if item.is_empty_mapping() {
                item.error_with(
                    "not without a condition excludes every request",
                    "write a condition",
                );
            }
            conditions.none_of.push(excluded);
        }
    }
    map.finish();
    conditions
}

/// The name of a listener.
fn listener(at: &Located<'_>, names: &[Arc<str>]) -> Option<Arc<str>> {
    let text = at.text()?;
    let found = names.iter().find(|name| ***name == *text).cloned();
    if found.is_none() {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let cure = did_you_mean(text, &names)
            .unwrap_or_else(|| "name a listener: { name: public, address: .. }".to_owned());
        at.error_with(format!("unknown listener {text:?}"), cure);
    }
    found
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
