//! Fields that few heads have and that need a second look: upgrades, claims of identity, method overrides, odd names,
//! several cookie lines. The scan of a head recognises them by first letter and length, so a head without them costs next
//! to nothing.

use std::ops::{BitOr, BitOrAssign};

use super::bytes;

/// Which of these fields a head has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UncommonFields(u8);

impl UncommonFields {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// `Upgrade` or `HTTP2-Settings`, which are not forwarded in every case.
    pub const UPGRADE: Self = Self(1);
    /// Claims something about the client, the scheme or the target, which only a trusted proxy may do. Fields that
    /// tollgate overwrites are not among them.
    pub const CLAIM: Self = Self(1 << 1);
    /// Names another method than the request line.
    pub const METHOD_OVERRIDE: Self = Self(1 << 2);
    /// A name with `_` or another mark than `-`.
    pub const ODD_NAME: Self = Self(1 << 3);
    /// More than one line of cookies.
    pub const COOKIES: Self = Self(1 << 4);

    /// Whether the head has a field of one of these kinds.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// The kind of a field by its name, without regard to odd characters.
    pub(crate) fn of_name(name: &[u8]) -> Self {
        let is_among = |names: &[&str]| names.iter().any(|candidate| is(name, candidate));
        match name.len() {
            7 if is(name, "upgrade") => Self::UPGRADE,
            14 if is(name, "http2-settings") => Self::UPGRADE,
            13 | 17 | 22 if is_among(&METHOD_OVERRIDES) => Self::METHOD_OVERRIDE,
            _ if is_claim(name) => Self::CLAIM,
            _ => Self::NONE,
        }
    }

    /// The kind of a field by its name, odd characters included.
    pub(crate) fn of_any_name(name: &[u8]) -> Self {
        let is_usual = name.iter().all(|byte| bytes::is_usual_in_name(*byte));
        Self::of_name(name) | if is_usual { Self::NONE } else { Self::ODD_NAME }
    }
}

impl BitOr for UncommonFields {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for UncommonFields {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Fields by which frameworks let a POST stand for another method.
pub(crate) const METHOD_OVERRIDES: [&str; 3] =
    ["x-http-method-override", "x-http-method", "x-method-override"];

/// Fields that tollgate overwrites.
pub(crate) const WRITTEN_HERE: [&str; 4] =
    ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id"];

/// Prefixes of claims, except for [`WRITTEN_HERE`]: fields of proxies, clouds and authentication modules, which drop them
/// when they come from outside.
const CLAIM_PREFIXES: [&str; 11] = [
    "cloudfront-",
    "ssl-client-",
    "x-appengine-",
    "x-arr-",
    "x-auth-request-",
    "x-azure-",
    "x-client-cert",
    "x-envoy-",
    "x-forwarded",
    "x-original-",
    "x-ssl-client",
];

/// Other claims: the client's address, name or certificate (RFC 9440), the scheme, the target, and the proxy that CGI programs would use
/// (httpoxy).
const CLAIMS: [&str; 44] = [
    "akamai-client-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "client-cert",
    "client-cert-chain",
    "client-ip",
    "do-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "forwarded-for",
    "front-end-https",
    "http-x-forwarded-for",
    "incap-client-ip",
    "proxy",
    "proxy-client-ip",
    "remote-addr",
    "remote-user",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-authenticated-user",
    "x-backend-host",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-gateway-host",
    "x-host",
    "x-http-destinationurl",
    "x-http-host-override",
    "x-http-path-override",
    "x-originating-ip",
    "x-override-url",
    "x-proxyuser-ip",
    "x-real-ip",
    "x-remote-addr",
    "x-remote-address",
    "x-remote-ip",
    "x-remote-user",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
    "x-vercel-forwarded-for",
    "x-waws-unencoded-url",
    "x-webauth-user",
];

/// Whether a field claims what only a trusted proxy may claim.
pub(crate) fn is_claim(name: &[u8]) -> bool {
    let Some(first) = name.first().map(u8::to_ascii_lowercase) else {
        return false;
    };
    // First letter and length rule out nearly every other name.
    let has_length = name.len() < 64 && LENGTHS[usize::from(first)] >> name.len() & 1 != 0;
    let may_begin = matches!(first, b'c' | b's' | b'x');
    has_length && CLAIMS.iter().any(|claim| is(name, claim))
        || may_begin
            && CLAIM_PREFIXES.iter().any(|prefix| begins(name, prefix))
            && !WRITTEN_HERE.iter().any(|own| is(name, own))
}

/// For each first letter, the lengths of the claims that begin with it: one bit for each length.
const LENGTHS: [u64; 256] = {
    let (mut lengths, mut index) = ([0; 256], 0);
    while index < CLAIMS.len() {
        let name = CLAIMS[index].as_bytes();
        lengths[name[0] as usize] |= 1 << name.len();
        index += 1;
    }
    lengths
};

fn is(name: &[u8], lower: &str) -> bool {
    name.eq_ignore_ascii_case(lower.as_bytes())
}

fn begins(name: &[u8], lower: &str) -> bool {
    name.get(..lower.len()).is_some_and(|start| is(start, lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for (name, expected) in [
            ("Upgrade", UncommonFields::UPGRADE),
            ("HTTP2-Settings", UncommonFields::UPGRADE),
            ("X-Real-IP", UncommonFields::CLAIM),
            ("X-REAL-IP", UncommonFields::CLAIM),
            ("proxy", UncommonFields::CLAIM),
            ("forwarded", UncommonFields::CLAIM),
            ("X-Forwarded", UncommonFields::CLAIM),
            ("X-Forwarded-Anything", UncommonFields::CLAIM),
            ("X-Original-URL", UncommonFields::CLAIM),
            ("X-Http-Method", UncommonFields::METHOD_OVERRIDE),
            ("X_Real_IP", UncommonFields::ODD_NAME),
            ("My.Own", UncommonFields::ODD_NAME),
            ("X-Forwarded-F\u{6f}r", UncommonFields::NONE),
            ("X-Forwarded-Host", UncommonFields::NONE),
            ("X-Originals", UncommonFields::NONE),
            ("X-Real-I", UncommonFields::NONE),
            ("X-SSL-Client-Verify", UncommonFields::CLAIM),
            ("X-Envoy-Original-Path", UncommonFields::CLAIM),
            ("HTTP_X_FORWARDED_FOR", UncommonFields::ODD_NAME),
            ("X-Requested-With", UncommonFields::NONE),
            ("X-API-Key", UncommonFields::NONE),
            ("Accept", UncommonFields::NONE),
            ("x", UncommonFields::NONE),
        ] {
            assert_eq!(UncommonFields::of_any_name(name.as_bytes()), expected, "{name}");
        }
        for name in CLAIMS.iter().chain(&CLAIM_PREFIXES) {
            assert!(is_claim(name.as_bytes()), "{name}");
            assert!(is_claim(name.to_ascii_uppercase().as_bytes()), "{name}");
        }
    }
}
