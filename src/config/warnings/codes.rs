//! The codes of warnings, and which of them are silenced.

use crate::config::reader::Mapping;

/// Why a warning is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    UnreachableRoute,
    UnusedLimit,
    SpoofableKey,
    AddressHeaderUntrusted,
    TrustsEverybody,
    EstimateNoise,
    FixedKeySecret,
    SpoofableCost,
    PlanUntrusted,
    Overspend,
    RolledOutToNobody,
    SharedBan,
    SpoofableBan,
    ShadowedOverride,
    SpoofableClass,
    UnknownMethod,
    StarInValue,
    UnlimitedPreflights,
    UnlimitedTokenChecks,
    ClientsNotAsked,
}

/// Every code, as it is written in a configuration.
const CODES: [(&str, Code); 20] = [
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
    ("unlimited-preflights", Code::UnlimitedPreflights),
    ("unlimited-token-checks", Code::UnlimitedTokenChecks),
    ("clients-not-asked", Code::ClientsNotAsked),
];

impl Code {
    /// As it is written in a configuration.
    pub(super) fn name(self) -> &'static str {
        CODES.iter().find(|(_, code)| *code == self).map_or("", |(name, _)| *name)
    }
}

/// The codes in `check: { silence: [..] }`.
pub(crate) struct SilencedCodes(Vec<Code>);

impl SilencedCodes {
    pub(super) fn contains(&self, code: Code) -> bool {
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
