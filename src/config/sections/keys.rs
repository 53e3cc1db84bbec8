//! Keys: the parts of a request that a limit counts by, and the files with the keys that verify
//! signed tokens. This module does not read requests.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use http::HeaderName;

use super::class_list::Classes;
use crate::config::files::{MAX_NAMED_FILE, read_bounded};
use crate::config::reader::{Located, did_you_mean};
use crate::config::scalars::{integer, is_token};
use crate::policy::key::{Claim, MAX_KEY_SOURCES};
use crate::policy::{KeySpec, MAX_PATH_SEGMENTS, Source};
use crate::tokens::TokenVerifier;

/// Largest number of buckets of a `{ shard, of }` source.
const MAX_SHARDS: u64 = 65_536;

/// What sources refer to.
#[derive(Clone, Copy)]
pub(crate) struct SourceContext<'c> {
    /// The files with keys for signed tokens.
    pub(crate) files: &'c KeyFiles<'c>,
    /// The classes of the file.
    pub(crate) classes: &'c Classes,
}

/// A key: one source, or a list of sources.
pub(crate) fn key(at: &Located<'_>, context: SourceContext<'_>) -> Option<KeySpec> {
    let items = at.list_or_single();
    let sources: Vec<Option<Source>> = items.iter().map(|at| source(at, context)).collect();
    let sources: Option<Vec<Source>> = sources.into_iter().collect();
    if items.is_empty() || items.len() > MAX_KEY_SOURCES {
        at.error(format!("{} sources; a key has 1 to {MAX_KEY_SOURCES}", items.len()));
        return None;
    }
    KeySpec::new(sources?)
}

/// One source of a key.
pub(crate) fn source(at: &Located<'_>, context: SourceContext<'_>) -> Option<Source> {
    if !at.is_mapping() {
        return source_of_text(at, context.classes);
    }
    let mut map = at.mapping()?;
    if let Some(at) = map.get("jwt") {
        map.finish();
        return claim(&at, context.files).map(Source::Jwt);
    }
    let shard = map.require("shard", "write { shard: client_ip, of: 16 }");
    let of = map.require("of", "write { shard: client_ip, of: 16 }");
    map.finish();
    let inner = shard
        .and_then(|at| if at.is_mapping() { at.text().and(None) } else { source(&at, context) });
    let buckets = of.and_then(|at| at.parse(integer(1, MAX_SHARDS)));
    Some(Source::Shard { of: Box::new(inner?), buckets: u32::try_from(buckets?).ok()? })
}

fn source_of_text(at: &Located<'_>, classes: &Classes) -> Option<Source> {
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
            Ok(name) => return Some(Source::Header(name)),
            Err(_) => at.error(format!("{name:?} is not the name of a header")),
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
            let cure = did_you_mean(text, &words)
                .unwrap_or_else(|| format!("one of {}", words.join(", ")));
            at.error_with(format!("unknown key source {text:?}"), cure);
        }
    }
    None
}

/// A claim of a signed token: `{ jwks_file | secret_file, claim }`.
fn claim(at: &Located<'_>, files: &KeyFiles<'_>) -> Option<Claim> {
    if !cfg!(feature = "jwt") {
        let cure = "build tollgate with the feature `jwt`, or use another key";
        at.error_with("this build checks no signed tokens", cure);
        return None;
    }
    let mut map = at.mapping()?;
    let (jwks, secret) = (map.get("jwks_file"), map.get("secret_file"));
    let name = map.require("claim", "write claim: sub").and_then(|at| at.text());
    map.finish();
    let (file_at, kind) = match (jwks, secret) {
        (Some(at), None) => (at, KeyFile::Jwks),
        (None, Some(at)) => (at, KeyFile::Secret),
        _ => {
            at.error(
                "write either { jwks_file: FILE, claim: sub } or { secret_file: FILE, claim: sub }",
            );
            return None;
        }
    };
    let tokens = file_at.parse(|text| files.tokens(kind, text));
    let file = file_at.text()?;
    Some(Claim { name: name?.into(), tokens: tokens?, file: file.into() })
}

/// The format of a file with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFile {
    /// A JSON Web Key Set (RFC 7517) with public keys.
    Jwks,
    /// A shared secret.
    Secret,
}

/// The files with keys for signed tokens. Each file is read once. All uses share its cache of
/// verified tokens, so that a token is verified once, however many keys and plans read it.
pub(crate) struct KeyFiles<'f> {
    folder: &'f Path,
    read: RefCell<Vec<ReadKeys>>,
}

struct ReadKeys {
    kind: KeyFile,
    file: Box<str>,
    tokens: Arc<TokenVerifier>,
}

impl<'f> KeyFiles<'f> {
    /// Relative paths start at `folder`.
    pub(crate) const fn new(folder: &'f Path) -> Self {
        Self { folder, read: RefCell::new(Vec::new()) }
    }

    fn tokens(&self, kind: KeyFile, file: &str) -> Result<Arc<TokenVerifier>, String> {
        let is_same = |keys: &&ReadKeys| keys.kind == kind && *keys.file == *file;
        if let Some(same) = self.read.borrow().iter().find(is_same) {
            return Ok(Arc::clone(&same.tokens));
        }
        let bytes = read_bounded(&self.folder.join(file), MAX_NAMED_FILE)?;
        let tokens = match kind {
            KeyFile::Jwks => {
                let json = String::from_utf8(bytes).map_err(|_| format!("{file}: is not UTF-8"))?;
                TokenVerifier::from_jwks(&json)
            }
            // Editors and shells append a newline that is not a part of the secret.
            KeyFile::Secret => {
                TokenVerifier::from_secret(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
            }
        };
        let tokens = Arc::new(tokens.map_err(|error| format!("{file}: {error}"))?);
        let read = ReadKeys { kind, file: file.into(), tokens: Arc::clone(&tokens) };
        self.read.borrow_mut().push(read);
        Ok(tokens)
    }
}
