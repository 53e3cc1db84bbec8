//! `missing_key`: what happens to a request without the key. It is required if the key can be
//! absent, and refused if it cannot. References between limits must not form a cycle.

use super::defined::{DefinedLimits, find_name};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::integer;
use crate::policy::{KeySpec, LimitIndex, MissingKey};

/// `missing_key` of a limit with this key. `names`: all limits.
pub(super) fn missing_key(
    map: &mut Mapping<'_>,
    key: Option<&KeySpec>,
    names: &[&str],
) -> Option<MissingKey> {
    match (key, map.get("missing_key")) {
        (Some(key), Some(at)) if !key.can_be_absent() => {
            at.error_with(format!("{key} is never absent"), "leave missing_key out");
            None
        }
        (Some(key), None) if key.can_be_absent() => {
            map.at().error_with(
                format!("missing_key is missing: a request can be without {key}"),
                "write missing_key: deny, client_ip, { limit: NAME } or skip",
            );
            None
        }
        (_, None) => Some(MissingKey::Impossible),
        (_, Some(at)) => action(&at, names),
    }
}

fn action(at: &Located<'_>, names: &[&str]) -> Option<MissingKey> {
    if let Some(status) = at.scalar().filter(|text| text.parse::<u16>().is_ok()) {
        at.error_with("a status without its word", format!("write {{ deny: {status} }}"));
        return None;
    }
    if !at.is_mapping() {
        return at.choice(&[
            ("skip", MissingKey::Skip),
            ("deny", MissingKey::Deny(400)),
            ("client_ip", MissingKey::ClientIp),
        ]);
    }
    let mut map = at.mapping()?;
    let (limit, deny) = (map.get("limit"), map.get("deny"));
    map.finish();
    match (limit, deny) {
        (Some(at), None) => find_name(names, &at, at.text()?).map(MissingKey::Limit),
        (None, Some(at)) => {
            let status = at.parse(integer(400, 499))?;
            u16::try_from(status).ok().map(MissingKey::Deny)
        }
        _ => {
            let message = "either a limit or a status is needed";
            at.error_with(message, "write { limit: NAME } or { deny: STATUS }");
            None
        }
    }
}

/// Refuses every limit whose chain of `missing_key` leads back to it.
pub(super) fn refuse_cycles(limits: &DefinedLimits<'_>) {
    for (index, defined) in limits.iter().enumerate() {
        let next = limits.missing_key_chain(LimitIndex(index)).filter_map(|link| {
            match limits.get(link).missing_key {
                MissingKey::Limit(next) => Some(next),
                MissingKey::Impossible
                | MissingKey::Skip
                | MissingKey::Deny(_)
                | MissingKey::ClientIp => None,
            }
        });
        if next.into_iter().any(|next| next == LimitIndex(index)) {
            defined.at.error_with(
                format!("missing_key of limit {:?} leads back to it", defined.limit.name),
                "end the chain with deny, client_ip or skip",
            );
        }
    }
}
