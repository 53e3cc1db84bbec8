//! Claims of signed tokens: which keys verify them, which tokens are believed, and where requests carry them. Keys are
//! read here if they are in a file. Nothing here asks a network: a published set is fetched when its policy is in force.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};

use super::field_names::{FieldReader, refuse_unread_field};
use super::key_set_url::key_set_url;
use crate::config::files::{MAX_NAMED_FILE, check_roots, read_bounded};
use crate::config::model::Underscores;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{duration, is_token};
use crate::policy::key::{Claim, OnKeysFailure, TokenSource};
use crate::tokens::{
    AlgorithmSet, DEFAULT_LEEWAY_SECS, KeySetUrl, PUBLIC_KEY_ALGORITHMS, PublishedKeySet,
    TokenAlgorithm, TokenVerifier, WantedClaim,
};

/// Largest leeway: RFC 7519 (section 4.1.4) allows "no more than a few minutes".
const MAX_LEEWAY_SECS: u64 = 300;

/// Largest number of audiences of a claim: each is compared with each of a token.
const MAX_AUDIENCES: usize = 16;

/// Largest number of published sets: each is fetched again and again, and is a label of metrics.
const MAX_KEY_SETS: usize = 16;

/// What to write where the keys are not given once.
const KEYS_CURE: &str = "write exactly one of jwks_file, jwks_url and secret_file, for example \
                         { jwks_file: FILE, claim: sub }";

/// A claim of a signed token: `{ jwks_file | jwks_url | secret_file, claim, .. }`.
pub(super) fn claim(at: &Located<'_>, keys: &TokenKeys, underscores: Underscores) -> Option<Claim> {
    if !cfg!(feature = "jwt") {
        let cure = "build tollgate with the feature `jwt`, or use another key";
        at.error_with("this build checks no signed tokens", cure);
        return None;
    }
    let mut map = at.mapping()?;
    let sources =
        [(KeysIn::Jwks, "jwks_file"), (KeysIn::Url, "jwks_url"), (KeysIn::Secret, "secret_file")];
    let given = sources.map(|(kind, key)| map.get(key).map(|at| (kind, at)));
    let name = map.require("claim", "write claim: sub").and_then(|at| at.text());
    let issuer = map.get("issuer").map(|at| at.parse(filled));
    let audiences = map.get("audience").map(|at| audiences(&at));
    let algorithms_at = map.get("algorithms");
    let leeway = map.get("leeway").map(|at| at.parse(leeway));
    let from = map.get("from").map(|at| token_source(&at, underscores));
    let url_only = UrlOnly::read(&mut map);
    map.finish();
    let mut given: Vec<_> = given.into_iter().flatten().collect();
    let Some((kind, keys_at)) = given.pop().filter(|_| given.is_empty()) else {
        at.error_with("the keys that verify a token are given once", KEYS_CURE);
        return None;
    };
    let algorithms = match algorithms_at {
        Some(at) => algorithms(&at, kind)?,
        None => AlgorithmSet::ALL,
    };
    let (tokens, on_keys_failure) = match kind {
        KeysIn::Url => {
            let (ca, on_keys_failure) = url_only.values(&keys_at, keys_at.folder())?;
            (keys.published(&keys_at, ca, algorithms), on_keys_failure)
        }
        KeysIn::Jwks | KeysIn::Secret => {
            url_only.refuse();
            let file = keys_at.folder().join(keys_at.text()?);
            let tokens = keys_at.parse(|_| keys.in_file(kind, &file, algorithms));
            (tokens, OnKeysFailure::Deny)
        }
    };
    Some(Claim {
        wanted: WantedClaim {
            name: name?.into(),
            issuer: issuer.map_or(Some(None), |issuer| issuer.map(Some))?,
            audiences: audiences.unwrap_or_else(|| Some(Box::default()))?,
            leeway_secs: leeway.unwrap_or(Some(DEFAULT_LEEWAY_SECS))?,
        },
        from: from.unwrap_or(Some(TokenSource::Authorization))?,
        on_keys_failure,
        tokens: tokens?,
        keys: match kind {
            KeysIn::Url => keys_at.text()?.into(),
            // The same name in another folder is another file.
            KeysIn::Jwks | KeysIn::Secret => {
                keys_at.folder().join(keys_at.text()?).to_string_lossy().into()
            }
        },
    })
}

/// Where the keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeysIn {
    /// A file with a JSON Web Key Set (RFC 7517) of public keys.
    Jwks,
    /// A URL that gives such a set.
    Url,
    /// A file with a shared secret.
    Secret,
}

/// The keys that only a set at a URL has.
struct UrlOnly<'n> {
    ca_file: Option<Located<'n>>,
    on_keys_failure: Option<Located<'n>>,
}

impl<'n> UrlOnly<'n> {
    fn read(map: &mut Mapping<'n>) -> Self {
        Self { ca_file: map.get("jwks_ca_file"), on_keys_failure: map.get("on_keys_failure") }
    }

