use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Map, Value};
use tollgate::clock::Nanos;
use tollgate::tokens::{ClaimLookup, SignatureCheck, TokenAlgorithm, TokenVerifier, WantedClaim};

const SECRET: &[u8] = b"a secret of thirty-two bytes, not a byte less";
const JWKS: &str = include_str!("../../../tests/policies/keys/jwks.json");
const CLAIM: &str = "sub";
/// Who is believed, and for whom.
const ISSUER: &str = "i";
const AUDIENCE: &str = "a";
const NOW: u64 = 1_800_000_000;
/// Seconds by which clocks may differ.
const LEEWAY: u64 = 60;

/// A token, or, where the input begins with `{`, the header and the claims of one (two lines), which is
/// then signed with the secret. Nothing is believed without the signature, and of what is signed, what
/// RFC 7519 allows.
pub fn tokens(bytes: &[u8]) {
    let (of_secret, of_keys) =
        (TokenVerifier::from_secret(SECRET).unwrap(), TokenVerifier::from_jwks(JWKS).unwrap());
    if bytes.first() != Some(&b'{') {
        let told = told(&of_secret, bytes);
        assert!(told.is_none() || is_signed(bytes), "{told:?} of a forged token");
        let algorithm = algorithm_if_true(bytes);
        assert_eq!(told_by_keys(&of_keys, bytes), algorithm.is_some(), "of a public key");
        for (name, only) in [("RS256", TokenAlgorithm::Rs256), ("EdDSA", TokenAlgorithm::EdDsa)] {
            let of_one = TokenVerifier::from_jwks(JWKS).unwrap().only([only].into_iter().collect());
            let is_believed = told_by_keys(&of_one.unwrap(), bytes);
            assert_eq!(is_believed, algorithm.as_deref() == Some(name), "only {name}");
        }
        return;
    }
    let mut lines = super::lines(bytes);
    let (header, claims) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let token = signed(header, claims, SECRET);
    let first = told(&of_secret, &token);
    assert_eq!(first, told(&of_secret, &token), "it is remembered");
    match expected(header, claims) {
        Expected::Claim(value) => assert_eq!(first, Some(value)),
        Expected::Nothing => assert_eq!(first, None),
        Expected::Either(value) => assert!(first.is_none() || first == value, "{first:?}"),
    }
    assert!(!told_by_keys(&of_keys, &token), "a secret's signature");
    believes_only_whom_it_is_to_believe(&of_secret, &token, claims, first.as_deref());
    // Public keys are no secrets.
    let confused = signed(header, claims, JWKS.as_bytes());
    assert_eq!(told(&of_secret, &confused), None);
    assert!(!told_by_keys(&of_keys, &confused));
    for at in super::cuts(token.len()).filter(|at| *at < token.len()) {
        let mut forged = token.clone();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(told(&of_secret, &forged), None, "another byte at {at}");
        assert_eq!(told(&of_secret, &token[..at]), None, "cut at {at}");
    }
}

/// One verifier serves sources that believe different issuers and audiences, and what it remembers of a token for one
/// is not believed for another. `any`: what the token tells a source that believes all of them.
fn believes_only_whom_it_is_to_believe(
    tokens: &TokenVerifier,
    token: &[u8],
    claims: &[u8],
    any: Option<&str>,
) {
    let claims = serde_json::from_slice::<Map<String, Value>>(claims).unwrap_or_default();
    let is_of_issuer = claims.get("iss").and_then(Value::as_str) == Some(ISSUER);
    let is_for_audience = match claims.get("aud") {
        Some(Value::String(audience)) => audience == AUDIENCE,
        Some(Value::Array(all)) => all.iter().any(|one| one == AUDIENCE),
        _ => false,
    };
    for (issuer, audience) in [(true, false), (false, true), (true, true)] {
        let wanted = WantedClaim {
            issuer: issuer.then(|| ISSUER.into()),
            audiences: audience.then(|| AUDIENCE.into()).into_iter().collect(),
            ..WantedClaim::named(CLAIM)
        };
        let is_believed = (!issuer || is_of_issuer) && (!audience || is_for_audience);
        let expected = any.filter(|_| is_believed);
        assert_eq!(told_to(tokens, token, &wanted).as_deref(), expected, "{wanted:?}");
    }
}

fn told_by_keys(tokens: &TokenVerifier, token: &[u8]) -> bool {
    told(tokens, token).is_some()
}

/// What a token claims. Once it is checked, the same is known of it without a check.
fn told(tokens: &TokenVerifier, token: &[u8]) -> Option<String> {
    told_to(tokens, token, &WantedClaim::named(CLAIM))
}

fn told_to(tokens: &TokenVerifier, token: &[u8], wanted: &WantedClaim) -> Option<String> {
    let claim = |signatures| tokens.claim(token, wanted, signatures, Nanos::from_secs(NOW));
    let checked = claim(SignatureCheck::Verify);
    let recalled = claim(SignatureCheck::Recall);
    assert!(recalled == checked || recalled == ClaimLookup::Unchecked, "{recalled:?}, {checked:?}");
    match checked {
        ClaimLookup::Value(value) => Some(value),
        ClaimLookup::Absent => None,
        ClaimLookup::Unchecked => panic!("a token was to be checked"),
        ClaimLookup::NoKeys => panic!("there are keys"),
    }
}

