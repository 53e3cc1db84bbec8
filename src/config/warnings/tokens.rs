//! Warnings about tokens whose keys are published at a URL: an identity provider signs for many applications, and it can be
//! away when a process starts.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::reader::Located;
use crate::policy::key::{Claim, OnKeysFailure};
use crate::policy::{Limit, MissingKey, Source};

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.limits.iter() {
        warn_of_published_keys(&defined.limit, &defined.at, list);
    }
}

fn warn_of_published_keys(limit: &Limit, at: &Located<'_>, list: &mut WarningList<'_>) {
    let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
    let sources = limit.key.sources().iter().chain(plan);
    let published: Vec<&Claim> = sources
        .filter_map(Source::claim)
        .filter(|claim| claim.tokens.published_set().is_some())
        .collect();
    if published.iter().any(|claim| claim.wanted.audiences.is_empty()) {
        let message = format!(
            "limit {:?} believes tokens that the same provider has signed for other applications",
            limit.name
        );
        list.add(Code::AnyAudience, at, message, "write audience: NAME");
    }
    let reads_key =
        |claim: &&Claim| limit.key.sources().iter().any(|it| it.claim() == Some(*claim));
    let mut of_key = published.iter().copied().filter(|claim| reads_key(claim));
    if matches!(limit.missing_key, MissingKey::Deny(_))
        && of_key.any(|claim| claim.on_keys_failure == OnKeysFailure::Absent)
    {
        let (name, missing) = (&limit.name, &limit.missing_key);
        let message = format!(
            "limit {name:?} has on_keys_failure: absent and missing_key: {missing}: until the keys \
             are fetched, good tokens are refused as if their clients were at fault"
        );
        let cure = "write on_keys_failure: deny (503), or another missing_key";
        list.add(Code::OutageAsMissingKey, at, message, cure);
    }
}
