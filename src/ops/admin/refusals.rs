//! `GET /refusals` and `GET /refusals/{request_id}`: which requests were refused, and why.
//!
//! The answers are made from the log of refusals. What must always hold: they show keys as hashes, and addresses of
//! clients only if the configuration allows it.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::AdminApi;
use super::keys::{Unanswered, rule_json};
use super::query::{Parameters, bad_request, not_found, shortened};
use crate::clock::Nanos;
use crate::engine::VerdictKind;
use crate::limit::TypedRate;
use crate::ops::log::timestamp;
use crate::policy::{KeyRule, client};
use crate::refusals::{
    MAX_ID_BYTES, MAX_REFUSALS, RecordedCell, RecordedLimit, RecordedRefusal, RecordedSource,
    RefusalQuery, UnknownName,
};

impl AdminApi {
    /// The latest refusals.
    pub(super) fn refusals(&self, query: Option<&str>) -> Result<Value, Unanswered> {
        let parameters = Parameters::of(query, &["since", "route", "limit", "count"])?;
        let date = self.engine.date(self.engine.now());
        let query = RefusalQuery {
            since: parameters.date("since", date)?.unwrap_or_default(),
            route: parameters.get("route"),
            limit: parameters.get("limit"),
            count: parameters.count()?,
        };
        let latest = self.counters.refusals().latest(&query).map_err(|unknown| {
            let (kind, name) = match unknown {
                UnknownName::Route => ("route", query.route),
                UnknownName::Limit => ("limit", query.limit),
            };
            not_found(unknown_name(kind, name.unwrap_or_default()))
        })?;
        let refusals = latest.refusals.iter().map(|refusal| self.refusal_json(refusal));
        Ok(json!({ "refusals": refusals.collect::<Vec<_>>(), "more": latest.has_more }))
    }

    /// Why one request was refused. `id` as it stands in the path.
    pub(super) fn refusal(&self, id: &str, query: Option<&str>) -> Result<Value, Unanswered> {
        Parameters::of(query, &[])?;
        let id = decoded(id);
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            let detail =
                format!("write the identifier of a request: 1 to {MAX_ID_BYTES} characters");
            return Err(bad_request(detail));
        }
        let found = self.counters.refusals().find(&id).ok_or_else(|| {
            not_found(format!(
                "no refusal with this identifier is kept: this node keeps the last {MAX_REFUSALS} that a \
                 limit made since it started; the access log has requests of every kind"
            ))
        })?;
        let mut answer = self.refusal_json(&found.refusal);
        if let Some(members) = answer.as_object_mut() {
            members.insert("earlier".to_owned(), found.earlier.into());
        }
        Ok(answer)
    }

    fn refusal_json(&self, refusal: &RecordedRefusal) -> Value {
        let at = |left: Nanos| timestamp(refusal.date.saturating_add(left).into());
        let limits = refusal.limits.iter().map(|limit| self.limit_json(refusal, limit));
        let mut answer = json!({
            "request_id": refusal.request_id,
            "time": at(Nanos::ZERO),
            "reason": refusal.reason.name(),
            "route": &*self.counters.refusals().name(refusal.route),
            "status": refusal.status,
            "authenticated": refusal.authenticated,
            "degraded": refusal.degraded,
            "generation": refusal.generation,
            "retry_at": retry_after(refusal).map(at),
            "limits": limits.collect::<Vec<_>>(),
            "limits_left_out": refusal.left_out,
        });
        if let (true, Some(members)) = (self.show_addresses, answer.as_object_mut()) {
            members.insert("client_ip".to_owned(), refusal.client.to_string().into());
        }
        answer
    }

    fn limit_json(&self, refusal: &RecordedRefusal, limit: &RecordedLimit) -> Value {
        let log = self.counters.refusals();
        let cell = limit.cell.as_ref();
        let (plan, overridden) = match cell.map(|cell| cell.source) {
            Some(RecordedSource::Plan(name)) => (Some(log.name(name).to_string()), None),
            Some(RecordedSource::Override(index)) => (None, Some(format!("overrides[{index}]"))),
            Some(RecordedSource::KeyRule) => (None, Some("of an operator".to_owned())),
            Some(RecordedSource::Own) | None => (None, None),
        };
        let retry_at = cell.filter(|cell| refuses(cell)).and_then(|cell| cell.retry_after);
        let retry_at = retry_at.map(|left| timestamp(refusal.date.saturating_add(left).into()));
        let is_override = plan.is_none() && overridden.is_some();
        let denied = cell.is_some_and(|cell| {
            refuses(cell) && !cell.is_banned && is_override && cell.remaining.is_none()
        });
        let rule = cell.and_then(|cell| {
            let is_asked = |rule: &&KeyRule| {
                rule.key == cell.key
                    && rule.ruling.is_ban() == cell.is_banned
                    && rule.made_at <= refusal.date
                    && rule.until > refusal.date
            };
            let rules = self.engine.key_rules();
            rules.iter().find(is_asked).map(rule_json)
        });
        json!({
            "name": &*log.name(limit.name),
            "tier": limit.tier.name(),
            "algorithm": limit.algorithm.name(),
            "rate": cell.and_then(|cell| cell.rate).map(|rate| TypedRate(rate).to_string()),
            "verdict": cell.map_or(refusal.reason.name(), |cell| cell.kind.name()),
            "spent": cell.and_then(|cell| Some(cell.size.saturating_sub(cell.remaining?))),
            "limit": cell.map(|cell| cell.size),
            "cost": cell.map(|cell| cell.cost),
            "key_hash": cell.map(|cell| cell.key.to_string()),
            "plan": plan,
            "override": overridden,
            "retry_at": retry_at,
            "shadow": cell.is_some_and(|cell| cell.is_shadow),
            "banned": cell.is_some_and(|cell| cell.is_banned),
            "denied": denied,
            "rule": rule,
        })
    }
}

