//! Judged requests for tests.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::clock::Nanos;
use tollgate::replay::judged::{AppliedRate, JudgedRequest, KeyResult, KeyVerdict, ShowKey};
use tollgate::replay::names::{LimitLabel, Names};

/// A key is shown as `k` and its number.
pub(crate) struct Numbered;

impl ShowKey for Numbered {
    fn show(&self, verdict: &KeyVerdict) -> Cow<'_, str> {
        format!("k{}", verdict.key).into()
    }
}

/// Every key is shown as the same text.
pub(crate) struct Shown(pub(crate) &'static str);

impl ShowKey for Shown {
    fn show(&self, _: &KeyVerdict) -> Cow<'_, str> {
        self.0.into()
    }
}

/// Limits with these names, each with a window of a minute.
pub(crate) fn names(limits: &[&str]) -> Arc<Names> {
    let label = |name: &&str| LimitLabel {
        name: Arc::from(*name),
        key: "client_ip".to_owned(),
        rate: "100/1m".to_owned(),
        window: Nanos::from_secs(60),
        algorithm: "token_bucket",
        tier: "exact",
        max_delay: None,
        is_shadow: false,
        rollout: None,
    };
    let routes = vec![Arc::from("api"), Arc::from("pages")];
    Arc::new(Names { routes, limits: limits.iter().map(label).collect() })
}

/// A verdict that costs one unit.
pub(crate) fn verdict(limit: usize, key: u128, result: KeyResult) -> KeyVerdict {
    KeyVerdict { limit, key, cost: 1, rate: AppliedRate::Own, result, shadow: false }
}

/// A request at a time in milliseconds. It is refused if a limit with effect refuses it.
pub(crate) fn request(at: u64, verdicts: &[KeyVerdict]) -> JudgedRequest<'_> {
    JudgedRequest {
        number: 0,
        at: Nanos::from_millis(at),
        uncertainty: Nanos::ZERO,
        route: Some(0),
        refused: verdicts.iter().any(|verdict| verdict.result.refuses() && !verdict.shadow),
        status: Some(200),
        method: "GET",
        host: "example.com",
        path: "/",
        verdicts,
        shown: &Numbered,
    }
}
