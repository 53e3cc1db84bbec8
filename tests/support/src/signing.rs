//! Signed tokens for tests: true ones of the secret of `tests/policies/keys`, and forged ones.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use tollgate::clock::Nanos;
use tollgate::engine::Generation;
use tollgate::policy::Source;
use tollgate::tokens::{SignatureCheck, TokenVerifier, WantedClaim};

fn body(header: &str, claims: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
}

/// The n-th token with a true signature (HS256) and these claims.
pub fn signed(claims: &str, n: u64) -> String {
    let secret = include_str!("../../policies/keys/secret").trim_end_matches(['\r', '\n']);
    let claims = claims.trim_end_matches('}');
    let body = body(r#"{"alg":"HS256","typ":"JWT"}"#, &format!("{claims},\"n\":{n}}}"));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = ring::hmac::sign(&key, body.as_bytes());
    format!("{body}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// The n-th token that says HS256 and was not signed with the secret.
pub fn forged(n: u64) -> String {
    let body = body(r#"{"alg":"HS256","typ":"JWT"}"#, &format!("{{\"sub\":\"a\",\"n\":{n}}}"));
    format!("{body}.{}", URL_SAFE_NO_PAD.encode([7; 32]))
}

/// The n-th token for a public key of `jwks.json`, with so many bytes in place of a signature.
pub fn forged_for(algorithm: &str, key: &str, signature: usize, n: u64) -> String {
    let header = format!("{{\"alg\":\"{algorithm}\",\"typ\":\"JWT\",\"kid\":\"{key}\"}}");
    let body = body(&header, &format!("{{\"sub\":\"a\",\"n\":{n}}}"));
    format!("{body}.{}", URL_SAFE_NO_PAD.encode(vec![7; signature]))
}

/// An identity provider's key for EdDSA, made for a test.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    id: String,
}

impl SigningKey {
    /// A new key with this id (`kid`).
    pub fn new(id: &str) -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { pair: Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap(), id: id.to_owned() }
    }

    /// Its public key, as a set has it.
    pub fn jwk(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        format!(r#"{{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"{}","x":"{x}"}}"#, self.id)
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &str) -> String {
        self.sign_as(&self.id, claims)
    }

    /// The same under another key id.
    pub fn sign_as(&self, id: &str, claims: &str) -> String {
        let body = body(&format!(r#"{{"alg":"EdDSA","typ":"JWT","kid":"{id}"}}"#), claims);
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(body.as_bytes()));
        format!("{body}.{signature}")
    }
}

/// A set of these keys.
pub fn set_of(keys: &[&SigningKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| key.jwk()).collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

/// The keys of a policy, each once.
pub fn of(generation: &Generation) -> Vec<Arc<TokenVerifier>> {
    let limits = generation.policy().limits.iter();
    let sources = limits.flat_map(|limit| {
        let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
        limit.key.sources().iter().chain(plan)
    });
    let mut found: Vec<Arc<TokenVerifier>> = Vec::new();
    for source in sources {
        if let Source::Jwt(claim) = source
            && !found.iter().any(|one| Arc::ptr_eq(one, &claim.tokens))
        {
            found.push(Arc::clone(&claim.tokens));
        }
    }
    found
}

/// Has a token checked with all keys of a policy, so that it is remembered.
pub fn recall(generation: &Generation, token: &str, now: Nanos) {
    for keys in of(generation) {
        let wanted = WantedClaim::named("sub");
        keys.claim(token.as_bytes(), &wanted, SignatureCheck::Verify, now);
    }
}