/// Whether a limit refuses by its verdict.
fn refuses(cell: &RecordedCell) -> bool {
    let denies = matches!(
        cell.kind,
        VerdictKind::Denied | VerdictKind::OverflowDenied | VerdictKind::DegradedDenied
    );
    denies && !cell.is_shadow
}

/// The time until every limit that refuses would admit the request. `None`: one of them never does, or none is kept.
fn retry_after(refusal: &RecordedRefusal) -> Option<Nanos> {
    let cells = refusal.limits.iter().filter_map(|limit| limit.cell.as_ref());
    let retries: Option<Vec<Nanos>> =
        cells.filter(|cell| refuses(cell)).map(|cell| cell.retry_after).collect();
    retries?.into_iter().max()
}

/// What is wrong with a name that no configuration of this process has had.
pub(super) fn unknown_name(kind: &str, name: &str) -> String {
    format!("no configuration since the start has had a {kind} {:?}", shortened(name))
}

/// An address that is a key: of IPv6 the network that counts as one client.
pub(super) fn shown_address((address, prefix): (IpAddr, u8)) -> String {
    let network = client::prefix(address, prefix);
    match network {
        IpAddr::V6(_) if prefix < 128 => format!("{network}/{prefix}"),
        IpAddr::V4(_) | IpAddr::V6(_) => network.to_string(),
    }
}

/// A text of a path without its escapes (RFC 3986, section 2.1). Identifiers may have a `+`, which stands for itself in a
/// path.
fn decoded(text: &str) -> String {
    let escaped = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    form_urlencoded::parse(escaped.as_bytes()).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_read_as_paths_are() {
        for (path, expected) in [
            ("0123abc", "0123abc"),
            ("Root=1-67891233-abc:/+@._~", "Root=1-67891233-abc:/+@._~"),
            ("Root%3D1%2b2%2F", "Root=1+2/"),
            ("a&b=c", "a&b=c"),
            ("", ""),
            ("%", "%"),
            ("%zz%ff", "%zz\u{fffd}"),
        ] {
            assert_eq!(decoded(path), expected, "{path}");
        }
    }

    #[test]
    fn an_address_is_shown_as_it_counts() {
        for (address, prefix, expected) in [
            ("192.0.2.7", 64, "192.0.2.7"),
            ("2001:db8:1:2:3::4", 64, "2001:db8:1:2::/64"),
            ("2001:db8::4", 128, "2001:db8::4"),
        ] {
            assert_eq!(shown_address((address.parse().unwrap(), prefix)), expected);
        }
    }
}
