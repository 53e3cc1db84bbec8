//! What the log shows of one request: cut, and without what the configuration hides.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Version;

use crate::clock::Nanos;
use crate::config::{AccessLog, LogAddress, LogKey, LogPath};
use crate::engine::CandidateComparison;
use crate::policy::{KeyHash, client};
use crate::proxy::{AccessRecord, RequestOutcome};

/// The largest number of bytes of a method, a host, a path or a user agent that are logged, so that clients cannot fill
/// the disk with them.
const MAX_TEXT: usize = 1_024;

/// Hexadecimal digits of a hash that `log_key: prefix` shows.
const PREFIX_DIGITS: usize = 8;

/// A record as every form of the log may show it.
pub(super) struct Fields<'r> {
    pub(super) record: &'r AccessRecord<'r>,
    pub(super) client_ip: Option<IpAddr>,
    pub(super) method: &'r str,
    pub(super) host: &'r str,
    /// The path, or the route's name instead.
    pub(super) path: &'r str,
    /// The path, unless the route's name stands for it.
    pub(super) url_path: Option<&'r str>,
    pub(super) decision: &'static str,
    pub(super) user_agent: Option<Cow<'r, str>>,
    pub(super) trace_id: Option<&'r str>,
    pub(super) key: Option<ShownKey>,
}

/// The hash of a key, or its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownKey {
    hash: KeyHash,
    digits: usize,
}

impl<'r> Fields<'r> {
    /// Applies the rules to a record.
    pub(super) fn of(record: &'r AccessRecord<'r>, rules: &AccessLog) -> Self {
        let url_path = (rules.path == LogPath::Full).then(|| cut(record.path));
        let hidden = rules.hidden;
        Self {
            client_ip: record
                .client_ip
                .and_then(|address| shown_address(address, rules, record.ipv6_prefix)),
            method: cut(record.method),
            host: cut(record.host),
            path: url_path.or(record.route).unwrap_or(""),
            url_path,
            decision: match record.outcome {
                RequestOutcome::Failed if record.outage => "outage",
                RequestOutcome::Forwarded | RequestOutcome::Failed => "allowed",
                RequestOutcome::Limited => "limited",
                RequestOutcome::Rejected => "rejected",
                RequestOutcome::Redirected => "redirected",
            },
            user_agent: record.user_agent.filter(|_| !hidden.user_agent).map(cut_text),
            trace_id: record.trace_id.filter(|_| !hidden.trace_id),
            key: record.judged().and_then(|judged| ShownKey::of(judged.key, rules.log_key)),
            record,
        }
    }

    /// The candidates that compare in this way.
    pub(super) fn candidates(
        &self,
        kind: CandidateComparison,
    ) -> impl Iterator<Item = &'r str> + Clone {
        let all = self.record.candidates.iter();
        all.filter(move |candidate| candidate.comparison == kind).map(|candidate| candidate.limit)
    }

    /// Microseconds of delay, if there was one.
    pub(super) fn waited_us(&self) -> Option<u64> {
        (self.record.waited > Nanos::ZERO).then(|| micros(self.record.waited))
    }

    /// Microseconds until the head of the origin's answer.
    pub(super) fn origin_duration_us(&self) -> Option<u64> {
        self.record.exchange.duration.map(micros)
    }

    /// Whether the key of the deciding limit came from a credential.
    pub(super) fn authenticated(&self) -> bool {
        self.record.judged().is_some_and(|judged| judged.authenticated)
    }

    /// Why it was rejected, or why it failed.
    pub(super) fn cause(&self) -> Option<&'static str> {
        let rejected = self.record.reason.map(|reason| reason.name());
        rejected.or(self.record.failure.map(|failure| failure.name()))
    }

    /// `https` or `http`.
    pub(super) fn scheme(&self) -> &'static str {
        if self.record.tls_version.is_some() { "https" } else { "http" }
    }

    /// The version of HTTP with its name, as NGINX writes it.
    pub(super) fn protocol(&self) -> Option<&'static str> {
        self.record.protocol.and_then(|version| match version {
            Version::HTTP_10 => Some("HTTP/1.0"),
            Version::HTTP_11 => Some("HTTP/1.1"),
            Version::HTTP_2 => Some("HTTP/2.0"),
            _ => None,
        })
    }

    /// The version of HTTP as Elastic and OpenTelemetry write it.
    pub(super) fn http_version(&self) -> Option<&'static str> {
        self.record.protocol.and_then(|version| match version {
            Version::HTTP_10 => Some("1.0"),
            Version::HTTP_11 => Some("1.1"),
            Version::HTTP_2 => Some("2"),
            _ => None,
        })
    }

    /// The version of TLS alone, `1.3`.
    pub(super) fn tls_number(&self) -> Option<&'static str> {
        self.record.tls_version.and_then(|version| match version {
            "TLSv1_3" => Some("1.3"),
            "TLSv1_2" => Some("1.2"),
            _ => None,
        })
    }

    /// The version of TLS with its name, as NGINX writes it.
    pub(super) fn tls_version(&self) -> Option<&'static str> {
        self.record.tls_version.and_then(|version| match version {
            "TLSv1_3" => Some("TLSv1.3"),
            "TLSv1_2" => Some("TLSv1.2"),
            _ => None,
        })
    }

    /// When the request ended: RFC 3339 in UTC, in milliseconds.
    pub(super) fn time(&self) -> impl fmt::Display + use<> {
        humantime::format_rfc3339_millis(self.at())
    }

    /// When the request ended.
    pub(super) fn at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from(self.record.at)
    }
}

