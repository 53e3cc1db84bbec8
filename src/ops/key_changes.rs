//! Changes that operators make to keys: where they are decided, how nodes learn of them, and when they end.
//!
//! Without a shared store this node keeps the rules. With one the store keeps them, and a change holds when the store has
//! taken it; this node learns it from the same reply, and the others when they ask next ([`POLL_EVERY`]). It does not
//! know who asked for a change. What must always hold: the rules that the engine follows are published with the
//! configuration, and rules are not lost while a node that knows them lives, also if the store loses them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::reload::Reloader;
use crate::clock::Nanos;
use crate::engine::Engine;
use crate::limit::MICROSECOND;
use crate::policy::{KeyHash, KeyRule};
use crate::store::redis::{
    MAX_KEY_RULES, RuleChange, RuleChangeError, RuleEvent, RuleNews, RulesQuestion, RulesVersion,
    SharedStore, ToldOutage,
};

/// The time between two questions to the store. A change reaches every node within it and the time of a reply.
pub const POLL_EVERY: Duration = Duration::from_millis(300);

/// How long a rule may last: 30 days.
pub(super) const MAX_RULE_SPAN: Nanos = Nanos::from_secs(30 * 86_400);

/// Ended rules that a node remembers.
const MAX_ENDED: usize = 1_000;

/// Resets and lifts that a node remembers: as many as the store keeps with their marks (`key_rules.lua`).
const MAX_MADE: usize = 1_000;

/// For so long the log is not told again that the store has lost its rules: two stores may answer in turn.
const QUIET_AFTER_LOSS: Nanos = Nanos::from_secs(60);

/// A step of the clock after which the ends of rules are computed anew.
const CLOCK_STEP: Nanos = Nanos::SECOND;

/// The rules for keys, as this node knows them.
pub struct KeyChanges {
    engine: Arc<Engine>,
    reloader: Arc<Reloader>,
    shared: Mutex<SharedRules>,
}

/// What this node knows of the rules in the shared store. It is locked while the store is asked, so that replies are
/// applied in their order.
#[derive(Default)]
struct SharedRules {
    version: RulesVersion,
    /// The date less the monotonic time when the ends of the rules were computed.
    date_offset: Option<u64>,
    /// Rules that were ended before their time, the latest last. They are told to a store that has an older state again.
    ended: VecDeque<EndedRule>,
    /// Resets and lifts that this node has made, the latest last. They are told to a store that has lost them.
    made: VecDeque<RuleEvent>,
    /// Whether it may not know all rules.
    wants_all: bool,
    /// Whether a store has answered this process.
    has_answer: bool,
    /// Whether this node had taken over what a process counted that had made less, when it asked last.
    asked_behind: bool,
    /// How often it was set which changes this node has made, when it asked last.
    times_set: u64,
    /// When (monotonic) the log was told last that the store has lost its rules.
    loss_told: Option<Nanos>,
    /// Of questions without an answer.
    outage: ToldOutage,
}

/// A rule that was ended before its time.
struct EndedRule {
    key: KeyHash,
    is_ban: bool,
    /// The version at which this node heard of it; later than the rule.
    at: u64,
}

impl EndedRule {
    fn told(&self) -> RuleChange {
        RuleChange::Gone { key: self.key, is_ban: self.is_ban, at: self.at }
    }
}

impl SharedRules {
    /// Whether the clock was set since the ends of the rules were computed.
    fn is_out_of_step(&self, date: Nanos, mono: Nanos) -> bool {
        let offset = date.saturating_sub(mono).get();
        self.date_offset.is_some_and(|known| known.abs_diff(offset) > CLOCK_STEP.get())
    }

    /// The date now by the clock by which the rules have their ends.
    fn date_of_rules(&self, date: Nanos, mono: Nanos) -> Nanos {
        self.date_offset.map_or(date, |offset| mono.saturating_add(Nanos::new(offset)))
    }

    /// A rule with its end by the clock of now, which may have been set since.
    fn in_step(&self, rule: &KeyRule, date: Nanos, mono: Nanos) -> KeyRule {
        let left = rule.until.saturating_sub(self.date_of_rules(date, mono));
        KeyRule { until: date.saturating_add(left), ..rule.clone() }
    }

    /// Remembers what this node has made.
    fn remember_made(&mut self, event: RuleEvent) {
        if !self.made.contains(&event) {
            self.made.push_back(event);
        }
        while self.made.len() > MAX_MADE {
            self.made.pop_front();
        }
    }