    /// The authorities as PEM, and what becomes of requests while there are no keys.
    fn values(
        &self,
        url_at: &Located<'_>,
        folder: &Path,
    ) -> Option<(Option<Arc<[u8]>>, OnKeysFailure)> {
        let ca = match &self.ca_file {
            Some(at) if url_at.text().is_some_and(|url| !url.starts_with("https:")) => {
                at.error_with("there is no TLS to check", "leave it out, or write an https URL");
                None
            }
            Some(at) => at.parse(|file| ca_file(&folder.join(file))).map(Some),
            None => Some(None),
        };
        let words = [("deny", OnKeysFailure::Deny), ("absent", OnKeysFailure::Absent)];
        let chosen = self.on_keys_failure.as_ref().map(|at| at.choice(&words));
        Some((ca?, chosen.unwrap_or(Some(OnKeysFailure::Deny))?))
    }

    fn refuse(&self) {
        for at in [&self.ca_file, &self.on_keys_failure].into_iter().flatten() {
            at.error_with("only a set at a URL has it", "leave it out, or write jwks_url");
        }
    }
}

/// What is wrong with a file of keys of another form, and the cure: a key set as a secret would be known to everybody who
/// verifies tokens.
fn misplaced_keys(kind: KeysIn, bytes: &[u8]) -> Option<&'static str> {
    let is_pem = memchr::memmem::find(bytes, b"-----BEGIN ").is_some();
    let is_json = serde_json::from_slice::<serde_json::Value>(bytes)
        .is_ok_and(|value| ["keys", "kty"].iter().any(|member| value.get(member).is_some()));
    match kind {
        KeysIn::Secret if is_pem => Some(
            "is PEM, and no secret; make a JSON Web Key Set of its public key, and write jwks_file: FILE",
        ),
        KeysIn::Secret if is_json => {
            Some("is a JSON Web Key Set, and no secret; write jwks_file: FILE")
        }
        KeysIn::Jwks if is_pem => Some(
            "is PEM, and no JSON Web Key Set; write the public key as { \"keys\": [{ \"kty\": .. }] }",
        ),
        KeysIn::Secret | KeysIn::Jwks | KeysIn::Url => None,
    }
}

fn ca_file(file: &Path) -> Result<Arc<[u8]>, String> {
    check_roots(file)?;
    read_bounded(file, MAX_NAMED_FILE).map(Arc::from)
}

fn filled(text: &str) -> Result<Box<str>, String> {
    if text.is_empty() { Err("is empty; leave it out".to_owned()) } else { Ok(text.into()) }
}

fn audiences(at: &Located<'_>) -> Option<Box<[Box<str>]>> {
    let items = at.list_or_single();
    if items.is_empty() || items.len() > MAX_AUDIENCES {
        let number = items.len();
        at.error(format!("{number} audiences; write 1 to {MAX_AUDIENCES}, or leave it out"));
        return None;
    }
    let all: Vec<_> = items.iter().map(|at| at.parse(filled)).collect();
    all.into_iter().collect()
}

/// The allowed algorithms. Those that these keys cannot be for are refused: a public key is no secret (algorithm
/// confusion), and a secret verifies nothing else.
fn algorithms(at: &Located<'_>, kind: KeysIn) -> Option<AlgorithmSet> {
    let words = TokenAlgorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let items = at.list_or_single();
    if items.is_empty() {
        at.error_with("no algorithm: no token would be believed", "leave it out");
        return None;
    }
    let read = |at: &Located<'_>| {
        let name = at.text()?;
        if TokenAlgorithm::unsupported(name).is_some() {
            let cure = match kind {
                KeysIn::Secret => "a secret is for HS256 alone".to_owned(),
                KeysIn::Jwks | KeysIn::Url => format!("write some of {PUBLIC_KEY_ALGORITHMS}"),
            };
            at.error_with(format!("{name} is not supported"), cure);
            return None;
        }
        let algorithm = at.choice(&words)?;
        let (fits, cure) = match kind {
            KeysIn::Secret => (algorithm.needs_secret(), "a secret is for HS256 alone".to_owned()),
            KeysIn::Jwks | KeysIn::Url => {
                let cure = format!("public keys are for {PUBLIC_KEY_ALGORITHMS}");
                (!algorithm.needs_secret(), cure)
            }
        };
        if !fits {
            at.error_with(format!("these keys are never for {}", algorithm.name()), cure);
        }
        fits.then_some(algorithm)
    };
    let all: Vec<_> = items.iter().map(read).collect();
    all.into_iter().collect()
}

fn leeway(text: &str) -> Result<u64, String> {
    let leeway = duration(text)?;
    let secs = leeway.as_secs();
    if leeway.subsec_nanos() > 0 || secs > MAX_LEEWAY_SECS {
        return Err(format!("{text:?} is not a whole number of seconds up to 5m"));
    }
    Ok(secs)
}