impl ShownKey {
    fn of(hash: KeyHash, rule: LogKey) -> Option<Self> {
        let digits = match rule {
            LogKey::None => return None,
            LogKey::Hash => 32,
            LogKey::Prefix => PREFIX_DIGITS,
        };
        Some(Self { hash, digits })
    }
}

/// Hexadecimal digits.
impl fmt::Display for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = String::with_capacity(32);
        write!(digits, "{}", self.hash)?;
        f.write_str(digits.get(..self.digits).unwrap_or_default())
    }
}

fn shown_address(address: IpAddr, rules: &AccessLog, ipv6_prefix: u8) -> Option<IpAddr> {
    match (rules.client_ip, address) {
        (LogAddress::None, _) => None,
        (LogAddress::Full, _) => Some(address),
        (LogAddress::Prefix, IpAddr::V4(v4)) => {
            let [a, b, c, _] = v4.octets();
            Some(IpAddr::from([a, b, c, 0]))
        }
        (LogAddress::Prefix, IpAddr::V6(_)) => Some(client::prefix(address, ipv6_prefix)),
    }
}

/// The beginning of a text: at most [`MAX_TEXT`] bytes, and whole characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The beginning of bytes as text. Bytes that are not UTF-8 become U+FFFD, except for a character that the cut divides.
fn cut_text(bytes: &[u8]) -> Cow<'_, str> {
    let beginning = &bytes[..bytes.len().min(MAX_TEXT)];
    let valid = match std::str::from_utf8(beginning) {
        Ok(_) => beginning.len(),
        Err(error) if error.error_len().is_none() && beginning.len() < bytes.len() => {
            error.valid_up_to()
        }
        Err(_) => beginning.len(),
    };
    match String::from_utf8_lossy(&beginning[..valid]) {
        // U+FFFD is longer than what it stands for.
        Cow::Owned(text) => Cow::Owned(cut(&text).to_owned()),
        borrowed @ Cow::Borrowed(_) => borrowed,
    }
}

const fn micros(span: Nanos) -> u64 {
    span.get() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let long = "\u{fc}".repeat(2_000);
        assert_eq!(cut(&long).len(), MAX_TEXT);
        let odd = format!("a{long}");
        assert_eq!((cut(&odd).len(), cut_text(odd.as_bytes()).len()), (MAX_TEXT - 1, MAX_TEXT - 1));
        assert_eq!(cut_text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
        assert_eq!(cut_text(b"a\xc3"), "a\u{fffd}", "it was not cut");
        assert_eq!(cut_text(&[0xff; 40_000]).len(), MAX_TEXT / 3 * 3);
    }

    #[test]
    fn a_key_is_its_hash_or_the_beginning_of_it() {
        let hash: KeyHash = "00000000deadbeef0123456789abcdef".parse().unwrap();
        let shown = |rule| ShownKey::of(hash, rule).map(|key| key.to_string());
        assert_eq!(shown(LogKey::None), None);
        assert_eq!(shown(LogKey::Hash).as_deref(), Some("00000000deadbeef0123456789abcdef"));
        assert_eq!(shown(LogKey::Prefix).as_deref(), Some("00000000"));
    }
}
