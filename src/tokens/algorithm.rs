//! The algorithms of signatures that are supported, as a closed list of our own: it stands in builds without the code
//! that checks signatures, too. `none` is not in it.

/// An algorithm of a signature (RFC 7518, section 3.1; RFC 8037, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// HMAC with SHA-256: the one that needs a secret.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

/// The algorithms for public keys, for errors.
pub const PUBLIC_KEY_ALGORITHMS: &str =
    "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA";

/// Algorithms of the registry (RFC 7518, RFC 8812) that are not supported.
const UNSUPPORTED: [&str; 4] = ["HS384", "HS512", "ES512", "ES256K"];

impl TokenAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 10] = [
        Self::Hs256,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// Those that an RSA key can be for.
    pub const RSA: [Self; 6] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512];

    /// As a token and a configuration write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The name of an algorithm that others have and tollgate does not, if this is one.
    pub fn unsupported(name: &str) -> Option<&'static str> {
        UNSUPPORTED.into_iter().find(|other| *other == name)
    }

    /// Whether its key is a secret that signs, too.
    pub const fn needs_secret(self) -> bool {
        matches!(self, Self::Hs256)
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmSet(u16);

impl AlgorithmSet {
    /// All of them: what a key is for decides alone.
    pub const ALL: Self = Self(u16::MAX);

    /// Whether it has this algorithm.
    pub const fn contains(self, algorithm: TokenAlgorithm) -> bool {
        self.0 & algorithm.bit() != 0
    }

    /// Whether both have an algorithm.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<TokenAlgorithm> for AlgorithmSet {
    fn from_iter<I: IntoIterator<Item = TokenAlgorithm>>(algorithms: I) -> Self {
        Self(algorithms.into_iter().fold(0, |bits, algorithm| bits | algorithm.bit()))
    }
}