/// The algorithm of a token that claims something and that one of the public keys, which it may name, has signed.
/// (Who changes one of those that are committed loses the signature: the private keys are gone.)
fn algorithm_if_true(token: &[u8]) -> Option<String> {
    let parts: Vec<&[u8]> = token.split(|byte| *byte == b'.').collect();
    let &[header, claims, tag] = parts.as_slice() else {
        return None;
    };
    let json = |part: &[u8]| {
        let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
        serde_json::from_slice::<Map<String, Value>>(&bytes).ok()
    };
    let (Some(header), Some(claims), Ok(tag)) =
        (json(header), json(claims), URL_SAFE_NO_PAD.decode(tag))
    else {
        return None;
    };
    let body = &token[..token.len() - parts[2].len() - 1];
    let keys: Value = serde_json::from_str(JWKS).unwrap();
    let mut keys = keys["keys"].as_array().unwrap().iter();
    let is_true = claims.contains_key(CLAIM)
        && keys.any(|key| {
            let is_named = header.get("kid").is_none_or(|kid| key["kid"] == *kid);
            let is_for = header.get("alg") == key.get("alg");
            is_named && is_for && verifies(key, body, &tag)
        });
    is_true.then(|| header["alg"].as_str().map(str::to_owned)).flatten()
}

/// Whether a key of a JWKS says that a signature is true.
fn verifies(key: &Value, body: &[u8], tag: &[u8]) -> bool {
    let number = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap_or_default());
    let checked = |algorithm: &'static dyn VerificationAlgorithm, bytes: &[u8]| {
        UnparsedPublicKey::new(algorithm, bytes).verify(body, tag).is_ok()
    };
    match (key["alg"].as_str(), number("x"), number("y"), number("n"), number("e")) {
        (Some("RS256"), _, _, Ok(n), Ok(e)) => {
            let key = RsaPublicKeyComponents { n, e };
            key.verify(&RSA_PKCS1_2048_8192_SHA256, body, tag).is_ok()
        }
        (Some("ES256"), Ok(x), Ok(y), ..) => {
            checked(&ECDSA_P256_SHA256_FIXED, &[&[4], &x[..], &y[..]].concat())
        }
        (Some("EdDSA"), Ok(x), ..) => checked(&ED25519, &x),
        _ => false,
    }
}

fn signed(header: &[u8], claims: &[u8], secret: &[u8]) -> Vec<u8> {
    let body = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let tag = ring::hmac::sign(&hmac_key(secret), body.as_bytes());
    format!("{body}.{}", URL_SAFE_NO_PAD.encode(tag)).into_bytes()
}

fn is_signed(token: &[u8]) -> bool {
    let Some(dot) = token.iter().rposition(|byte| *byte == b'.') else {
        return false;
    };
    let tag = URL_SAFE_NO_PAD.decode(&token[dot + 1..]);
    tag.is_ok_and(|tag| ring::hmac::verify(&hmac_key(SECRET), &token[..dot], &tag).is_ok())
}

fn hmac_key(secret: &[u8]) -> ring::hmac::Key {
    ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret)
}

enum Expected {
    Claim(String),
    Nothing,
    /// What is unusual may be refused.
    Either(Option<String>),
}

/// What a token with a true signature claims.
fn expected(header: &[u8], claims: &[u8]) -> Expected {
    let object = |json: &[u8]| serde_json::from_slice::<Map<String, Value>>(json).ok();
    let texts = (header, claims);
    let (Some(header), Some(claims)) = (object(header), object(claims)) else {
        return Expected::Nothing;
    };
    // What is critical has to be understood (RFC 7515, section 4.1.11), and nothing here is.
    let is_critical = header.get("crit").is_some_and(|crit| !crit.is_null());
    if header.get("alg").and_then(Value::as_str) != Some("HS256") || is_critical {
        return Expected::Nothing;
    }
    let claim = match claims.get(CLAIM) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => return Expected::Nothing,
    };
    // (A part of a second does not count.)
    let time = |name| claims.get(name).map(|time| time.as_f64().map(f64::floor));
    let is_over = |time: f64| NOW as f64 >= time + LEEWAY as f64;
    let is_to_come = |time: f64| ((NOW + LEEWAY) as f64) < time;
    let is_out_of_time = match (time("exp"), time("nbf")) {
        (Some(None), _) | (_, Some(None)) => true,
        (until, from) => {
            until.flatten().is_some_and(is_over) || from.flatten().is_some_and(is_to_come)
        }
    };
    let plain = |(name, value): (&String, &Value)| {
        matches!(name.as_str(), "alg" | "typ" | "kid") && value.is_string()
    };
    // (No two of one name, which the library refuses in some places.)
    let is_text_of = |map: &Map<String, Value>, text: &[u8]| {
        serde_json::to_vec(map).is_ok_and(|written| written == text)
    };
    let is_written_once = is_text_of(&header, texts.0) && is_text_of(&claims, texts.1);
    match (is_out_of_time, is_written_once && header.iter().all(plain)) {
        (true, _) => Expected::Nothing,
        (false, true) => Expected::Claim(claim),
        (false, false) => Expected::Either(Some(claim)),
    }
}
