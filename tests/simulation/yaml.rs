//! A policy as the text that the real reader reads.

use std::fmt::Write;

use super::draw::{
    Action, Algorithm, Cost, KeyOf, Limit, Missing, OnFailure, Penalty, Policy, Rate,
};

impl Policy {
    /// The whole file.
    pub(crate) fn yaml(&self) -> String {
        let mut text = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
clients: { trusted_proxies: [10.0.0.0/8] }
origins: { site: { servers: [127.0.0.1:1] } }
check: { silence: [] }\n"
            .to_owned();
        if self.scope.crowded {
            text.push_str("limits_of_this_proxy: { max_keys: 8 }\n");
        }
        if self.scope.store {
            let timeout = self.scope.timeout;
            writeln!(text, "store: {{ redis: {{ url: redis://a, timeout: {timeout}ms }} }}")
                .unwrap();
        }
        text.push_str("limits:\n");
        for (place, limit) in self.limits.iter().enumerate() {
            limit.write(&mut text, place, self.scope.store);
        }
        text.push_str("routes:\n");
        for (place, uses) in self.routes.iter().enumerate() {
            let one = |(limit, cost): &(usize, Option<Cost>)| match cost {
                None => format!("l{limit}"),
                Some(cost) => format!("{{ limit: l{limit}, cost: {} }}", cost.yaml()),
            };
            let uses = uses.iter().map(one).collect::<Vec<_>>().join(", ");
            writeln!(
                text,
                "  - {{ name: r{place}, match: {{ path: /r{place} }}, limits: [{uses}] }}"
            )
            .unwrap();
        }
        text
    }
}

impl Cost {
    fn yaml(self) -> String {
        match self {
            Self::Fixed(cost) => cost.to_string(),
            Self::Request(max) => format!("{{ header: x-cost, max: {max} }}"),
            Self::Response { reserve, max } => {
                format!("{{ response_header: x-used, reserve: {reserve}, max: {max} }}")
            }
        }
    }
}

impl Limit {
    fn write(&self, text: &mut String, place: usize, store: bool) {
        let rate = |rate: Rate| format!("{}/{}s", rate.count, rate.period);
        let cost = self.cost.yaml();
        write!(text, "  l{place}: {{ tier: exact, cost: {cost}").unwrap();
        let algorithm = match self.algorithm {
            Algorithm::Fixed => "fixed_window",
            Algorithm::Sliding => "sliding_window",
            Algorithm::Log => "sliding_log",
            Algorithm::Bucket => "token_bucket",
            Algorithm::Leaky => "leaky_bucket",
            Algorithm::InFlight => "",
        };
        if self.algorithm == Algorithm::InFlight {
            write!(text, ", max_in_flight: {}", self.rate.count).unwrap();
        } else {
            write!(text, ", algorithm: {algorithm}, rate: {}", rate(self.rate)).unwrap();
            self.write_shape(text);
            if store {
                let word = match self.on_failure {
                    OnFailure::Local => "local",
                    OnFailure::Allow => "allow",
                    OnFailure::Deny => "deny",
                };
                write!(text, ", on_store_failure: {word}").unwrap();
            }
        }
        text.push_str(match self.key {
            KeyOf::Ip => ", key: client_ip",
            KeyOf::A => ", key: header:x-a",
            KeyOf::AB => ", key: [header:x-a, header:x-b]",
        });
        if self.key != KeyOf::Ip {
            text.push_str(&match self.missing {
                Missing::Skip => ", missing_key: skip".to_owned(),
                Missing::Deny => ", missing_key: deny".to_owned(),
                Missing::Ip => ", missing_key: client_ip".to_owned(),
                Missing::Limit(limit) => format!(", missing_key: {{ limit: l{limit} }}"),
            });
        }
        self.write_terms(text, &rate);
        for (holds, words) in [
            (self.shadow, ", mode: shadow"),
            (self.counts_401, ", count: { status: [401] }"),
            (self.refunds_5xx, ", refund: { status: [500-599] }"),
        ] {
            text.push_str(if holds { words } else { "" });
        }
        if let Some(Penalty { after, within, ban }) = self.penalty {
            let words = format!("after: {after}, within: {within}s, ban: {ban}s");
            write!(text, ", penalty: {{ {words} }}").unwrap();
        }
        text.push_str(" }\n");
    }

    fn write_shape(&self, text: &mut String) {
        if let (Algorithm::Bucket, Some(burst)) = (self.algorithm, self.burst) {
            write!(text, ", burst: {burst}").unwrap();
        }
        if let Some(step) = self.step {
            write!(text, ", refill_every: {step}s").unwrap();
        }
        if let Some(delay) = self.max_delay {
            write!(text, ", max_delay: {delay}ms").unwrap();
        }
        if let Some(word) = self.when_full {
            write!(text, ", when_full: {word}").unwrap();
        }
    }

    fn write_terms(&self, text: &mut String, rate: &impl Fn(Rate) -> String) {
        let action = |action: Action| match action {
            Action::Allow => "action: allow".to_owned(),
            Action::Deny => "action: deny".to_owned(),
            Action::Rate(other) => format!("rate: {}", rate(other)),
        };
        let mut overrides = Vec::new();
        overrides.extend(self.exceptions.0.map(|one| format!("{{ key: a1, {} }}", action(one))));
        overrides.extend(
            self.exceptions.1.map(|one| format!("{{ network: 198.51.100.0/24, {} }}", action(one))),
        );
        if !overrides.is_empty() {
            write!(text, ", overrides: [{}]", overrides.join(", ")).unwrap();
        }
        if let Some(gold) = self.gold {
            let tin = self.tin.map(|tin| format!(", tin: {}", rate(tin))).unwrap_or_default();
            let gold = rate(gold);
            write!(text, ", plans: {{ by: header:x-plan, rates: {{ gold: {gold}{tin} }} }}")
                .unwrap();
        }
        if let Some(candidate) = self.candidate {
            write!(text, ", candidate: {{ rate: {} }}", rate(candidate)).unwrap();
        }
        if let Some(share) = self.rollout {
            write!(text, ", rollout: {share}%").unwrap();
        }
    }
}
