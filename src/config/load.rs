//! Loads a configuration: reads a file, parses it, reads every section in turn, and collects the
//! mistakes of all of them.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use super::error::{ConfigErrors, Warning};
use super::files::{MAX_ATTEMPTS, read_text_file};
use super::include::{ReadFiles, include};
use super::model::{Balance, Config, HiddenFields, Listener, RouteEdits, Underscores};
use super::reader::{ErrorList, Located, Mapping, SourceFile};
use super::scalars::integer;
use super::sections::access_log::access_log;
use super::sections::admin::admin;
use super::sections::bounds::bounds;
use super::sections::classes::classes;
use super::sections::clients::clients;
use super::sections::fleet::fleet;
use super::sections::keys::SourceContext;
use super::sections::limits::{LimitContext, limits};
use super::sections::listeners::listeners;
use super::sections::origins::origins;
use super::sections::request_match::MatchContext;
use super::sections::responses::{responses, standard};
use super::sections::routes::{RouteContext, defaults, routes};
use super::sections::store::{names_shared_store, store};
use super::sections::tokens::TokenKeys;
use super::source::{self, MAX_BYTES, SourceNode};
use super::source_map::SourceMap;
use super::unread_fields::refuse_unread_fields;
use super::warnings::{SilencedCodes, WarningInput, silenced, warnings};
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
    /// Where its keys stand.
    pub source: SourceMap,
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
    read_while_it_changes(|read| {
        let main = SourceFile::main(file);
        let (text, version) = read_text_file(file, MAX_BYTES as u64)
            .map_err(|error| ConfigErrors { file: main.name.clone(), errors: vec![error] })?;
        read.add(file, version);
        read_files(config_use, &text, main, read)
    })
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
    read_while_it_changes(|read| {
        let main = SourceFile { name: name.to_owned(), folder: folder.to_owned() };
        read_files(config_use, text, main, read)
    })
}

/// Reads a configuration again if one of its files changed meanwhile, so that it is never put together from files that
/// were not there at the same time.
fn read_while_it_changes(
    mut attempt: impl FnMut(&mut ReadFiles) -> Result<LoadedConfig, ConfigErrors>,
) -> Result<LoadedConfig, ConfigErrors> {
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let mut read = ReadFiles::default();
        let result = attempt(&mut read);
        if read.are_unchanged() {
            return result;
        }
        last = Some(result);
    }
    let file = match last {
        Some(Err(errors)) => errors.file,
        Some(Ok(_)) | None => "include".to_owned(),
    };
    let message = "the files that it includes are being written; try again when they are complete";
    Err(ConfigErrors::unreadable(file, message.to_owned()))
}

/// Reads a configuration from the text of its file and from the files that it includes.
fn read_files(
    config_use: ConfigUse,
    text: &str,
    main: SourceFile,
    read: &mut ReadFiles,
) -> Result<LoadedConfig, ConfigErrors> {
    read.hasher.add(text);
    let name = main.name.clone();
    let refused = |errors| ConfigErrors { file: name.clone(), errors };
    let mut tree = source::parse(text, 0, "begin with version: 1").map_err(refused)?;
    let mut files = vec![main];
    let empty_includes = include(&mut tree, &mut files, read, text.len()).map_err(refused)?;
    let errors = ErrorList::new(&files);
    let sections = read_sections(config_use, &tree, &errors, &empty_includes);
    let errors = errors.into_sorted();
    match sections {
        Some(Sections { mut config, warnings, silenced }) if errors.is_empty() => {
            config.hash = read.hasher.digits().into();
            let source = SourceMap::new(files, tree, silenced);
            Ok(LoadedConfig { config, warnings, source })
        }
        _ => Err(refused(errors)),
    }
}

/// What the sections of a file say.
struct Sections {
    config: Config,
    warnings: Vec<Warning>,
    silenced: SilencedCodes,
}

