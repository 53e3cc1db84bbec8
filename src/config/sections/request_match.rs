//! `match`, and the conditions of a class: the requests that a route takes.

use std::sync::Arc;

use super::class_list::Classes;
use super::conditions::{cookie_conditions, header_conditions, query_conditions};
use crate::config::model::Underscores;
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
    /// Which names of header fields are read.
    pub(crate) underscores: Underscores,
}

/// Conditions that must all hold. A condition with a mistake is left out.
pub(super) fn request_match(at: &Located<'_>, context: &MatchContext<'_>) -> RequestMatch {
    let mut conditions = RequestMatch::default();
    let Some(mut map) = at.mapping() else {
        return conditions;
    };
    if let Some(at) = map.get("host") {
        refuse_empty(&at);
        let cure = "write the host itself: example.com, or \"*.example.com\" for all below it";
        conditions.hosts = patterns(&at, cure, host);
    }
    if let Some(at) = map.get("path") {
        refuse_empty(&at);
        let cure = "write the path itself: /api for this path only, /api/** with all below it";
        conditions.paths = patterns(&at, cure, path);
    }
    if let Some(at) = map.get("methods") {
        refuse_empty(&at);
        let methods = at.list_or_single();
        conditions.methods = MethodSet::new(methods.iter().filter_map(|at| at.parse(method)));
    }
    if let Some(at) = map.get("header") {
        conditions.values.extend(header_conditions(&at, context.underscores));
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

/// One pattern or a list of them. `cure`: what to write for a mapping, which conditions on values may be.
fn patterns<T>(at: &Located<'_>, cure: &str, read: fn(&str) -> Result<T, String>) -> Vec<T> {
    let read = |at: &Located<'_>| {
        if at.is_mapping() {
            at.error_with("expected a pattern, found a mapping", cure);
            return None;
        }
        at.parse(read)
    };
    at.list_or_single().iter().filter_map(read).collect()
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
    PathPattern::parse(text).map_err(|error| match path_cure(text) {
        Some(cure) => format!("path {text:?}: {error}; {cure}"),
        None => format!("path {text:?}: {error}"),
    })
}

/// A pattern that is one here, for one that is a prefix or a variable elsewhere.
fn path_cure(text: &str) -> Option<String> {
    let path = text
        .split_once("://")
        .map_or(text, |(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = path.trim_start_matches(['~', '=', '^', ' ']).trim_end_matches('$');
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let path = format!("/{}", path.trim_start_matches('/'));
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let last = segments.len().saturating_sub(1);
    let written = segments.iter().enumerate().flat_map(|(index, segment)| match *segment {
        ".*" | ".+" if index == last => vec!["**"],
        segment if segment.starts_with(['{', '<', ':']) => vec!["*"],
        // `/api*` is a prefix elsewhere.
        segment if index == last && segment.len() > 1 && segment.ends_with('*') => {
            let bare = segment.trim_end_matches(".*").trim_end_matches('*');
            if bare.is_empty() { vec!["**"] } else { vec![bare, "**"] }
        }
        segment => vec![segment],
    });
    let written = format!("/{}", written.collect::<Vec<_>>().join("/"));
    (written != text && PathPattern::parse(&written).is_ok()).then(|| format!("write {written}"))
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
        let bare = lower.split_once("://").map_or(&*lower, |(_, rest)| rest);
        let bare = bare.split(['/', ':']).next().unwrap_or(bare).trim_start_matches("*.");
        let bare = bare.trim_end_matches('.');
        let cure = match bare.strip_prefix('.') {
            Some(domain) if domain.split('.').all(is_label) => format!("write \"*.{domain}\""),
            None if bare == "*" || bare == "_" => "leave host out to match all".to_owned(),
            None if bare.split('.').all(is_label) && !text.starts_with("*.") => {
                format!("write {bare}, without scheme, port and path")
            }
            _ => "write example.com or \"*.example.com\", without scheme and port".to_owned(),
        };
        return Err(format!("{text:?} is not a host; {cure}"));
    }
    let name = name.into();
    Ok(if below { HostPattern::Below(name) } else { HostPattern::Exact(name) })
}

fn method(text: &str) -> Result<String, String> {
    let is_method =
        (1..=MAX_METHOD).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase());
    is_method.then(|| text.to_owned()).ok_or_else(|| {
        let words: Vec<String> = text
            .split([',', ' ', '|'])
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_uppercase)
            .collect();
        let cure = match words.as_slice() {
            [word] if word.bytes().all(|b| b.is_ascii_uppercase()) => format!("write {word}"),
            [_, _, ..] => format!("write a list, as [{}]", words.join(", ")),
            _ => "write it in capitals, for example POST".to_owned(),
        };
        format!("{text:?} is not a method; {cure}")
    })
}
