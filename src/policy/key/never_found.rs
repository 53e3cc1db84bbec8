//! Why a source never finds a text that a person wrote as its value, and what to write instead.
//!
//! It does not know where the text comes from. What must always hold: a cure is a text that the source finds, and nothing
//! here shows a part of a text that may be a secret: a query, or the user and the password of a URL.

use std::net::{IpAddr, Ipv6Addr};

use http::header::AUTHORIZATION;

use super::part::KeyPart;
use super::source::Source;
use super::{credentials, request_forms};
use crate::policy::KNOWN_METHODS;

/// What is wrong with a text, and what to write instead.
pub(super) type NeverFound = (&'static str, String);

const WRITTEN_OTHERWISE: &str = "is written otherwise in a request";
const CONTROL_BYTE: &str = "has a control byte, which no request has there";

/// What is wrong with a text as a value of a source; `None` if a request can have it.
pub(super) fn mistake(text: &str, source: &Source) -> Option<NeverFound> {
    match source {
        Source::Method => method(text),
        Source::Path => path(text),
        Source::PathSegment(_) => segment(text),
        Source::Host | Source::TlsSni => host(text, source),
        Source::Bearer => bearer(text),
        Source::BasicUser => basic_user(text),
        Source::Header(_) => header(text, source),
        Source::Cookie(_) => cookie(text, source),
        Source::Query(_) => {
            let is_readable = !text.bytes().any(|byte| byte.is_ascii_control());
            (!is_readable).then(|| (CONTROL_BYTE, "leave it out".to_owned()))
        }
        Source::ClientIp
        | Source::Jwt(_)
        | Source::TlsClient
        | Source::Route
        | Source::Class(_)
        | Source::FirstClass(_)
        | Source::Shard { .. } => None,
    }
}

/// A text for a message, which may reach a log. Only what is no secret anywhere is shown: a field, a cookie, a parameter or a
/// claim may hold a key, a URL a password.
pub(super) fn without_secret(text: &str, source: &Source) -> String {
    const HIDDEN: &str = "..";
    match source {
        Source::Method if text.bytes().all(|byte| byte.is_ascii_alphabetic()) => text.to_owned(),
        Source::Path | Source::PathSegment(_) if authority_and_path(text).0.is_empty() => {
            match text.find(['?', '#']) {
                Some(end) => format!("{}{HIDDEN}", &text[..=end]),
                None => text.to_owned(),
            }
        }
        Source::BasicUser => match text.split_once(':') {
            Some((user, _)) => format!("{user}:{HIDDEN}"),
            None => HIDDEN.to_owned(),
        },
        _ => HIDDEN.to_owned(),
    }
}

fn method(text: &str) -> Option<NeverFound> {
    if text == "HEAD" {
        return Some(("counts as GET", "write GET".to_owned()));
    }
    let upper = text.to_ascii_uppercase();
    let cure = match KNOWN_METHODS.contains(&&*upper) {
        true if upper == text => return None,
        true => format!("write {upper}"),
        false => format!("write one of {}", KNOWN_METHODS.join(", ")),
    };
    Some(("is no method that is forwarded", cure))
}

fn path(text: &str) -> Option<NeverFound> {
    let (_, bare) = authority_and_path(text);
    let slash = if bare.starts_with('/') { "" } else { "/" };
    let form = request_forms::path(&format!("{slash}{bare}"));
    if form.as_deref() == Some(text) {
        return None;
    }
    let reason = match &form {
        _ if !text.starts_with('/') => "is no path",
        _ if text.contains(['?', '#']) => "is more than a path",
        Some(_) => WRITTEN_OTHERWISE,
        None => {
            "is a path that cannot be sent, or that is refused because origins read it in different ways"
        }
    };
    Some((reason, form.map_or_else(|| ESCAPES.to_owned(), |path| format!("write {path}"))))
}

/// The cure of a path that origins read in different ways. It has no form that they read alike.
const ESCAPES: &str = "write it without dot segments, //, ;, \\ and escapes of ASCII characters, for example /api/track";

fn segment(text: &str) -> Option<NeverFound> {
    if request_forms::segment(text).as_deref() == Some(text) {
        return None;
    }
    let (_, bare) = authority_and_path(text);
    let first = bare.split('/').find(|segment| !segment.is_empty());
    let form = first.and_then(request_forms::segment);
    let reason = match &form {
        _ if bare.contains('/') => "is no segment: it has a slash",
        _ if text.contains(['?', '#']) => "is more than a segment",
        Some(_) => WRITTEN_OTHERWISE,
        None => {
            "is a segment that cannot be sent, or that is refused because origins read it in different ways"
        }
    };
    let cure = match form {
        Some(segment) => format!("write {segment}"),
        None => {
            "write it without dots alone, ;, \\ and escapes of ASCII characters, for example api"
                .to_owned()
        }
    };
    Some((reason, cure))
}

/// The authority and the path of a URL. The query is left out; a path alone has an empty authority.
fn authority_and_path(text: &str) -> (&str, &str) {
    let text = &text[..text.find(['?', '#']).unwrap_or(text.len())];
    let is_in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme = |text: &str| !text.is_empty() && text.bytes().all(is_in_scheme);
    let rest = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).map(|(_, rest)| rest);
    let at = |text: &str| text.find('/').unwrap_or(text.len());
    match rest {
        Some(rest) => rest.split_at(at(rest)),
        // A user and a password before a host.
        None if text[..at(text)].contains('@') && text[..at(text)].contains(':') => {
            text.split_at(at(text))
        }
        None => ("", text),
    }
}

