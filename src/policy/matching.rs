//! Conditions on a request as routes and classes state them, and classes: conditions with a name.
//!
//! These are values that judge the facts of one request. They know no routes and no order; the router preselects, and
//! [`RequestMatch::holds`] decides.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::client;
use super::condition::Condition;
use super::facts::Facts;
use super::path::PathPattern;
use super::unreadable::Unreadable;

/// Conditions that must all hold; an empty list holds for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// The host matches one of these.
    pub hosts: Vec<HostPattern>,
    /// The path matches one of these.
    pub paths: Vec<PathPattern>,
    /// The method is one of these.
    pub methods: MethodSet,
    /// Each of these holds.
    pub values: Vec<Condition>,
    /// The client is in one of these networks.
    pub clients: Vec<IpNet>,
    /// The connection came to one of these listeners.
    pub listeners: Vec<Arc<str>>,
    /// The request is in one of these classes.
    pub classes: Vec<Arc<Class>>,
    /// None of these holds.
    pub none_of: Vec<RequestMatch>,
}

/// Conditions with a name. A request may be in several classes.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique in the policy.
    pub name: Arc<str>,
    /// The requests that are in it. It refers to no class.
    pub matches: RequestMatch,
}

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host, lower case.
    Exact(Box<str>),
    /// `*.example.com`: any host below at any depth, not `example.com` itself. Holds `example.com`.
    Below(Box<str>),
}

/// Every method that is forwarded: those of RFC 9110 and RFC 5789 except for CONNECT and TRACE, of WebDAV, and of its
/// extensions.
pub const KNOWN_METHODS: [&str; 19] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "SEARCH",
    "REPORT",
    "LINK",
    "UNLINK",
    "QUERY",
];

/// Methods by name; empty means all. GET includes HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodSet(Vec<Box<str>>);

impl RequestMatch {
    /// Whether all conditions hold. The cheap ones are asked first.
    ///
    /// # Errors
    /// Origins may read a value in different ways, and no other condition excludes the request.
    pub fn holds(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        let is_possible = (self.hosts.is_empty()
            || self.hosts.iter().any(|host| host.matches(facts.host)))
            && (self.paths.is_empty() || self.paths.iter().any(|path| path.matches(facts.path)))
            && self.methods.contains(facts.method)
            && (self.listeners.is_empty() || self.is_listener(facts))
            && (self.clients.is_empty() || self.is_client(facts.client.ip));
        if !is_possible {
            return Ok(false);
        }
        let mut is_readable = Ok(true);
        for condition in &self.values {
            match condition.holds(facts) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => is_readable = Err(error),
            }
        }
        let classes = self.classes.iter().map(|class| &class.matches);
        match any_holds(classes, facts) {
            Ok(false) if !self.classes.is_empty() => return Ok(false),
            Ok(_) => {}
            Err(error) => is_readable = Err(error),
        }
        match any_holds(self.none_of.iter(), facts) {
            Ok(true) => Ok(false),
            Ok(false) => is_readable,
            Err(error) => Err(error),
        }
    }

    fn is_client(&self, address: IpAddr) -> bool {
        let address = client::unmapped(address);
        self.clients.iter().any(|net| net.contains(&address))
    }

    fn is_listener(&self, facts: &Facts<'_>) -> bool {
        let own = facts.connection.listener.as_deref();
        own.is_some_and(|own| self.listeners.iter().any(|name| **name == *own))
    }

    /// Whether the path decides it. Another reading of the path may be decided differently then.
    pub fn reads_path(&self) -> bool {
        !self.paths.is_empty()
            || self.classes.iter().any(|class| class.matches.reads_path())
            || self.none_of.iter().any(Self::reads_path)
    }

    /// Every condition on a value in it, in its classes and in what it excludes.
    pub fn all_values(&self) -> Vec<&Condition> {
        self.nested().into_iter().flat_map(|matches| &matches.values).collect()
    }

    /// Itself, the matches of its classes, and those that it excludes, with all inside of them.
    pub fn nested(&self) -> Vec<&Self> {
        let classes = self.classes.iter().flat_map(|class| class.matches.nested());
        let excluded = self.none_of.iter().flat_map(Self::nested);
        std::iter::once(self).chain(classes).chain(excluded).collect()
    }
}

impl Class {
    /// Whether a request is in the class.
    ///
    /// # Errors
    /// As [`RequestMatch::holds`].
    pub fn holds(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        self.matches.holds(facts)
    }
}

/// Whether one of several matches holds.
fn any_holds<'m>(
    mut matches: impl Iterator<Item = &'m RequestMatch>,
    facts: &Facts<'_>,
) -> Result<bool, Unreadable> {
    let mut result = Ok(false);
    loop {
        match matches.next().map(|candidate| candidate.holds(facts)) {
            None => return result,
            Some(Ok(true)) => return Ok(true),
            Some(Ok(false)) => {}
            Some(Err(error)) => result = Err(error),
        }
    }
}

impl HostPattern {
    /// Whether a lower-case host without port matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *host,
            Self::Below(domain) => host
                .strip_suffix(&**domain)
                .and_then(|below| below.strip_suffix('.'))
                .is_some_and(|label| !label.is_empty()),
        }
    }
}

/// As in the configuration.
impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(domain) => write!(f, "*.{domain}"),
        }
    }
}

impl MethodSet {
    /// A set of methods as configured.
    pub fn new(methods: impl IntoIterator<Item = String>) -> Self {
        Self(methods.into_iter().map(String::into_boxed_str).collect())
    }

    /// Whether a method is in the set.
    pub fn contains(&self, method: &str) -> bool {
        let method = if method == "HEAD" { &["HEAD", "GET"][..] } else { &[method][..] };
        self.0.is_empty() || self.0.iter().any(|allowed| method.contains(&&**allowed))
    }

    /// The methods as configured; none means all.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|method| &**method)
    }
}
