//! The engine inside somebody else's `ProxyHttp`.
//!
//! A [`Limiter`] reads the same file as the proxy and decides by the same engine; of the file it
//! uses `clients`, `limits`, `routes` and `responses`. See `examples/embed.rs`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::Version;
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};

use super::gate::{self, GateBounds, Head, Reason};
use super::render::{self, Refusal};
use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigErrors, Responses, Store};
use crate::engine::{Decision, Engine, Generation, ReloadReport};
use crate::policy::client::{self, ClientRules};
use crate::policy::{Facts, KeySecret};

/// A policy that decides requests.
pub struct Limiter {
    file: PathBuf,
    engine: Engine,
    store: Store,
    loaded: ArcSwap<Loaded>,
}

/// One configuration, as far as a plugin uses it.
struct Loaded {
    generation: Generation,
    clients: ClientRules,
    ipv6_prefix: u8,
    bounds: GateBounds,
    responses: Vec<Arc<Responses>>,
    default_responses: Arc<Responses>,
}

/// What became of one request. It holds on to the configuration that decided it.
pub struct Judged {
    loaded: Arc<Loaded>,
    decision: std::result::Result<Decision, Reason>,
}

/// Why a limiter cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// The file is refused.
    #[error("{0}")]
    Config(ConfigErrors),
    /// No randomness for the secret of the keys.
    #[error("no randomness for the key secret: {0}")]
    Secret(getrandom::Error),
    /// The store is not in this process.
    #[error("store: has to be connected to; use Limiter::connect")]
    Store,
    /// A reload cannot change the store.
    #[error("store: a reload cannot change it; restart instead")]
    StoreChanged,
}

impl Limiter {
    /// Reads a configuration and starts counting in this process. A configuration with another
    /// store is refused: that one is connected to by [`Limiter::connect`].
    pub fn from_file(file: &Path) -> std::result::Result<Self, LimiterError> {
        let config = config::load(file).map_err(LimiterError::Config)?.config;
        if config.store != Store::Embedded {
            return Err(LimiterError::Store);
        }
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(LimiterError::Secret)?;
        let engine = Engine::new(Arc::new(SystemClock::new()), KeySecret::new(secret));
        Ok(Self::new(file, config, engine))
    }

    /// Reads a configuration and starts counting where it says. Connections to a store live on the
    /// runtime that this is called in, which must not end before the limiter.
    pub async fn connect(file: &Path) -> std::result::Result<Self, LimiterError> {
        let config = config::load(file).map_err(LimiterError::Config)?.config;
        let clock = Arc::new(SystemClock::new());
        let engine = Engine::connect(&config.store, clock).await.map_err(LimiterError::Secret)?;
        Ok(Self::new(file, config, engine))
    }

    fn new(file: &Path, config: Config, engine: Engine) -> Self {
        let store = config.store.clone();
        let (loaded, _) = Loaded::new(config, &engine, None);
        Self { file: file.to_owned(), engine, store, loaded: ArcSwap::from_pointee(loaded) }
    }

    /// Reads the file again. On an error the old policy stays.
    pub fn reload(&self) -> std::result::Result<ReloadReport, LimiterError> {
        let config = config::load(&self.file).map_err(LimiterError::Config)?.config;
        if config.store != self.store {
            return Err(LimiterError::StoreChanged);
        }
        let before = self.loaded.load_full();
        let (next, report) = Loaded::new(config, &self.engine, Some(&before.generation));
        self.loaded.store(Arc::new(next));
        Ok(report)
    }

    /// Housekeeping; to be called about ten times a second.
    pub fn tick(&self) {
        self.engine.tick(&self.loaded.load().generation);
    }

    /// Decides a request and charges it.
    pub async fn judge(&self, head: &RequestHeader, peer: IpAddr) -> Judged {
        let loaded = self.loaded.load_full();
        let clean = gate::pass(Head::of(head), loaded.bounds);
        let decision = match clean {
            Ok(clean) => {
                let facts = Facts {
                    client_ip: client::resolve(peer, &head.headers, &loaded.clients),
                    method: head.method.as_str(),
                    host: &clean.host,
                    path: &clean.path,
                    readings: &clean.readings,
                    query: clean.query,
                    headers: &head.headers,
                    ipv6_prefix: loaded.ipv6_prefix,
                };
                Ok(self.engine.decide(&loaded.generation, &facts).await)
            }
            Err(reason) => Err(reason),
        };
        Judged { loaded, decision }
    }
}

impl Loaded {
    fn new(config: Config, engine: &Engine, previous: Option<&Generation>) -> (Self, ReloadReport) {
        let bounds = GateBounds {
            header_size: config.bounds.header_size,
            header_fields: config.bounds.header_fields,
            body_size: config.bounds.body_size,
        };
        let (generation, report) = engine.generation(config.policy, previous);
        let loaded = Self {
            generation,
            clients: config.clients,
            ipv6_prefix: config.ipv6_prefix,
            bounds,
            responses: config.responses,
            default_responses: config.default_responses,
        };
        (loaded, report)
    }

    fn responses(&self, decision: &Decision) -> &Responses {
        let of_route = decision.route.and_then(|route| self.responses.get(route.0));
        of_route.unwrap_or(&self.default_responses)
    }
}

impl Judged {
    /// The decision, or why the request was not clean.
    pub const fn decision(&self) -> std::result::Result<&Decision, Reason> {
        match &self.decision {
            Ok(decision) => Ok(decision),
            Err(reason) => Err(*reason),
        }
    }

    /// The answer to give instead of forwarding; `None`: forward.
    pub fn refusal(&self) -> Result<Option<Refusal>> {
        match &self.decision {
            Err(reason) => render::rejected(*reason, reason.status()).map(Some),
            Ok(decision) => {
                let policy = self.loaded.generation.policy();
                render::refusal(decision, policy, self.loaded.responses(decision))
            }
        }
    }

    /// Tells the client where it stands, beside the origin's answer.
    pub fn write_fields(&self, response: &mut ResponseHeader) -> Result<()> {
        let Ok(decision) = &self.decision else {
            return Ok(());
        };
        let policy = self.loaded.generation.policy();
        render::write_fields(decision, policy, self.loaded.responses(decision), response)
    }
}

impl<'r> Head<'r> {
    /// The head of a request as the framework read it.
    pub fn of(head: &'r RequestHeader) -> Self {
        Self {
            method: &head.method,
            target: head.raw_path(),
            authority: match head.version {
                Version::HTTP_2 => head.uri.authority().map(http::uri::Authority::as_str),
                _ => None,
            },
            version: head.version,
            headers: &head.headers,
        }
    }
}
