//! The codes of warnings, and which of them are silenced.

use crate::config::reader::Mapping;

/// Why a warning is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// No request reaches a route.
    UnreachableRoute,
    /// No route uses a limit, or only routes that no request reaches.
    UnusedLimit,
    /// Clients choose a key freely, and no limit by address bounds them.
    SpoofableKey,
    /// The header with the client's address is believed from nobody.
    AddressHeaderUntrusted,
    /// Every client is a trusted proxy.
    TrustsEverybody,
    /// A sketch over-counts by more than a tenth of its limit.
    EstimateNoise,
    /// Keys are hashed with a publicly known secret.
    FixedKeySecret,
    /// Clients name their own cost.
    SpoofableCost,
    /// A plan comes from a header that nobody is trusted to send.
    PlanUntrusted,
    /// A request in flight may overspend a limit many times.
    Overspend,
    /// A limit is enforced for no key.
    RolledOutToNobody,
    /// Many clients share the key of a ban.
    SharedBan,
    /// A client can have another one banned.
    SpoofableBan,
    /// An earlier override covers the network of a later one.
    ShadowedOverride,
    /// A class that clients enter by themselves lifts a limit.
    SpoofableClass,
    /// No request has this method.
    UnknownMethod,
    /// An asterisk stands for itself in a value.
    StarInValue,
    /// Counted repetitions make a pattern expensive.
    CostlyPattern,
    /// A pattern, or a part of it, matches no value.
    PatternMatchesNothing,
    /// A cost never fits into a rate that some requests of the route have.
    CostAboveRate,
    /// No limit applies to the CORS preflights of a route.
    UnlimitedPreflights,
    /// No limit bounds how many tokens are checked.
    UnlimitedTokenChecks,
    /// A key is in certificates that no listener asks for.
    ClientsNotAsked,
    /// Tokens that were signed for other applications are believed.
    AnyAudience,
    /// While keys cannot be fetched, clients with good tokens are refused as if they had none.
    OutageAsMissingKey,
    /// A pattern of included files matches none.
    EmptyInclude,
    /// A path without stars does not match the paths below it, which a route with fewer limits takes.
    PathsBelow,
    /// A rewrite leads to paths that another route limits.
    RewriteOverlap,
    /// An override is for the keys of a file without keys.
    EmptyKeyFile,
    /// Counts that nodes exchange arrive too late for the period of a limit.
    ExchangeTooSlow,
    /// `fleet` is written, and no limit counts over the fleet.
    UnusedFleet,
    /// No request is in a class.
    EmptyClass,
    /// An override or a plan is for no request that its limit meets.
    UnusedOverride,
    /// A server of an origin is an address that this process listens on.
    OriginIsListener,
    /// A listener of `[::]` serves no IPv4.
    Ipv4NotServed,
    /// A certificate has expired.
    CertificateExpired,
    /// A certificate is valid only later.
    CertificateNotYetValid,
    /// A certificate expires soon.
    CertificateExpiresSoon,
    /// A server of the store cannot be used now.
    StoreUnreachable,
    /// A server of an origin cannot be used now.
    OriginUnreachable,
    /// Keys at a URL cannot be fetched now.
    KeysUnreachable,
    /// A file that is sent as it is contains a placeholder of pages.
    PlaceholderInBody,
}

/// Every code, as it is written in a configuration.
const CODES: [(&str, Code); 42] = [
    ("unreachable-route", Code::UnreachableRoute),
    ("unused-limit", Code::UnusedLimit),
    ("spoofable-key", Code::SpoofableKey),
    ("address-header-untrusted", Code::AddressHeaderUntrusted),
    ("trusts-everybody", Code::TrustsEverybody),
    ("estimate-noise", Code::EstimateNoise),
    ("fixed-key-secret", Code::FixedKeySecret),
    ("spoofable-cost", Code::SpoofableCost),
    ("plan-untrusted", Code::PlanUntrusted),
    ("overspend", Code::Overspend),
    ("rolled-out-to-nobody", Code::RolledOutToNobody),
    ("shared-ban", Code::SharedBan),
    ("spoofable-ban", Code::SpoofableBan),
    ("shadowed-override", Code::ShadowedOverride),
    ("spoofable-class", Code::SpoofableClass),
    ("unknown-method", Code::UnknownMethod),
    ("star-in-value", Code::StarInValue),
    ("costly-pattern", Code::CostlyPattern),
    ("pattern-matches-nothing", Code::PatternMatchesNothing),
    ("cost-above-rate", Code::CostAboveRate),
    ("unlimited-preflights", Code::UnlimitedPreflights),
    ("unlimited-token-checks", Code::UnlimitedTokenChecks),
    ("clients-not-asked", Code::ClientsNotAsked),
    ("any-audience", Code::AnyAudience),
    ("outage-as-missing-key", Code::OutageAsMissingKey),
    ("empty-include", Code::EmptyInclude),
    ("paths-below", Code::PathsBelow),
    ("rewrite-overlap", Code::RewriteOverlap),
    ("empty-key-file", Code::EmptyKeyFile),
    ("exchange-too-slow", Code::ExchangeTooSlow),
    ("unused-fleet", Code::UnusedFleet),
    ("empty-class", Code::EmptyClass),
    ("unused-override", Code::UnusedOverride),
    ("origin-is-listener", Code::OriginIsListener),
    ("ipv4-not-served", Code::Ipv4NotServed),
    ("certificate-expired", Code::CertificateExpired),
    ("certificate-not-yet-valid", Code::CertificateNotYetValid),
    ("certificate-expires-soon", Code::CertificateExpiresSoon),
    ("store-unreachable", Code::StoreUnreachable),
    ("origin-unreachable", Code::OriginUnreachable),
    ("keys-unreachable", Code::KeysUnreachable),
    ("placeholder-in-body", Code::PlaceholderInBody),
];

impl Code {
    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(_, code)| *code == self).map_or("", |(name, _)| *name)
    }
}

/// The codes in `check: { silence: [..] }`.
#[derive(Debug, Default)]
pub(crate) struct SilencedCodes(Vec<Code>);

impl SilencedCodes {
    pub(in crate::config) fn contains(&self, code: Code) -> bool {
        self.0.contains(&code)
    }
}

/// `check`.
pub(crate) fn silenced(root: &mut Mapping<'_>) -> SilencedCodes {
    let Some(mut map) = root.get("check").and_then(|at| at.mapping()) else {
        return SilencedCodes(Vec::new());
    };
    let codes = map.get("silence").map(|at| at.list_or_single()).unwrap_or_default();
    map.finish();
    SilencedCodes(codes.iter().filter_map(|at| at.choice(&CODES)).collect())
}
