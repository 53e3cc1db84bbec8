//! The paths of the admin API: what each is for, how it is asked, and whether it needs the token.
//!
//! It answers nothing. `openapi.json` describes the same paths for programs, and a test compares the two. What must always
//! hold: every path has one method (GET includes HEAD), and whatever changes something needs the token.

use http::{Method, StatusCode};

use super::keys::Unanswered;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Page,
    Health,
    Readiness,
    Metrics,
    Status,
    Routes,
    Refusals,
    Refusal,
    Top,
    History,
    Log,
    Overrides,
    Audit,
    OpenApi,
    Key,
    Change(KeyChange),
    Reload,
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyChange {
    Reset,
    Ban,
    Unban,
    Override,
}

/// Every path with what it is for. The one with a parameter stands for all that begin like it.
const PATHS: [(&str, Endpoint); 20] = [
    ("/", Endpoint::Page),
    ("/healthz", Endpoint::Health),
    ("/ready", Endpoint::Readiness),
    ("/metrics", Endpoint::Metrics),
    ("/status", Endpoint::Status),
    ("/routes", Endpoint::Routes),
    ("/refusals", Endpoint::Refusals),
    ("/refusals/{request_id}", Endpoint::Refusal),
    ("/top", Endpoint::Top),
    ("/history", Endpoint::History),
    ("/log", Endpoint::Log),
    ("/overrides", Endpoint::Overrides),
    ("/audit", Endpoint::Audit),
    ("/openapi.json", Endpoint::OpenApi),
    ("/keys", Endpoint::Key),
    ("/keys/reset", Endpoint::Change(KeyChange::Reset)),
    ("/keys/ban", Endpoint::Change(KeyChange::Ban)),
    ("/keys/unban", Endpoint::Change(KeyChange::Unban)),
    ("/keys/override", Endpoint::Change(KeyChange::Override)),
    ("/reload", Endpoint::Reload),
];

/// Where refusals are asked for by their identifiers.
pub(super) const REFUSAL: &str = "/refusals/";

impl Endpoint {
    /// What a path is for.
    ///
    /// # Errors
    /// No path of the API; the answer names them all.
    pub(super) fn of_path(path: &str) -> Result<Self, Unanswered> {
        if path.starts_with(REFUSAL) {
            return Ok(Self::Refusal);
        }
        let known = PATHS.iter().find(|(known, _)| *known == path);
        known.map(|(_, endpoint)| *endpoint).ok_or_else(|| {
            let paths: Vec<&str> = PATHS.iter().map(|(path, _)| *path).collect();
            Unanswered { status: StatusCode::NOT_FOUND, detail: paths.join(" ") }
        })
    }

    /// The methods that it takes, as `Allow` lists them.
    pub(super) const fn methods(self) -> &'static str {
        if self.is_posted() { "POST" } else { "GET, HEAD" }
    }

    /// Whether it takes a method.
    pub(super) fn takes(self, method: &Method) -> bool {
        match self.is_posted() {
            true => method == Method::POST,
            false => method == Method::GET || method == Method::HEAD,
        }
    }

    /// Whether it has a body, so that keys are in no URL, or changes something.
    pub(super) const fn is_posted(self) -> bool {
        matches!(self, Self::Key | Self::Change(_) | Self::Reload)
    }

    /// Whether it changes something, and needs a token in every configuration.
    pub(super) const fn is_change(self) -> bool {
        matches!(self, Self::Change(_) | Self::Reload)
    }

    /// Whether anybody may ask: probes, and the page itself, which tells nothing without a token.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Page | Self::Health | Self::Readiness)
    }

    /// Whether requests with any `Host` are answered: probes send all kinds of names, and health is not secret.
    pub(super) const fn takes_any_host(self) -> bool {
        matches!(self, Self::Health | Self::Readiness)
    }

    /// Whether requests count against what one client may ask. Probes and scrapers have to be answered.
    pub(super) const fn is_counted(self) -> bool {
        !matches!(self, Self::Health | Self::Readiness | Self::Metrics)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_description_has_every_path_with_its_method_and_token() {
        let description: Value = serde_json::from_str(crate::ops::admin::OPENAPI).unwrap();
        let described: BTreeMap<&str, Vec<&str>> = description["paths"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, methods)| {
                (path.as_str(), methods.as_object().unwrap().keys().map(String::as_str).collect())
            })
            .collect();
        let served: BTreeMap<&str, Vec<&str>> = PATHS
            .iter()
            .map(|(path, endpoint)| {
                (*path, vec![if endpoint.is_posted() { "post" } else { "get" }])
            })
            .collect();
        assert_eq!(described, served);
        for (path, endpoint) in PATHS {
            let method = if endpoint.is_posted() { "post" } else { "get" };
            let security = &description["paths"][path][method]["security"];
            let is_open = security.as_array().is_some_and(Vec::is_empty);
            assert_eq!(is_open, endpoint.is_open(), "{path}");
        }
    }

    #[test]
    fn every_path_leads_to_its_endpoint() {
        for (path, endpoint) in PATHS {
            let path = path.replace("{request_id}", "a/b%2fc");
            assert_eq!(Endpoint::of_path(&path).ok(), Some(endpoint), "{path}");
        }
        for path in ["", "*", "/keys/", "/keys/reset/", "/refusals2", "//", "/KEYS"] {
            assert!(Endpoint::of_path(path).is_err(), "{path}");
        }
    }
}