fn host(text: &str, source: &Source) -> Option<NeverFound> {
    let bare = match text.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => bare_host(text).to_owned(),
    };
    let form = request_forms::host(&bare);
    if *source == Source::TlsSni && is_address(form.as_deref().unwrap_or(&bare)) {
        let cure = "write the name that clients connect to, as example.com";
        return Some(("is an address, which is never a server name", cure.to_owned()));
    }
    if bare == text && form.as_deref() == Some(&*text.to_ascii_lowercase()) {
        return None;
    }
    Some(match form {
        Some(host) if bare != text => {
            ("is more than a host", format!("write {host}, without scheme, port and path"))
        }
        Some(host) => (WRITTEN_OTHERWISE, format!("write {host}")),
        None if bare.starts_with("*.") => {
            ("stands for many hosts", "define a class with this host, and write class:".to_owned())
        }
        None if !bare.is_ascii() => {
            (WRITTEN_OTHERWISE, "write the host in ASCII, as xn--bcher-kva.example".to_owned())
        }
        None => (
            "is no host",
            "write a name as example.com, of letters, digits, hyphens and dots".to_owned(),
        ),
    })
}

/// The host in a URL, or in a host with a port. A user and a password before it are left out.
fn bare_host(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match host.find(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or(host),
    }
}

fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

fn bearer(text: &str) -> Option<NeverFound> {
    if credentials::is_token(text.as_bytes()) {
        return None;
    }
    let scheme = text.get(..7);
    let cure = match scheme.is_some_and(|it| it.eq_ignore_ascii_case("bearer ")) {
        true => "write the token alone, without Bearer",
        false => "write the token alone, without blanks, commas and quotes",
    };
    Some(("is no bearer token", cure.to_owned()))
}

fn basic_user(text: &str) -> Option<NeverFound> {
    if let Some((user, _)) = text.split_once(':') {
        return Some(("is no user: it has a colon", format!("write the user alone: {user}")));
    }
    let is_readable = !text.bytes().any(|byte| byte.is_ascii_control());
    (!is_readable).then(|| (CONTROL_BYTE, "leave it out".to_owned()))
}

fn header(text: &str, source: &Source) -> Option<NeverFound> {
    if text.trim_ascii() != text {
        let reason = "has blanks around it, which the value of a header never has";
        return Some((reason, "leave them out".to_owned()));
    }
    if has_control_byte(text) {
        return Some((CONTROL_BYTE, "leave it out".to_owned()));
    }
    let is_credential = *source == Source::Header(AUTHORIZATION);
    (is_credential && !is_readable(text, source)).then(|| {
        let reason = "is a value of Authorization with which a request is refused";
        let cure = "write it as a client sends it: Bearer and a token without commas and quotes, or Basic and the \
                    base64 of user:password";
        (reason, cure.to_owned())
    })
}

fn cookie(text: &str, source: &Source) -> Option<NeverFound> {
    if text.trim_ascii() != text {
        let reason = "has blanks around it, which the value of a cookie never has";
        return Some((reason, "leave them out".to_owned()));
    }
    if has_control_byte(text) {
        return Some((CONTROL_BYTE, "leave it out".to_owned()));
    }
    (text.contains([';', ',']) || !is_readable(text, source)).then(|| {
        let reason = "is a value of a cookie that origins read in different ways: a request with it is refused";
        let cure = "write % as %25, a semicolon as %3B, a comma as %2C, a quote as %22 and \\ as %5C";
        (reason, cure.to_owned())
    })
}

/// Whether the reader of requests finds a value.
fn is_readable(text: &str, source: &Source) -> bool {
    matches!(source.read_configured(text.as_bytes()), KeyPart::Present(_))
}