    /// Remembers rules that were in force and are not any more at this version.
    fn remember_ended(&mut self, before: &[KeyRule], now: &[KeyRule], date: Nanos, version: u64) {
        let same = |a: &KeyRule, b: &KeyRule| a.replaces(b);
        self.ended.retain(|ended| {
            !now.iter().any(|rule| rule.key == ended.key && rule.ruling.is_ban() == ended.is_ban)
        });
        let is_ended =
            |rule: &&KeyRule| rule.until > date && !now.iter().any(|other| same(rule, other));
        for rule in before.iter().filter(is_ended) {
            let (key, is_ban) = (rule.key, rule.ruling.is_ban());
            // Not by a clock: the rule that follows has a later version. Later than the rule, also if another store took it, whose
            // clock was ahead.
            let at = version.max(rule.version.map_or(0, |made| made.saturating_add(1)));
            self.ended.push_back(EndedRule { key, is_ban, at });
        }
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }
}

impl KeyChanges {
    /// No rules yet.
    pub fn new(engine: Arc<Engine>, reloader: Arc<Reloader>) -> Self {
        Self { engine, reloader, shared: Mutex::default() }
    }

    /// Makes changes. They hold on this node when this returns, and on the others within a second.
    ///
    /// # Errors
    /// [`RuleChangeError`]: nothing has changed, unless the store may have made the change all the same.
    pub async fn make(&self, changes: &[RuleChange]) -> Result<(), RuleChangeError> {
        match self.engine.remote() {
            Some(store) => {
                let mut shared = self.shared.lock().await;
                self.exchange(store, &mut shared, changes).await
            }
            None => {
                let _guard = self.shared.lock().await;
                self.make_alone(changes)
            }
        }
    }