fn read_sections(
    config_use: ConfigUse,
    tree: &SourceNode,
    errors: &ErrorList<'_>,
    empty_includes: &[usize],
) -> Option<Sections> {
    let mut root = Located::root(tree, errors).mapping()?;
    let folder = root.at().folder();
    check_version(&mut root);
    let includes = root.get("include").map(|at| at.list_or_single()).unwrap_or_default();
    let threads = root.get("threads").and_then(|at| at.parse(threads)).flatten();
    let is_plugin = config_use == ConfigUse::Plugin;
    let listeners = match is_plugin && root.get("listeners").is_none() {
        true => Vec::new(),
        false => listeners(&mut root, folder),
    };
    let listeners_at = root.get("listeners");
    let admin = admin(&mut root, folder, &listeners);
    let clients = clients(&mut root);
    let clients_at = root.get("clients");
    if !is_plugin {
        refuse_unread_proxy_headers(&listeners, listeners_at.as_ref(), clients_at.as_ref());
    }
    let store = store(&mut root, folder);
    let store_at = root.get("store");
    let has_shared_store = store_at.as_ref().is_some_and(names_shared_store);
    let fleet = fleet(&mut root);
    let fleet_at = root.get("fleet");
    let bounds = bounds(&mut root);
    let mut access_log = access_log(&mut root, folder);
    let token_keys = &TokenKeys::default();
    let all_listeners: Vec<Option<Arc<str>>> =
        listeners.iter().map(|listener| listener.name.clone()).collect();
    let listener_names: Vec<Arc<str>> = all_listeners.iter().flatten().cloned().collect();
    // What the server of a limiter removes is not known here.
    let underscores = match bounds.bounds.underscores {
        Underscores::Drop if is_plugin => Underscores::Pass,
        other => other,
    };
    let classes = classes(&mut root, &listener_names, underscores);
    let classes_at = root.get("classes").map(|at| at.named_values()).unwrap_or_default();
    let sources = SourceContext { token_keys, classes: &classes, underscores };
    let origins = match is_plugin && root.get("origins").is_none() {
        true => Vec::new(),
        false => origins(&mut root, sources),
    };
    let (origins, origin_edits): (Vec<_>, Vec<_>) = origins.into_iter().unzip();
    // The resolution of the clock of exact limits.
    let tick = if store.is_embedded() { Nanos::new(1) } else { MICROSECOND };
    let (ipv6_prefix, has_state) = (clients.ipv6_prefix, store.state().is_some());
    let context = LimitContext { sources, ipv6_prefix, tick, has_state, has_shared_store };
    let limits = limits(&mut root, &context);
    let responses_at = root.get("responses");
    let default_responses = match &responses_at {
        Some(at) => responses(at, &standard(), folder),
        None => Arc::new(standard()),
    };
    let origins_at = root.get("origins");
    let origin_names = root.names_in("origins");
    let over_http2 = origins.iter().filter(|origin| origin.http2);
    let http2_origins: Vec<&str> = over_http2.map(|origin| &*origin.name).collect();
    let context = RouteContext {
        limits: &limits,
        matches: MatchContext { classes: Some(&classes), listeners: &listener_names, underscores },
        origins: &origin_names,
        http2_origins: &http2_origins,
        needs_origin: !is_plugin,
    };
    let defaults = defaults(&mut root, &default_responses, &context);
    let routes = routes(&mut root, &defaults, &context);
    let silenced = silenced(&mut root);
    root.finish();
    refuse_unread_fields(&clients, clients_at.as_ref(), &limits, &routes, underscores);
    let input = WarningInput {
        empty_includes: empty_includes.iter().filter_map(|index| includes.get(*index)).collect(),
        limits: &limits,
        classes: &classes,
        classes_at: &classes_at,
        routes: &routes,
        listener_names: &all_listeners,
        listeners: &listeners,
        listeners_at,
        origins: &origins,
        origins_at,
        admin: admin.as_ref(),
        clients: &clients,
        clients_at,
        default_responses: &default_responses,
        responses_at,
        store: &store,
        store_at,
        fleet,
        fleet_at,
    };
    let warnings = warnings(&input, &silenced);
    let edits = PerRoute::of(&routes, |_, defined| {
        let origin = origin_edits.get(defined.route.origin).cloned().unwrap_or_default();
        Arc::new(RouteEdits { origin, route: defined.edits.clone() })
    });
    let (routes, responses) =
        PerRoute::split(routes.into_iter().map(|defined| (defined.route, defined.responses)));
    let policy = Policy {
        router: Arc::new(Router::new(&routes)),
        limits: limits.into_limits(),
        routes: Arc::new(routes),
        max_keys: bounds.max_keys(),
        key_sets: token_keys.published_sets(),
        fleet,
        writes_traces: access_log.replay,
    };
    let balanced = origins.iter().filter_map(|origin| match &origin.balance {
        Balance::Hash(source) => source.header_name(),
        Balance::RoundRobin | Balance::Random | Balance::LeastRequests => None,
    });
    access_log.hidden = HiddenFields::of(policy.key_header_names().chain(balanced));
    let config = Config {
        hash: Arc::from(""),
        threads,
        listeners,
        admin,
        clients,
        origins,
        policy,
        responses,
        edits,
        default_responses,
        bounds: bounds.bounds,
        access_log,
        store,
    };
    Some(Sections { config, warnings, silenced })
}

/// Refuses `proxy_protocol` without a trusted proxy: every connection would be closed.
fn refuse_unread_proxy_headers(
    listeners: &[Listener],
    listeners_at: Option<&Located<'_>>,
    clients_at: Option<&Located<'_>>,
) {
    let Some(listener) = listeners.iter().find(|listener| listener.proxy_protocol) else {
        return;
    };
    // What is wrong with the networks is another mistake.
    let proxies = clients_at
        .filter(|at| at.is_mapping())
        .and_then(|at| at.named_values().into_iter().find(|entry| entry.name == "trusted_proxies"));
    if proxies.is_none_or(|entry| entry.at.is_empty_list())
        && let Some(at) = listeners_at
    {
        let message = format!(
            "{} serves nobody: a PROXY header is read from trusted proxies only, and there is none",
            listener.address
        );
        at.error_with(
            message,
            "write clients: { trusted_proxies: [10.0.0.0/8] }, or leave proxy_protocol out",
        );
    }
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
