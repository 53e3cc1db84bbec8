//! The engine inside somebody else's `ProxyHttp`.
//!
//! A [`Limiter`] reads the same file as the proxy and decides by the same engine; of the file it
//! uses `clients`, `limits`, `routes` and `responses`. See `examples/embed.rs`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, Version};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};

use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigErrors, Responses, StoreConfig};
use crate::engine::{Decision, Engine, FinalResponse, Generation, PendingSettlement, ReloadReport};
use crate::http::{
    AnswerPreferences, FieldRules, FrameworkReply, Head, HeadBounds, RateLimitFields, RejectReason,
    render, validate,
};
use crate::policy::KeySecret;
use crate::policy::client::ClientRules;

/// A policy that decides requests.
pub struct Limiter {
    file: PathBuf,
    engine: Arc<Engine>,
    store: StoreConfig,
    loaded: ArcSwap<Loaded>,
}

/// One configuration, as far as a plugin uses it.
struct Loaded {
    generation: Generation,
    clients: ClientRules,
    bounds: HeadBounds,
    field_rules: FieldRules,
    responses: Vec<Arc<Responses>>,
    default_responses: Arc<Responses>,
}

/// What became of one request. It holds on to the configuration that decided it.
pub struct Judged {
    loaded: Arc<Loaded>,
    decision: std::result::Result<Decision, RejectReason>,
    engine: Arc<Engine>,
    pending: PendingSettlement,
    chance: f64,
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
        if config.store != StoreConfig::Embedded {
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
        let (file, engine) = (file.to_owned(), Arc::new(engine));
        Self { file, engine, store, loaded: ArcSwap::from_pointee(loaded) }
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

    /// Decides a request and charges it. Where [`Judged::wait`] is not nothing, wait so long before
    /// forwarding.
    pub async fn judge(&self, head: &RequestHeader, peer: IpAddr) -> Judged {
        let loaded = self.loaded.load_full();
        let clean = validate(Head::of(head), loaded.bounds).and_then(|clean| {
            let checked = loaded.field_rules.check(clean.rare, &head.method, &head.headers);
            checked.map(|()| clean)
        });
        let mut pending = PendingSettlement::default();
        let decision = match clean {
            Ok(clean) => {
                let facts = clean.facts(
                    loaded.clients.client(peer, &head.headers),
                    self.engine.date(self.engine.now()),
                    &head.method,
                    &head.headers,
                );
                let (decision, open) = self.engine.decide(&loaded.generation, &facts).await;
                pending = open;
                Ok(decision)
            }
            Err(reason) => Err(reason),
        };
        let engine = Arc::clone(&self.engine);
        Judged { loaded, decision, engine, pending, chance: fastrand::f64() }
    }
}

impl Loaded {
    fn new(config: Config, engine: &Engine, previous: Option<&Generation>) -> (Self, ReloadReport) {
        let bounds = HeadBounds::of(&config.bounds);
        let field_rules = FieldRules::of(&config);
        let (generation, report) = engine.generation(config.policy, previous);
        let loaded = Self {
            generation,
            clients: config.clients,
            bounds,
            field_rules,
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
    pub const fn decision(&self) -> std::result::Result<&Decision, RejectReason> {
        match &self.decision {
            Ok(decision) => Ok(decision),
            Err(reason) => Err(*reason),
        }
    }

    /// How long the request waits for its turn before it is forwarded.
    pub fn wait(&self) -> Duration {
        self.decision.as_ref().map(|decision| decision.wait().into()).unwrap_or_default()
    }

    /// The request has waited for its turn. Until it is told, or dropped, it counts as one that waits, of
    /// which there are at most 10,000.
    pub fn end_delay(&mut self) {
        self.pending.end_delay();
    }

    /// The origin has answered: charges that depend on it become final. Dropping a judged request
    /// frees its slot in flight; unsettled charges stay spent.
    pub fn finish(&mut self, response: &ResponseHeader) {
        if let Ok(decision) = &mut self.decision {
            let final_response = FinalResponse {
                status: response.status.as_u16(),
                headers: &response.headers,
                by_origin: true,
            };
            self.engine.finish(
                &self.loaded.generation,
                decision,
                &mut self.pending,
                &final_response,
            );
        }
    }

    /// The answer to give to the request of `headers` instead of forwarding; `None`: forward.
    pub fn refusal(&self, headers: &HeaderMap) -> Result<Option<FrameworkReply>> {
        match &self.decision {
            Err(reason) => {
                let reply = render::rejected(*reason, reason.status());
                reply.into_framework(Version::HTTP_11).map(Some)
            }
            Ok(decision) => {
                let policy = self.loaded.generation.policy();
                let asking = AnswerPreferences { headers, chance: self.chance };
                let responses = self.loaded.responses(decision);
                let reply = render::reply(
                    RateLimitFields { decision, policy, responses, members: None },
                    asking,
                );
                reply.map(|reply| reply.into_framework(Version::HTTP_11)).transpose()
            }
        }
    }

    /// Adds the rate limit fields to the response of the origin.
    pub fn write_fields(&self, response: &mut ResponseHeader) -> Result<()> {
        let Ok(decision) = &self.decision else {
            return Ok(());
        };
        let policy = self.loaded.generation.policy();
        let responses = self.loaded.responses(decision);
        RateLimitFields { decision, policy, responses, members: None }.add_to_head(response)
    }
}