    /// Asks the shared store what other nodes have changed.
    pub async fn poll(&self) {
        let Some(store) = self.engine.remote().filter(|store| store.keeps_rules()) else {
            return;
        };
        let mut shared = self.shared.lock().await;
        let result = self.exchange(store, &mut shared, &[]).await;
        let now = self.engine.now().mono;
        match result {
            Ok(()) if shared.outage.succeed(now) => {
                log::info!("overrides and bans of operators are shared again");
            }
            Err(why) if shared.outage.fail(now) => {
                log::warn!(
                    "overrides and bans of operators are not shared with the other nodes: {why}"
                );
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Removes rules whose end has come. (They have no effect any more, whether they are removed or not.)
    pub fn expire(&self) {
        let now = self.engine.now();
        let date = self.engine.date(now);
        let rules = self.engine.key_rules();
        if rules.iter().all(|rule| rule.until > date) {
            return;
        }
        // A change that is being made removes them as well.
        let Ok(shared) = self.shared.try_lock() else {
            return;
        };
        if shared.is_out_of_step(date, now.mono) {
            // The clock was set. The store tells how long the rules still last.
            return;
        }
        let (ended, kept): (Vec<_>, Vec<_>) =
            self.engine.key_rules().iter().cloned().partition(|rule| rule.until <= date);
        for rule in &ended {
            log::info!(
                "limit {}: the rule for key {} has ended ({})",
                rule.limit,
                rule.key,
                rule.reason
            );
        }
        self.publish(kept);
    }

    async fn exchange(
        &self,
        store: &SharedStore,
        shared: &mut SharedRules,
        changes: &[RuleChange],
    ) -> Result<(), RuleChangeError> {
        let mut news = self.ask(store, shared, changes).await;
        if matches!(news, Err(RuleChangeError::Lost)) {
            self.restore(store, shared).await?;
            news = self.ask(store, shared, changes).await;
        }
        if !self.learn(shared, news?) {
            let news = self.ask(store, shared, &[]).await?;
            self.learn(shared, news);
        }
        Ok(())
    }

    async fn ask(
        &self,
        store: &SharedStore,
        shared: &mut SharedRules,
        changes: &[RuleChange],
    ) -> Result<RuleNews, RuleChangeError> {
        let now = self.engine.now();
        let date = self.engine.date(now);
        let wants_all = shared.wants_all || shared.is_out_of_step(date, now.mono);
        // A process whose counts this one took over may have made less than this one has heard of.
        shared.times_set = self.engine.times_changes_were_set();
        let (known, heard) = (&shared.version, self.engine.heard_changes());
        shared.asked_behind = heard < known.number();
        let told = heard.max(self.engine.bans().heard());
        let question = RulesQuestion { known, wants_all, changes, date, told, done: heard };
        store.exchange_rules(question).await
    }

    /// Tells a store that has lost its rules, or has an older state again, what this node knows.
    async fn restore(
        &self,
        store: &SharedStore,
        shared: &mut SharedRules,
    ) -> Result<(), RuleChangeError> {
        let now = self.engine.now();
        let (date, mono) = (self.engine.date(now), now.mono);
        let rules = self.engine.key_rules();
        let kept = rules.iter().filter(|rule| rule.until > shared.date_of_rules(date, mono));
        let kept = kept.map(|rule| shared.in_step(rule, date, mono));
        let ended = shared.ended.iter().map(EndedRule::told);
        let made = shared.made.iter().copied().map(RuleChange::Again);
        let known: Vec<RuleChange> = ended.chain(kept.map(RuleChange::Keep)).chain(made).collect();
        let now = self.engine.now().mono;
        let is_told = shared.loss_told.is_some_and(|at| now.saturating_sub(at) < QUIET_AFTER_LOSS);
        if !known.is_empty() && !is_told {
            let (ended, made) = (shared.ended.len(), shared.made.len());
            let kept = known.len() - ended - made;
            log::warn!(
                "the store has lost what operators have changed for keys; this node tells it again: {kept} rules, {ended} that were ended, {made} resets and unbans"
            );
            shared.loss_told = Some(now);
        }
        let known: Vec<RuleChange> = known.into_iter().chain([RuleChange::Seen]).collect();
        let news = self.ask(store, shared, &known).await?;
        self.learn(shared, news);
        Ok(())
    }

    /// Takes up a reply. Returns whether it could; otherwise this node has to ask anew.
    fn learn(&self, shared: &mut SharedRules, news: RuleNews) -> bool {
        let RuleNews { version, time, rules, once, missed_before } = news;
        let (heard, times) = (self.engine.heard_changes(), shared.times_set);
        if self.engine.times_changes_were_set() != times {
            // Meanwhile it took over what another process counted.
            return false;
        }
        if time < heard {
            // The store takes what it is told for no time: another one has told it by a wrong clock. What is made now would be
            // earlier, so this node begins anew.
            if !self.engine.drop_heard_changes(times, time) {
                return false;
            }
            shared.made.retain(|event| event.number <= time);
            shared.ended.retain(|ended| ended.at <= time);
            shared.version = RulesVersion::default();
            shared.has_answer = true;
            return false;
        }
        let is_first = !std::mem::replace(&mut shared.has_answer, true);
        shared.version = version;
        // The end of a ban is told with the rules, unless the store had lost it: then this node may have it still.
        let has_lifted = once.iter().any(|(at, event)| self.has_lifted(*at, *event));
        shared.wants_all = rules.is_none() && (has_lifted || missed_before.is_some());
        if let Some(rules) = rules {
            let now = self.engine.now();
            let date = self.engine.date(now);
            shared.date_offset = Some(date.saturating_sub(now.mono).get());
            let number = shared.version.number();
            shared.remember_ended(&self.engine.key_rules(), &rules, date, number);
            self.publish(rules);
        }
        if let Some(change) = missed_before {
            self.miss_before(change, is_first && self.counts_since(time).is_some());
        }
        let counts_since = is_first.then(|| self.counts_since(time)).flatten();
        let mut reset_keys = Vec::new();
        for (at, event) in once {
            let is_older = counts_since.is_some_and(|began| event.number < began);
            // What this process made and the one before did not, it did not make in what it took over since.
            let is_there = !shared.asked_behind || event.number <= heard;
            let is_remembered = is_there && shared.made.contains(&event);
            let is_made = at <= heard || is_older || is_remembered;
            if !is_made && !event.is_lift {
                reset_keys.push(event.key);
            }
            self.make_once(event, is_made);
            shared.remember_made(event);
        }
        // A store that has lost its changes has a lower version, until the next change.
        let heard_now = shared.version.number().max(heard);
        if !self.engine.advance_heard_changes(times, heard_now) {
            return false;
        }
        if is_first {
            // What has led to them is later than all changes. Of a key that was reset just now it may have been before that.
            self.engine.bans().vouch_unshared(heard_now, &reset_keys);
        }
        true
    }

    /// Whether this node has a ban of an operator that was lifted at this version.
    fn has_lifted(&self, at: u64, event: RuleEvent) -> bool {
        let is_lifted = |rule: &KeyRule| {
            rule.key == event.key
                && rule.ruling.is_ban()
                && rule.version.is_some_and(|made| made < at)
        };
        event.is_lift && self.engine.key_rules().iter().any(is_lifted)
    }

    fn make_alone(&self, changes: &[RuleChange]) -> Result<(), RuleChangeError> {
        // A handover comes before or after the whole change.
        let publishing = self.reloader.publishing.lock();
        if publishing.is_handed_over {
            return Err(RuleChangeError::HandedOver);
        }
        let date = self.engine.date(self.engine.now());
        let mut rules: Vec<KeyRule> =
            self.engine.key_rules().iter().filter(|rule| rule.until > date).cloned().collect();
        let mut is_changed = false;
        for change in changes {
            match change {
                RuleChange::Put(rule) | RuleChange::Keep(rule) => {
                    rules.retain(|other| !rule.replaces(other));
                    rules.push(rule.clone());
                    is_changed = true;
                }
                RuleChange::Drop { key, is_ban, .. } => {
                    rules.retain(|rule| rule.key != *key || rule.ruling.is_ban() != *is_ban);
                    is_changed = true;
                }
                // Only a shared store has other states.
                RuleChange::Gone { .. } | RuleChange::Again(_) | RuleChange::Seen => {}
                RuleChange::Reset(key) => self.forget(*key, 0),
                RuleChange::Lift(key) => {
                    let live = self.reloader.live.load_full();
                    self.engine.lift_ban(&live.generation, *key, None);
                }
            }
        }
        if rules.len() > MAX_KEY_RULES {
            return Err(RuleChangeError::Full);
        }
        if is_changed {
            self.engine.set_key_rules(rules.into());
            self.reloader.republish_under(&publishing);
        }
        Ok(())
    }

    fn publish(&self, rules: Vec<KeyRule>) {
        self.engine.set_key_rules(rules.into());
        self.reloader.republish();
    }

    /// The store does not know any more what nodes had to do before this change. `is_older`: this node has counted nothing before.
    fn miss_before(&self, change: u64, is_older: bool) {
        let heard = self.engine.heard_changes();
        if heard < change && !is_older {
            log::warn!(
                "this node was away for more changes of operators than the store keeps: it forgets what keys sent and which are banned"
            );
        }
        let live = self.reloader.live.load_full();
        self.engine.forget_before(&live.generation, change, is_older);
    }

    /// When this process began to count, by the store's time, which is `time` now; `None` if it counts on from what was counted before.
    /// Only for the first answer that a process takes up: afterwards a clock may have been set, and what is new was made since.
    fn counts_since(&self, time: u64) -> Option<u64> {
        let began = self.engine.counts_since()?;
        let age = self.engine.now().mono.saturating_sub(began).get() / MICROSECOND.get();
        Some(time.saturating_sub(age))
    }

    /// Does what all nodes do once. What this node counted is without it already if it was made (`is_made`): also by a process
    /// before, whose counts this one took over, and before this one began to count.
    fn make_once(&self, event: RuleEvent, is_made: bool) {
        let RuleEvent { number, key, is_lift } = event;
        let live = self.reloader.live.load_full();
        match (is_made, is_lift) {
            (false, false) => self.forget(key, number),
            (false, true) => self.engine.lift_ban(&live.generation, key, Some(number)),
            (true, _) => {}
        }
        // Nodes that have ended may have published what they counted before.
        for (limit, _) in live.generation.policy().indexed_limits() {
            if is_lift {
                self.engine.forget_denials_of_others(&live.generation, limit, key, number);
            } else if is_made {
                self.engine.forget_key_of_others(&live.generation, limit, key, number);
            }
        }
    }

    /// Forgets a key. Its hash covers the limit, so it is the key of one limit at most. `change`: the number of this change.
    fn forget(&self, key: KeyHash, change: u64) {
        let live = self.reloader.live.load_full();
        for (limit, _) in live.generation.policy().indexed_limits() {
            self.engine.forget_key(&live.generation, limit, key, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Ruling;

    fn rule(until: Nanos) -> KeyRule {
        KeyRule {
            limit: Arc::from("writes"),
            key: KeyHash { high: 1, low: 2 },
            ruling: Ruling::Deny,
            until,
            made_at: Nanos::ZERO,
            version: None,
            by: Arc::from("me"),
            reason: Arc::from("a test"),
        }
    }

    #[test]
    fn a_rule_keeps_its_rest_when_the_clock_is_set() {
        let hours = |hours: u64| Nanos::from_secs(hours * 3_600);
        let shared =
            SharedRules { date_offset: Some(hours(1_000).get()), ..SharedRules::default() };
        let mono = hours(5);
        for date in [hours(1_005), hours(1_029), hours(981)] {
            let told = shared.in_step(&rule(hours(1_010)), date, mono);
            assert_eq!(told.until.saturating_sub(date), hours(5), "{date:?}");
        }
        let told = SharedRules::default().in_step(&rule(hours(1_010)), hours(1_005), mono);
        assert_eq!(told.until, hours(1_010));
    }

    #[test]
    fn a_rule_ends_later_than_it_was_made_whatever_the_clocks_say() {
        for (made, at) in [(Some(9), 10), (Some(4), 7), (None, 7)] {
            let ended = KeyRule { version: made, ..rule(Nanos::from_secs(9_000)) };
            let mut shared = SharedRules::default();
            shared.remember_ended(&[ended], &[], Nanos::from_secs(1_000), 7);
            assert_eq!(shared.ended[0].at, at, "made at {made:?}");
        }
    }
}
