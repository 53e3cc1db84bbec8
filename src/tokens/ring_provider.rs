//! Lets the token library check signatures with ring.
//!
//! The library leaves signatures to a provider. ring is in the program already, because TLS uses it. This file knows
//! no tokens; it never signs.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static RING: CryptoProvider =
    CryptoProvider { signer_factory, verifier_factory, key_utils: KeyUtils::new_unimplemented() };

/// Installs ring as the library's provider, unless a program that embeds this crate has installed another one before.
pub(super) fn install() {
    // An error says that there is one already, which stays.
    let _ = RING.install_default();
}

/// Always fails: this crate never signs.
fn signer_factory(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let kind = match algorithm {
        Algorithm::HS256 => Kind::Hmac,
        Algorithm::RS256 => Kind::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Kind::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Kind::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Kind::Rsa(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Kind::Rsa(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Kind::Rsa(&RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Kind::Bytes(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Kind::Bytes(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Kind::Bytes(&ED25519),
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(RingVerifier { algorithm: *algorithm, kind, key: key.kind().clone() }))
}

/// How ring checks a signature.
#[derive(Clone, Copy)]
enum Kind {
    Hmac,
    Rsa(&'static RsaParameters),
    /// With a public key that is a row of bytes.
    Bytes(&'static dyn VerificationAlgorithm),
}

/// Verifies signatures of one algorithm with one key.
struct RingVerifier {
    algorithm: Algorithm,
    kind: Kind,
    key: DecodingKeyKind,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let result = match (self.kind, &self.key) {
            (Kind::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Kind::Hmac, DecodingKeyKind::SecretOrDer(secret)) => {
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
                ring::hmac::verify(&key, message, signature)
            }
            (Kind::Bytes(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        result.map_err(|_| Error::new())
    }
}