/// Whether a text has a byte that the value of a field never has. A tab may stand in it.
fn has_control_byte(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::super::{cookie as cookie_reader, header as header_reader};
    use super::*;
    use crate::clock::Nanos;
    use crate::policy::client::RequestClient;
    use crate::policy::{ConnectionFacts, Facts};

    fn facts(headers: &HeaderMap) -> Facts<'_> {
        Facts {
            client: RequestClient {
                ip: [192, 0, 2, 1].into(),
                ipv6_prefix: 64,
                peer_trusted: false,
            },
            connection: &ConnectionFacts::NONE,
            now: Nanos::ZERO,
            method: "GET",
            host: "a",
            path: "/",
            readings: &[],
            query: None,
            headers,
            conditions: None,
        }
    }

    /// A text is accepted exactly if a request that sends it has the key that the text stands for.
    #[test]
    fn a_text_is_a_key_if_a_request_that_sends_it_has_that_key() {
        const PIECES: [&str; 20] = [
            "a", "b", "%", "%41", "%zz", "%2c", "%00", "\"", "\\", "\\054", ";", ",", " ", "\t",
            "+", "=", "Bearer ", "Basic ", "dTpw", "é",
        ];
        let mut draw = fastrand::Rng::with_seed(5);
        let (cookie, authorization) = (Source::Cookie("c".into()), Source::Header(AUTHORIZATION));
        let other = Source::Header(HeaderName::from_static("x-k"));
        let (mut keys, mut mistakes) = (0, 0);
        for _ in 0..20_000 {
            let count = draw.usize(1..5);
            let text: String = (0..count).map(|_| PIECES[draw.usize(..PIECES.len())]).collect();
            if text.trim_ascii() != text {
                // The value of a request has no blanks around it, so such a text is refused in any case.
                assert!(mistake(&text, &cookie).is_some() && mistake(&text, &other).is_some());
                continue;
            }
            let line = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
            let sent = |name: HeaderName, text: &str| HeaderMap::from_iter([(name, line(text))]);
            for source in [&cookie, &authorization, &other] {
                let headers = match source {
                    Source::Header(name) => sent(name.clone(), &text),
                    _ => sent(COOKIE, &format!("c={text}")),
                };
                let facts = facts(&headers);
                let found = match source {
                    Source::Header(name) => header_reader::part(&facts, name),
                    _ => cookie_reader::part(&facts, "c"),
                };
                // What stands for no value is refused before it is looked at.
                let configured = source.read_configured(text.as_bytes());
                let is_key = configured != KeyPart::Absent && mistake(&text, source).is_none();
                let is_found = matches!(found, KeyPart::Present(_)) && found == configured;
                assert_eq!(is_key, is_found, "{source} {text:?} {found:?} {configured:?}");
                *(if is_key { &mut keys } else { &mut mistakes }) += 1;
            }
        }
        assert!(keys > 10_000 && mistakes > 10_000, "{keys} {mistakes}");
    }

    /// Each cure is accepted, and shows nothing that may be a secret.
    #[test]
    fn cures_are_keys_and_show_no_secret() {
        const STARTS: [&str; 5] = ["", "/", "https://", "joe:MARKER@", "https://joe:MARKER@"];
        const PIECES: [&str; 21] = [
            "/",
            "//",
            "a",
            "B.example",
            ".",
            "..",
            "?t=MARKER",
            "#MARKER",
            "://",
            ":80",
            "%61",
            "%c3%a9",
            "é",
            " ",
            ";v",
            "*",
            "[2001:db8::1]",
            "192.0.2.1",
            "@",
            "%2F",
            "_",
        ];
        let sources = [Source::Path, Source::PathSegment(1), Source::Host, Source::TlsSni];
        let mut draw = fastrand::Rng::with_seed(6);
        let mut cures = 0;
        for _ in 0..20_000 {
            let mut text = STARTS[draw.usize(..STARTS.len())].to_owned();
            for _ in 0..draw.usize(..6) {
                text.push_str(PIECES[draw.usize(..PIECES.len())]);
            }
            for source in &sources {
                let Some((reason, cure)) = mistake(&text, source) else { continue };
                let message = format!("{} {reason} {cure}", without_secret(&text, source));
                assert!(!message.contains("MARKER"), "{text} {source} {message}");
                let written = cure.strip_prefix("write ").filter(|_| !is_advice(&cure));
                if let Some(written) = written {
                    let written = written.trim_end_matches(", without scheme, port and path");
                    assert_eq!(mistake(written, source), None, "{text} {source} {cure}");
                    cures += 1;
                }
            }
        }
        assert!(cures > 10_000, "{cures}");
    }

    /// Whether a cure says how to write, not what.
    fn is_advice(cure: &str) -> bool {
        ["it without", "the name", "the host", "a name"].iter().any(|it| cure.contains(it))
    }
}
