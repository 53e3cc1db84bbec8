//! Why a route does not match a request, for people who ask.
//!
//! The first condition that does not hold is named, in the order in which [`RequestMatch::holds`] asks them. Requests are
//! not decided here. What must always hold: there is a mismatch exactly where the route does not match.

use std::fmt;

use super::condition::Condition;
use super::facts::Facts;
use super::matching::RequestMatch;
use super::unreadable::Unreadable;

/// The first condition that a request does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch<'m> {
    /// The host is none of these.
    Host(Vec<String>),
    /// The path is none of these.
    Path(Vec<String>),
    /// The method is none of these.
    Method(Vec<&'m str>),
    /// The connection came to none of these listeners.
    Listener(Vec<&'m str>),
    /// The client is in none of these networks.
    Client(Vec<String>),
    /// The condition does not hold.
    Value(&'m Condition),
    /// It is in none of these classes.
    Class(Vec<&'m str>),
    /// One of the exclusions holds.
    Excluded,
    /// Origins may read a value in different ways, or the conditions of the request are too much work.
    Unreadable,
}

impl RequestMatch {
    /// Why a request does not match; `None` if it does.
    pub fn mismatch(&self, facts: &Facts<'_>) -> Option<Mismatch<'_>> {
        match self.holds(facts) {
            Ok(true) => None,
            Err(Unreadable) => Some(Mismatch::Unreadable),
            Ok(false) => Some(self.first_mismatch(facts)),
        }
    }

    /// The first condition that does not hold, of a match that does not hold.
    fn first_mismatch(&self, facts: &Facts<'_>) -> Mismatch<'_> {
        /// Whether one part of the conditions holds, everything else left out.
        fn holds(part: RequestMatch, facts: &Facts<'_>) -> bool {
            part.holds(facts) != Ok(false)
        }
        let none = RequestMatch::default;
        if !holds(Self { hosts: self.hosts.clone(), ..none() }, facts) {
            return Mismatch::Host(self.hosts.iter().map(ToString::to_string).collect());
        }
        if !holds(Self { paths: self.paths.clone(), ..none() }, facts) {
            return Mismatch::Path(self.paths.iter().map(ToString::to_string).collect());
        }
        if !holds(Self { methods: self.methods.clone(), ..none() }, facts) {
            return Mismatch::Method(self.methods.iter().collect());
        }
        if !holds(Self { listeners: self.listeners.clone(), ..none() }, facts) {
            return Mismatch::Listener(self.listeners.iter().map(|name| &**name).collect());
        }
        if !holds(Self { clients: self.clients.clone(), ..none() }, facts) {
            return Mismatch::Client(self.clients.iter().map(ToString::to_string).collect());
        }
        let fails = |condition: &&Condition| condition.holds(facts) == Ok(false);
        if let Some(condition) = self.values.iter().find(fails) {
            return Mismatch::Value(condition);
        }
        if !holds(Self { classes: self.classes.clone(), ..none() }, facts) {
            return Mismatch::Class(self.classes.iter().map(|class| &*class.name).collect());
        }
        Mismatch::Excluded
    }
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(hosts) => write!(f, "the host is not {}", hosts.join(" or ")),
            Self::Path(paths) => write!(f, "the path is not {}", paths.join(" or ")),
            Self::Method(methods) => write!(f, "the method is not {}", methods.join(" or ")),
            Self::Listener(names) => write!(f, "the listener is not {}", names.join(" or ")),
            Self::Client(networks) => write!(f, "the client is not in {}", networks.join(" or ")),
            Self::Value(condition) => write!(f, "this does not hold: {condition}"),
            Self::Class(classes) => write!(f, "it is not in class {}", classes.join(" or ")),
            Self::Excluded => f.write_str("it meets a condition that the route excludes under `not`"),
            Self::Unreadable => f.write_str(
                "a condition cannot be known: origins may read its value in different ways, or it is too much work",
            ),
        }
    }
}