/// `authorization`, `header:NAME`, `cookie:NAME` or `query:NAME`.
fn token_source(at: &Located<'_>, underscores: Underscores) -> Option<TokenSource> {
    let text = at.text()?;
    match text.split_once(':') {
        None if text == "authorization" => return Some(TokenSource::Authorization),
        Some(("header", name)) => match HeaderName::try_from(name) {
            Ok(AUTHORIZATION) => {
                at.error_with("the header has a scheme before the token", "write authorization");
            }
            Ok(COOKIE) => at.error_with("the header has many values", "write cookie:NAME"),
            Ok(name) => {
                refuse_unread_field(at, &name, FieldReader::Source, underscores);
                return Some(TokenSource::Header(name));
            }
            Err(_) => at.error(format!("{name:?} is not the name of a header")),
        },
        Some(("cookie", name)) if is_token(name) => return Some(TokenSource::Cookie(name.into())),
        Some(("query", name)) if !name.is_empty() => return Some(TokenSource::Query(name.into())),
        _ => at.error_with(
            format!("a token cannot be read from {text:?}"),
            "one of authorization, header:NAME, cookie:NAME, query:NAME",
        ),
    }
    None
}

/// The keys for signed tokens. All uses of the same keys share a cache of verified tokens, so that a token is verified
/// once, however many limits and plans read it.
#[derive(Default)]
pub(crate) struct TokenKeys {
    read: RefCell<Vec<ReadKeys>>,
    sets: RefCell<Vec<Arc<PublishedKeySet>>>,
}

struct ReadKeys {
    from: KeysFrom,
    algorithms: AlgorithmSet,
    tokens: Arc<TokenVerifier>,
}

#[derive(PartialEq)]
enum KeysFrom {
    File(KeysIn, Box<str>),
    Url(KeySetUrl),
}

impl TokenKeys {
    /// The published sets, each once.
    pub(crate) fn published_sets(&self) -> Vec<Arc<PublishedKeySet>> {
        self.sets.borrow().clone()
    }

    fn in_file(
        &self,
        kind: KeysIn,
        path: &Path,
        algorithms: AlgorithmSet,
    ) -> Result<Arc<TokenVerifier>, String> {
        let file = path.display().to_string();
        self.shared(KeysFrom::File(kind, file.clone().into()), algorithms, || {
            let bytes = read_bounded(path, MAX_NAMED_FILE)?;
            if let Some(error) = misplaced_keys(kind, &bytes) {
                return Err(format!("{file}: {error}"));
            }
            let tokens = if kind == KeysIn::Secret {
                // Editors and shells append a line end that is not a part of the secret.
                TokenVerifier::from_secret(bytes.trim_ascii_end())
            } else {
                let json = String::from_utf8(bytes).map_err(|_| format!("{file}: is not UTF-8"))?;
                TokenVerifier::from_jwks(&json)
            };
            let tokens = tokens.and_then(|tokens| tokens.only(algorithms));
            tokens.map_err(|error| format!("{file}: {error}"))
        })
    }

    fn published(
        &self,
        at: &Located<'_>,
        ca: Option<Arc<[u8]>>,
        algorithms: AlgorithmSet,
    ) -> Option<Arc<TokenVerifier>> {
        if !cfg!(feature = "jwks") {
            let cure = "build tollgate with the feature `jwks`, or write jwks_file";
            at.error_with("this build fetches no keys", cure);
            return None;
        }
        let url = KeySetUrl { uri: at.parse(key_set_url)?, ca };
        at.parse(|_| {
            let set = self.set(&url)?;
            self.shared(KeysFrom::Url(url), algorithms, || {
                let tokens = TokenVerifier::published(set).and_then(|keys| keys.only(algorithms));
                tokens.map_err(|error| error.to_string())
            })
        })
    }

    /// The set at a URL. Its name is host and path; a second one of that name (with another query or other authorities)
    /// has a number.
    fn set(&self, url: &KeySetUrl) -> Result<Arc<PublishedKeySet>, String> {
        let mut sets = self.sets.borrow_mut();
        if let Some(same) = sets.iter().find(|set| set.url() == url) {
            return Ok(Arc::clone(same));
        }
        if sets.len() == MAX_KEY_SETS {
            return Err(format!("more than {MAX_KEY_SETS} sets of keys at URLs"));
        }
        let authority = url.uri.authority().map(|authority| authority.as_str());
        let plain = format!("{}{}", authority.unwrap_or_default(), url.uri.path());
        let is_taken = |name: &str| sets.iter().any(|set| set.name() == name);
        let mut name = plain.clone();
        for number in 2.. {
            if !is_taken(&name) {
                break;
            }
            name = format!("{plain}#{number}");
        }
        let set = Arc::new(PublishedKeySet::new(url.clone(), &name));
        sets.push(Arc::clone(&set));
        Ok(set)
    }

    fn shared(
        &self,
        from: KeysFrom,
        algorithms: AlgorithmSet,
        read: impl FnOnce() -> Result<TokenVerifier, String>,
    ) -> Result<Arc<TokenVerifier>, String> {
        let is_same = |keys: &&ReadKeys| keys.from == from && keys.algorithms == algorithms;
        if let Some(same) = self.read.borrow().iter().find(is_same) {
            return Ok(Arc::clone(&same.tokens));
        }
        let tokens = Arc::new(read()?);
        self.read.borrow_mut().push(ReadKeys { from, algorithms, tokens: Arc::clone(&tokens) });
        Ok(tokens)
    }
}
