//! Keys: the parts of a request that a limit counts by. This module does not read requests.

use http::HeaderName;

use super::class_list::Classes;
use super::field_names::{FieldReader, refuse_unread_field};
use super::tokens::{TokenKeys, claim};
use crate::config::model::Underscores;
use crate::config::reader::{Located, Mapping, did_you_mean};
use crate::config::scalars::{integer, is_token};
use crate::policy::key::MAX_KEY_SOURCES;
use crate::policy::{KeySpec, MAX_PATH_SEGMENTS, Source};

/// Largest number of buckets of a `{ shard, of }` source.
const MAX_SHARDS: u64 = 65_536;

/// What sources refer to.
#[derive(Clone, Copy)]
pub(crate) struct SourceContext<'c> {
    /// The keys for signed tokens.
    pub(crate) token_keys: &'c TokenKeys,
    /// The classes of the file.
    pub(crate) classes: &'c Classes,
    /// Which names of header fields are read.
    pub(crate) underscores: Underscores,
}

/// A key: one source, or a list of sources.
pub(crate) fn key(at: &Located<'_>, context: SourceContext<'_>) -> Option<KeySpec> {
    let items = at.list_or_single();
    let sources: Vec<Option<Source>> = items.iter().map(|at| source(at, context)).collect();
    let sources: Option<Vec<Source>> = sources.into_iter().collect();
    if items.is_empty() || items.len() > MAX_KEY_SOURCES {
        let cure = format!("write 1 to {MAX_KEY_SOURCES} sources, as [header:x-org, path]");
        at.error_with(format!("{} sources", items.len()), cure);
        return None;
    }
    let texts: Vec<&str> = items.iter().filter_map(Located::scalar).collect();
    if let Some((_, text)) =
        texts.iter().enumerate().find(|(index, text)| texts[..*index].contains(text))
    {
        at.error_with(format!("the source {text} is listed twice"), "leave one of them out");
        return None;
    }
    KeySpec::new(sources?)
}

/// One source of a key.
pub(crate) fn source(at: &Located<'_>, context: SourceContext<'_>) -> Option<Source> {
    if !at.is_mapping() {
        return source_of_text(at, context);
    }
    let mut map = at.mapping()?;
    if let Some(at) = map.get("jwt") {
        map.finish();
        return claim(&at, context.token_keys, context.underscores).map(Source::Jwt);
    }
    if let Some(word) = source_word(&mut map) {
        map.finish();
        at.error_with("a key source is one text", format!("write {word}"));
        return None;
    }
    let shard = map.require("shard", "write { shard: client_ip, of: 16 }");
    let of = map.require("of", "write { shard: client_ip, of: 16 }");
    map.finish();
    let inner = shard
        .and_then(|at| if at.is_mapping() { at.text().and(None) } else { source(&at, context) });
    let buckets = of.and_then(|at| at.parse(integer(1, MAX_SHARDS)));
    Some(Source::Shard { of: Box::new(inner?), buckets: u32::try_from(buckets?).ok()? })
}

/// `header:x-api-key` for `{ header: x-api-key }`.
fn source_word(map: &mut Mapping<'_>) -> Option<String> {
    let words = ["header", "cookie", "query", "path_segment", "class"];
    let (word, value) = words.iter().find_map(|word| Some((*word, map.get(word)?)))?;
    Some(format!("{word}:{}", value.scalar().unwrap_or("NAME")))
}

fn source_of_text(at: &Located<'_>, context: SourceContext<'_>) -> Option<Source> {
    let classes = context.classes;
    if let Some(cure) = at.scalar().filter(|text| text.starts_with('$')).and_then(foreign_source) {
        at.error_with("a variable of another product", cure);
        return None;
    }
    let text = at.text()?;
    if text == "class" {
        if classes.all().is_empty() {
            at.error_with("there is no class", "define some under classes");
            return None;
        }
        return Some(Source::FirstClass(classes.all().into()));
    }
    let words = Source::WORDS.map(|source| source.to_string());
    if let Some(position) = words.iter().position(|word| *word == text) {
        return Some(Source::WORDS[position].clone());
    }
    match text.split_once(':') {
        Some(("header", name)) => match HeaderName::try_from(name) {
            Ok(name) => {
                refuse_unread_field(at, &name, FieldReader::Source, context.underscores);
                return Some(Source::Header(name));
            }
            Err(_) => {
                let message = format!("{name:?} is not the name of a header");
                at.error_with(message, "write it as header:x-api-key");
            }
        },
        Some(("cookie", name)) if is_token(name) => return Some(Source::Cookie(name.to_owned())),
        Some(("query", name)) if !name.is_empty() => return Some(Source::Query(name.to_owned())),
        Some(("class", name)) => return classes.find(at, name).map(Source::Class),
        Some(("path_segment", n)) => match integer(1, MAX_PATH_SEGMENTS as u64)(n) {
            Ok(n) => return Some(Source::PathSegment(n as usize)),
            Err(error) => at.error_with(error, "the first segment is 1"),
        },
        _ => {
            let words = words.iter().map(String::as_str);
            let words: Vec<&str> = words
                .chain([
                    "header:NAME",
                    "cookie:NAME",
                    "query:NAME",
                    "path_segment:N",
                    "class:NAME",
                    "class",
                ])
                .collect();
            let cure = foreign_source(text).or_else(|| did_you_mean(text, &words)).unwrap_or_else(|| {
                let words = words.join(", ");
                format!("one of {words}, {{ shard: client_ip, of: 16 }}, {{ jwt: {{ jwks_file: FILE, claim: sub }} }}, or a list of them")
            });
            at.error_with(format!("unknown key source {text:?}"), cure);
        }
    }
    None
}

/// What a source of another product is here.
fn foreign_source(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let word = match lower.trim_start_matches('$') {
        "binary_remote_addr" | "remote_addr" | "remote_address" | "remote_ip" | "ip" | "src"
        | "source_ip" | "client" | "address" | "x-forwarded-for" | "x-real-ip" => "client_ip",
        "request_uri" | "uri" | "url" => "path",
        "server_name" | "http_host" => "host",
        "request_method" => "method",
        "token" => "bearer",
        "user" | "username" | "remote_user" => "basic_user",
        "user_agent" | "user-agent" => "header:user-agent",
        "authorization" => "bearer",
        "session" | "session_id" => "cookie:session",
        name => {
            let name = match name.strip_prefix("http_") {
                Some(name) if text.starts_with('$') => name.replace('_', "-"),
                _ if name.starts_with("x-") => name.to_owned(),
                _ => name.strip_prefix("req.hdr(")?.strip_suffix(')')?.to_owned(),
            };
            return Some(format!("write header:{name}"));
        }
    };
    Some(format!("write {word}"))
}
