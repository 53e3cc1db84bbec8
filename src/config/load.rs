//! From a tree to a configuration: every section in turn, every mistake noted.

use std::path::Path;
use std::sync::Arc;

use crate::clock::Nanos;
use crate::config::error::{ConfigError, ConfigErrors, Warning};
use crate::config::files::read_steady;
use crate::config::reader::{ErrorList, Located, Mapping};
use crate::config::scalars::whole;
use crate::config::sections::keys::KeyFiles;
use crate::config::sections::limits::LimitContext;
use crate::config::sections::limits::limits;
use crate::config::sections::origins::origins;
use crate::config::sections::routes::{RouteContext, defaults, routes};
use crate::config::sections::store::store;
use crate::config::sections::{bounds, listeners as sockets, responses};
use crate::config::source::{self, MAX_BYTES, SourceNode};
use crate::config::warnings::{WarningInput, silenced, warnings};
use crate::config::{Config, StoreConfig};
use crate::limit::MICROSECOND;
use crate::policy::{Policy, Router};

/// Most worker threads.
const MAX_THREADS: u64 = 1_024;

/// A configuration and what is to be said of it.
#[derive(Debug)]
pub struct LoadedConfig {
    /// What is meant.
    pub config: Config,
    /// What is probably not meant.
    pub warnings: Vec<Warning>,
}

/// Reads a file. Other files that it names are looked for beside it.
pub fn load(file: &Path) -> Result<LoadedConfig, ConfigErrors> {
    let name = file.display().to_string();
    let text = read_bounded(file).map_err(|message| {
        let error = ConfigError { location: None, path: String::new(), message, cure: None };
        ConfigErrors { file: name.clone(), errors: vec![error] }
    })?;
    let folder = file.parent().unwrap_or(Path::new(""));
    read_text(&text, &name, folder)
}

/// Reads no more than a configuration can have, so that a wrong file (a device, a log) does no
/// harm.
pub(super) fn read_bounded(file: &Path) -> Result<String, String> {
    let bytes =
        read_steady(file, MAX_BYTES as u64).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// Reads a text. `name` stands in errors; `folder` is where files are looked for.
pub fn read_text(text: &str, name: &str, folder: &Path) -> Result<LoadedConfig, ConfigErrors> {
    let refused = |errors| ConfigErrors { file: name.to_owned(), errors };
    let tree = source::parse(text).map_err(refused)?;
    let errors = ErrorList::default();
    let loaded = compile(&tree, &errors, name, folder);
    let errors = errors.into_sorted();
    match loaded {
        Some(loaded) if errors.is_empty() => Ok(loaded),
        _ => Err(refused(errors)),
    }
}

fn compile(
    tree: &SourceNode,
    errors: &ErrorList,
    name: &str,
    folder: &Path,
) -> Option<LoadedConfig> {
    let mut root = Located::root(tree, errors).map()?;
    version(&mut root);
    let threads = root.get("threads").and_then(|at| at.parse(threads)).flatten();
    let listeners = sockets::listeners(&mut root, folder);
    let admin = sockets::admin(&mut root, folder);
    let clients = sockets::clients(&mut root);
    let clients_at = root.get("clients");
    let store = store(&mut root, folder);
    let store_at = root.get("store");
    let (bounds, max_keys) = bounds::bounds(&mut root);
    let access_log = bounds::access_log(&mut root, folder);
    let key_files = &KeyFiles::new(folder);
    let origins = origins(&mut root, folder, key_files);
    // The unit of time of the clock that the exact tier is read by.
    let tick = if store == StoreConfig::Embedded { Nanos::new(1) } else { MICROSECOND };
    let limits = limits(
        &mut root,
        &LimitContext { folder, key_files, ipv6_prefix: clients.ipv6_prefix, tick },
    );
    let base = match root.get("responses") {
        Some(at) => responses::responses(&at, &responses::standard(), folder),
        None => Arc::new(responses::standard()),
    };
    let names: Vec<&str> = root.names_in("origins");
    let known = RouteContext { limits: &limits, origins: &names, folder };
    let defaults = defaults(&mut root, &known);
    let routes = routes(&mut root, &defaults, &base, &known);
    let silenced = silenced(&mut root);
    root.finish();
    let looked = WarningInput {
        file: name,
        limits: &limits,
        routes: &routes,
        clients: &clients,
        clients_at,
        store: &store,
        store_at,
    };
    let warnings = warnings(&looked, &silenced);
    let policy = Policy {
        router: Router::new(&routes.routes),
        limits: limits.limits,
        routes: routes.routes,
        max_keys,
    };
    let config = Config {
        threads,
        listeners,
        admin,
        clients,
        origins: origins.into_iter().map(|(origin, _)| origin).collect(),
        policy,
        responses: routes.responses,
        default_responses: base,
        bounds,
        access_log,
        store,
    };
    Some(LoadedConfig { config, warnings })
}

fn version(root: &mut Mapping<'_>) {
    if let Some(at) = root.require("version", "begin with version: 1")
        && at.text().is_some_and(|text| text != "1")
    {
        at.error_with("an unknown version of the configuration", "write version: 1");
    }
}

/// `auto`, or a number.
fn threads(text: &str) -> Result<Option<std::num::NonZeroUsize>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let wrong = |why| format!("{why}; or write auto");
    let number = whole(1, MAX_THREADS)(text).map_err(wrong)?;
    Ok(usize::try_from(number).ok().and_then(std::num::NonZeroUsize::new))
}
