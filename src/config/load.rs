//! Loads a configuration: reads a file, parses it, reads every section in turn, and collects the
//! mistakes of all of them.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use super::error::{ConfigErrors, Warning};
use super::files::read_text_file;
use super::model::{Balance, Config, HiddenFields, StoreConfig};
use super::reader::{ErrorList, Located, Mapping};
use super::scalars::integer;
use super::sections::access_log::access_log;
use super::sections::admin::admin;
use super::sections::bounds::bounds;
use super::sections::classes::classes;
use super::sections::clients::clients;
use super::sections::keys::{KeyFiles, SourceContext};
use super::sections::limits::{LimitContext, limits};
use super::sections::listeners::listeners;
use super::sections::origins::origins;
use super::sections::request_match::MatchContext;
use super::sections::responses::{responses, standard};
use super::sections::routes::{RouteContext, defaults, routes};
use super::sections::store::store;
use super::source::{self, MAX_BYTES, SourceNode};
use super::warnings::{WarningInput, silenced, warnings};
use crate::clock::Nanos;
use crate::limit::MICROSECOND;
use crate::policy::{PerRoute, Policy, Router};

/// Largest number of worker threads.
const MAX_THREADS: u64 = 1_024;

/// A valid configuration and its warnings.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// What is valid and probably not intended.
    pub warnings: Vec<Warning>,
}

/// What a configuration is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigUse {
    /// The proxy: needs `listeners`, `origins`, and an origin for each route.
    Proxy,
    /// A limiter inside another server: these may be left out.
    Plugin,
}

/// Loads a file for the proxy. Relative names of other files start at its folder.
pub fn load(file: &Path) -> Result<LoadedConfig, ConfigErrors> {
    load_for(ConfigUse::Proxy, file)
}

/// Loads a file for the given use.
pub fn load_for(config_use: ConfigUse, file: &Path) -> Result<LoadedConfig, ConfigErrors> {
    let name = file.display().to_string();
    let text = match read_text_file(file, MAX_BYTES as u64) {
        Ok(text) => text,
        Err(message) => return Err(ConfigErrors::unreadable(name, message)),
    };
    read_text_for(config_use, &text, &name, file.parent().unwrap_or(Path::new("")))
}

/// Reads a configuration of the proxy from a text. `name` appears in errors; relative names of other
/// files start at `folder`.
pub fn read_text(text: &str, name: &str, folder: &Path) -> Result<LoadedConfig, ConfigErrors> {
    read_text_for(ConfigUse::Proxy, text, name, folder)
}

/// Reads a configuration from a text for the given use.
pub fn read_text_for(
    config_use: ConfigUse,
    text: &str,
    name: &str,
    folder: &Path,
) -> Result<LoadedConfig, ConfigErrors> {
    let refused = |errors| ConfigErrors { file: name.to_owned(), errors };
    let tree = source::parse(text).map_err(refused)?;
    let errors = ErrorList::default();
    let loaded = read_sections(config_use, &tree, &errors, name, folder);
    let errors = errors.into_sorted();
    match loaded {
        Some(loaded) if errors.is_empty() => Ok(loaded),
        _ => Err(refused(errors)),
    }
}

fn read_sections(
    config_use: ConfigUse,
    tree: &SourceNode,
    errors: &ErrorList,
    name: &str,
    folder: &Path,
) -> Option<LoadedConfig> {
    let mut root = Located::root(tree, errors).mapping()?;
    check_version(&mut root);
    let threads = root.get("threads").and_then(|at| at.parse(threads)).flatten();
    let is_plugin = config_use == ConfigUse::Plugin;
    let listeners = match is_plugin && root.get("listeners").is_none() {
        true => Vec::new(),
        false => listeners(&mut root, folder),
    };
    let admin = admin(&mut root, folder);
    let clients = clients(&mut root);
    let clients_at = root.get("clients");
    let store = store(&mut root, folder);
    let store_at = root.get("store");
    let bounds = bounds(&mut root);
    let mut access_log = access_log(&mut root, folder);
    let key_files = &KeyFiles::new(folder);
    let all_listeners: Vec<Option<Arc<str>>> =
        listeners.iter().map(|listener| listener.name.clone()).collect();
    let listener_names: Vec<Arc<str>> = all_listeners.iter().flatten().cloned().collect();
    let classes = classes(&mut root, &listener_names);
    let sources = SourceContext { files: key_files, classes: &classes };
    let origins = match is_plugin && root.get("origins").is_none() {
        true => Vec::new(),
        false => origins(&mut root, folder, sources),
    };
    // The resolution of the clock of exact limits.
    let tick = if store == StoreConfig::Embedded { Nanos::new(1) } else { MICROSECOND };
    let context = LimitContext { folder, sources, ipv6_prefix: clients.ipv6_prefix, tick };
    let limits = limits(&mut root, &context);
    let default_responses = match root.get("responses") {
        Some(at) => responses(&at, &standard(), folder),
        None => Arc::new(standard()),
    };
    let origin_names = root.names_in("origins");
    let over_http2 = origins.iter().filter(|origin| origin.http2);
    let http2_origins: Vec<&str> = over_http2.map(|origin| &*origin.name).collect();
    let context = RouteContext {
        limits: &limits,
        matches: MatchContext { classes: Some(&classes), listeners: &listener_names },
        origins: &origin_names,
        http2_origins: &http2_origins,
        needs_origin: !is_plugin,
        folder,
    };
    let defaults = defaults(&mut root, &default_responses, &context);
    let routes = routes(&mut root, &defaults, &context);
    let silenced = silenced(&mut root);
    root.finish();
    let input = WarningInput {
        file: name,
        limits: &limits,
        routes: &routes,
        listeners: &all_listeners,
        asks_no_client: !listeners.is_empty()
            && listeners.iter().all(|listener| listener.client_ca.is_none()),
        clients: &clients,
        clients_at,
        store: &store,
        store_at,
    };
    let warnings = warnings(&input, &silenced);
    let (routes, responses) =
        PerRoute::split(routes.into_iter().map(|defined| (defined.route, defined.responses)));
    let policy = Policy {
        router: Router::new(&routes),
        limits: limits.into_limits(),
        routes,
        max_keys: bounds.max_keys(),
    };
    let balanced = origins.iter().filter_map(|origin| match &origin.balance {
        Balance::Hash(source) => source.header_name(),
        Balance::RoundRobin | Balance::Random | Balance::LeastRequests => None,
    });
    access_log.hidden = HiddenFields::of(policy.key_header_names().chain(balanced));
    let config = Config {
        threads,
        listeners,
        admin,
        clients,
        origins,
        policy,
        responses,
        default_responses,
        bounds: bounds.bounds,
        access_log,
        store,
    };
    Some(LoadedConfig { config, warnings })
}

fn check_version(root: &mut Mapping<'_>) {
    if let Some(at) = root.require("version", "begin with version: 1")
        && at.text().is_some_and(|text| text != "1")
    {
        at.error_with("an unknown version of the configuration", "write version: 1");
    }
}

/// `auto`, or a number.
fn threads(text: &str) -> Result<Option<NonZeroUsize>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let number =
        integer(1, MAX_THREADS)(text).map_err(|error| format!("{error}; or write auto"))?;
    Ok(usize::try_from(number).ok().and_then(NonZeroUsize::new))
}
