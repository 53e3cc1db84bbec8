//! What a line says, in the words of this project.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::value::RawValue;

/// What an access log says of a request.
#[derive(Clone, Debug)]
pub struct AccessLine<'l> {
    /// When it was.
    pub stamp: Stamp,
    /// Nanoseconds that the request took.
    pub duration: Option<u64>,
    /// Nanoseconds of the last digit of the duration: the true one may be this much more or less, since servers cut or round it.
    pub duration_step: u64,
    /// Address of the client. `None` if the log has a host name, `-` or nothing.
    pub client: Option<IpAddr>,
    /// The method. `None` if the log has no readable request line.
    pub method: Option<Cow<'l, str>>,
    /// The name that the request asked for, with the port if the log has it.
    pub host: Option<Cow<'l, str>>,
    /// The path with the query, as sent. An absolute URL is cut to its path.
    pub target: Option<Cow<'l, str>>,
    /// Status of the response.
    pub status: Option<u16>,
    /// Bytes of the response: of its body if the format tells the body apart.
    pub response_bytes: Option<u64>,
    /// The header field `User-Agent`.
    pub user_agent: Option<Cow<'l, str>>,
    /// The header field `Referer`.
    pub referer: Option<Cow<'l, str>>,
    /// The name that the client authenticated with.
    pub user: Option<Cow<'l, str>>,
    /// Other header fields of the request that the format names, in lower case. [`AccessLine::header`] knows all.
    pub headers: Vec<(Cow<'l, str>, Cow<'l, str>)>,
    /// Whether the connection of the client was encrypted. `None` if the format does not tell.
    pub is_tls: Option<bool>,
    /// The member `replay` of tollgate's own line, unparsed.
    pub own: Option<&'l RawValue>,
    /// Whether it is a line of tollgate.
    pub is_own: bool,
    /// Whether tollgate refused the request before it asked a limit, or redirected it.
    pub is_refused_early: bool,
}

impl AccessLine<'_> {
    /// The first value of a header field of the request, `user-agent`, `referer` and `host` included. The name is in
    /// lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        match name {
            "user-agent" => self.user_agent.as_deref(),
            "referer" => self.referer.as_deref(),
            "host" => self.host.as_deref(),
            other => {
                let found = self.headers.iter().find(|(known, _)| known == other);
                found.map(|(_, value)| value.as_ref())
            }
        }
    }

    /// The number of fields that the line filled. Detection prefers the format that fills more.
    pub(super) fn filled(&self) -> usize {
        let filled = [
            self.duration.is_some(),
            self.client.is_some(),
            self.method.is_some(),
            self.host.is_some(),
            self.target.is_some(),
            self.status.is_some(),
            self.response_bytes.is_some(),
            self.user_agent.is_some(),
            self.referer.is_some(),
            self.user.is_some(),
            self.is_tls.is_some(),
            self.own.is_some(),
        ];
        filled.iter().filter(|filled| **filled).count() + self.headers.len()
    }

    /// The record without the line. `own` is left out: it cannot exist apart from its line.
    pub(super) fn into_owned(self) -> AccessLine<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        AccessLine {
            stamp: self.stamp,
            duration: self.duration,
            duration_step: self.duration_step,
            client: self.client,
            method: self.method.map(owned),
            host: self.host.map(owned),
            target: self.target.map(owned),
            status: self.status,
            response_bytes: self.response_bytes,
            user_agent: self.user_agent.map(owned),
            referer: self.referer.map(owned),
            user: self.user.map(owned),
            headers: self
                .headers
                .into_iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            is_tls: self.is_tls,
            own: None,
            is_own: self.is_own,
            is_refused_early: self.is_refused_early,
        }
    }
}

/// A time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds since the Unix epoch, in UTC.
    pub nanos: u64,
    /// The step of the log's clock in nanoseconds: 1,000,000,000 if the log has seconds. The request was within
    /// `nanos..nanos + resolution`.
    pub resolution: u64,
    /// Which time of the request it is.
    pub moment: Moment,
}

/// Which time of a request a format logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its arrival.
    Start,
    /// The end of its response.
    End,
    /// The format does not tell: servers differ.
    Unknown,
}

/// Why a line has no record. It never holds text of the line, which may hold secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is a comment, a heading or blank: no request is lost.
    #[error("a comment or a blank line")]
    NoRequest,
    /// It has no time.
    #[error("no time")]
    NoTime,
    /// Its time cannot be read.
    #[error("a time that cannot be read")]
    BadTime,
    /// It is not a JSON object.
    #[error("not a JSON object")]
    NotJson,
    /// It is longer than [`MAX_LINE`](super::MAX_LINE).
    #[error("a line of more than 64 KiB")]
    TooLong,
    /// It has another shape than the format.
    #[error("another shape than the format")]
    WrongShape,
}

impl LineError {
    /// All kinds, in the order of [`LineError::index`].
    pub const ALL: [Self; 6] = [
        Self::NoRequest,
        Self::NoTime,
        Self::BadTime,
        Self::NotJson,
        Self::TooLong,
        Self::WrongShape,
    ];

    /// The position in [`LineError::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::NoRequest => 0,
            Self::NoTime => 1,
            Self::BadTime => 2,
            Self::NotJson => 3,
            Self::TooLong => 4,
            Self::WrongShape => 5,
        }
    }
}
