//! The rules that operators make for keys, as nodes share them: what a node tells the store, and what it learns.
//!
//! The store keeps all rules in one hash with a version that grows with each change, and a random mark of the latest: where
//! the store went back, or is another one, the number alone could mean other rules. A node asks a few times a second,
//! and learns everything when the version is not the one that it knows. Rules have spans here instead of dates, since
//! the clocks of nodes differ. The script is `key_rules.lua`. No request waits for this.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::failure::StoreFailure;
use super::fleet::MAX_TIME;
use super::shared_store::SharedStore;
use super::slots;
use super::transport::Readiness;
use crate::clock::Nanos;
use crate::limit::{MICROSECOND, Rate};
use crate::policy::{KeyHash, KeyRule, Ruling};

/// The script that keeps the rules.
const SCRIPT: &str = concat!(include_str!("common.lua"), include_str!("key_rules.lua"));

/// The script that deletes cells.
const DELETE: &str = "for n = 1, #KEYS do redis.call('DEL', KEYS[n]) end return {}";

/// The longest time that a reply may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The hash tag of the rules: that of the bans, since lifting a ban changes both.
const HASH_TAG: &str = "bans";

/// The largest number of rules of a deployment. A reload builds an index of them all, and a reply of the store has them
/// all.
pub const MAX_KEY_RULES: usize = 1_000;

/// A change that a node tells the store.
#[derive(Clone, Debug)]
pub enum RuleChange {
    /// Adds a rule, or replaces the one for the same key. The store says when it was made.
    Put(KeyRule),
    /// Adds a rule, or replaces one that was made before it: after the store has lost its rules.
    Keep(KeyRule),
    /// Removes a rule that was made before this date: after the store has found older rules again.
    Gone {
        /// The key.
        key: KeyHash,
        /// Whether it is the ban.
        is_ban: bool,
        /// The version at which it was ended, at the latest.
        at: u64,
    },
    /// Ends the ban or the override of a key.
    Drop {
        /// The key.
        key: KeyHash,
        /// Whether it is the ban.
        is_ban: bool,
        /// Whether this node knows the rule. Otherwise the key may have none.
        is_known: bool,
    },
    /// All nodes forget what the key has spent.
    Reset(KeyHash),
    /// All nodes lift the ban that a penalty gave the key.
    Lift(KeyHash),
    /// A reset or a lift that this node has made: after the store has lost its changes.
    Again(RuleEvent),
    /// Nothing, but the version of the store exceeds the one that this node knows: after the store has lost its changes.
    Seen,
}

/// A state of the rules in the history of a store. A store that is restored, or another one, has another history, in which
/// the same number may stand for other rules; the mark tells them apart. The default is before every change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesVersion {
    number: u64,
    mark: String,
}

impl RulesVersion {
    /// The time of the change that led to it, in microseconds by the store: higher than that of all changes before.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// What a node asks the store.
#[derive(Clone, Copy, Debug)]
pub struct RulesQuestion<'q> {
    /// What the node knows.
    pub known: &'q RulesVersion,
    /// Whether it wants all rules, also if it knows this version: their ends, by a clock that was set, or after a lift of a ban that it
    /// has still.
    pub wants_all: bool,
    /// What it changes.
    pub changes: &'q [RuleChange],
    /// Its date, from which rules have their ends.
    pub date: Nanos,
    /// The latest time that a store has told it, in microseconds.
    pub told: u64,
    /// The change up to which it has done what nodes do once, if that is less than it knows.
    pub done: u64,
}

/// What the store tells a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleNews {
    /// The version of the rules.
    pub version: RulesVersion,
    /// The store's time, in microseconds. Whatever a store has told of is earlier, unless its clock was wrong.
    pub time: u64,
    /// All rules; `None`: they have not changed.
    pub rules: Option<Vec<KeyRule>>,
    /// What this node has to do once, in order, and the version at which the store heard of it.
    pub once: Vec<(u64, RuleEvent)>,
    /// What nodes had to do before this number is not known any more, and this node may have missed it.
    pub missed_before: Option<u64>,
}

/// What all nodes do once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleEvent {
    /// The time of the change by the store, in microseconds, and different from that of all other changes of a history.
    pub number: u64,
    /// The key.
    pub key: KeyHash,
    /// Whether the ban of the key is lifted; otherwise its spending is forgotten.
    pub is_lift: bool,
}

/// Why a change of the rules is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleChangeError {
    /// There is no room for another rule.
    #[error("{MAX_KEY_RULES} rules for keys are in force, which is the most; end some of them")]
    Full,
    /// The store has lost the rules that this node knows. It has to be told them again before anything else is changed.
    #[error("the store has lost its rules")]
    Lost,
    /// Another program has written into the rules.
    #[error(
        "the store has thousands of rules that no node wrote; delete the key PREFIX:{{bans}}:rules, and the nodes tell theirs again"
    )]
    Foreign,
    /// Another process counts now.
    #[error("a successor has taken over from this process; ask again, and it answers")]
    HandedOver,
    /// The store failed.
    #[error("{}", .0.words())]
    Store(StoreFailure),
}

impl From<StoreFailure> for RuleChangeError {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

/// A cell in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellAddress {
    /// The key of the cell.
    pub key: KeyHash,
    /// The key of its family.
    pub family: Option<KeyHash>,
}

impl SharedStore {
    /// Whether the server that keeps the rules answers, as far as is known.
    pub fn keeps_rules(&self) -> bool {
        self.batcher().transport.readiness(self.rules_slot()) != Readiness::Away
    }

    fn rules_slot(&self) -> u16 {
        if self.batcher().has_slots { slots::hash_slot(HASH_TAG.as_bytes()) } else { 0 }
    }

    /// Tells the store of changes, if there are any, and asks what has changed.
    ///
    /// # Errors
    /// [`RuleChangeError`]. After a failure that [may have charged](StoreFailure::may_have_charged), the changes may have
    /// been made.
    pub async fn exchange_rules(
        &self,
        question: RulesQuestion<'_>,
    ) -> Result<RuleNews, RuleChangeError> {
        let RulesQuestion { known, wants_all, changes, date, told, done } = question;
        // It only has to differ from the marks of other changes.
        let mark = format!("{:016x}", fastrand::u64(..));
        let all = if wants_all { "all" } else { "-" };
        let (known, known_mark) = (known.number.to_string(), known.mark.clone());
        let (told, done) = (told.to_string(), done.to_string());
        let mut arguments = vec![known, known_mark, mark, all.to_owned(), told, done];
        changes.iter().for_each(|change| change.write(&mut arguments, date));
        let batcher = self.batcher();
        let names = ["rules", "changes", "at", "of", "over", "time"];
        let keys = names.map(|name| format!("{}:{{{HASH_TAG}}}:{name}", batcher.prefix));
        let slot = self.rules_slot();
        let reply = batcher.transport.evaluate(slot, SCRIPT, &keys, &arguments, TIMEOUT).await?;
        match reply.first().map(String::as_str) {
            Some("full") => return Err(RuleChangeError::Full),
            Some("lost") => return Err(RuleChangeError::Lost),
            Some("foreign") => return Err(RuleChangeError::Foreign),
            _ => {}
        }
        parse_news(&reply, question).ok_or(RuleChangeError::Store(StoreFailure::Invalid))
    }

    /// Deletes cells, so that their keys have spent nothing.
    ///
    /// # Errors
    /// The store did not answer for one of them. Others may have been deleted.
    pub async fn delete(&self, cells: &[CellAddress]) -> Result<(), StoreFailure> {
        let batcher = self.batcher();
        for CellAddress { key, family } in cells {
            let name = super::cell_name::CellName { key: *key, family: *family };
            let slot = batcher.slot(name);
            let key = name.redis_key(&batcher.prefix, batcher.has_slots);
            batcher.transport.evaluate(slot, DELETE, &[key], &[], TIMEOUT).await?;
        }
        Ok(())
    }

    /// Forgets what this node keeps of a key: cached denials, and usage that the store was not told of.
    pub fn forget(&self, key: KeyHash) {
        self.forget_denials(key);
        self.batcher().unreported.forget(key);
    }
}

impl RuleChange {
    fn write(&self, arguments: &mut Vec<String>, date: Nanos) {
        let mut push = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).into()));
        match self {
            Self::Put(rule) | Self::Keep(rule) => {
                let span = rule.until.saturating_sub(date).get() / MICROSECOND.get();
                let (field, span) = (field(rule.key, rule.ruling.is_ban()), span.to_string());
                let date = rule.made_at.get() / MICROSECOND.get();
                let made = rule.version.unwrap_or(date).to_string();
                match self {
                    Self::Put(_) => push(&["put", &field, &span, &text_of(rule)]),
                    _ => push(&["keep", &field, &span, &made, &text_of(rule)]),
                }
            }
            Self::Gone { key, is_ban, at } => {
                push(&["gone", &field(*key, *is_ban), &at.to_string()]);
            }
            Self::Drop { key, is_ban, is_known } => {
                let known = if *is_known { "known" } else { "-" };
                push(&["drop", &field(*key, *is_ban), known]);
            }
            Self::Reset(key) => push(&["reset", &key.to_string()]),
            Self::Lift(key) => push(&["lift", &key.to_string()]),
            Self::Again(RuleEvent { number, key, is_lift }) => {
                let word = if *is_lift { "lift" } else { "reset" };
                push(&["again", &number.to_string(), word, &key.to_string()]);
            }
            Self::Seen => push(&["seen"]),
        }
    }
}

/// The field of a rule. The hash of a key covers the limit.
fn field(key: KeyHash, is_ban: bool) -> String {
    format!("{}{key}", if is_ban { 'b' } else { 'o' })
}

/// A rule as the store keeps it, without its end.
fn text_of(rule: &KeyRule) -> String {
    let ruling = match rule.ruling {
        Ruling::Ban => json!("ban"),
        Ruling::Allow => json!("allow"),
        Ruling::Deny => json!("deny"),
        Ruling::Rate { rate, burst } => {
            json!({ "count": rate.count(), "period_ns": rate.period().get(), "burst": burst })
        }
    };
    let (limit, by, reason) = (&*rule.limit, &*rule.by, &*rule.reason);
    let text = json!({ "limit": limit, "ruling": ruling, "by": by, "reason": reason }).to_string();
    // In ASCII, so that the script can leave out what is no text.
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii() {
            true => ascii.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }),
        }
    }
    ascii
}

/// Reads a rule: its field, the rest of its span and when it was made, in microseconds, and its text. `date` and `time`: now by this
/// node and by the store. `None`: another program wrote it, or a version of this one that knows more.
fn rule_of([field, left, made, text]: [&str; 4], date: Nanos, time: u64) -> Option<KeyRule> {
    let key = field.get(1..)?.parse().ok()?;
    let value: Value = serde_json::from_str(text).ok()?;
    let (left, made): (u64, u64) = (left.parse().ok()?, made.parse().ok()?);
    let age = MICROSECOND.saturating_mul(time.saturating_sub(made));
    let words = |name: &str| {
        let words = value[name].as_str()?;
        // It is written to logs.
        (!words.chars().any(char::is_control)).then(|| Arc::from(words))
    };
    let ruling = match &value["ruling"] {
        Value::String(word) => match &**word {
            "ban" => Ruling::Ban,
            "allow" => Ruling::Allow,
            "deny" => Ruling::Deny,
            _ => return None,
        },
        rate => {
            let number = |name: &str| u32::try_from(rate[name].as_u64()?).ok();
            let period = Nanos::new(rate["period_ns"].as_u64()?);
            Ruling::Rate { rate: Rate::new(number("count")?, period).ok()?, burst: number("burst") }
        }
    };
    Some(KeyRule {
        limit: words("limit")?,
        key,
        ruling,
        until: date.saturating_add(MICROSECOND.saturating_mul(left)),
        // By this node's clock, as the dates that it is compared with.
        made_at: date.saturating_sub(age),
        version: Some(made),
        by: words("by")?,
        reason: words("reason")?,
    })
}

/// Reads a reply. `None`: no store gives it. Rules and events that no node has written are left out.
fn parse_news(reply: &[String], question: RulesQuestion<'_>) -> Option<RuleNews> {
    let date = question.date;
    let mut words = reply.iter().map(String::as_str);
    let version_number: u64 = words.next()?.parse().ok().filter(|at| *at <= MAX_TIME)?;
    let version = RulesVersion { number: version_number, mark: words.next()?.to_owned() };
    let time = words.next()?.parse().ok().filter(|at| *at <= MAX_TIME)?;
    let mut news = RuleNews { version, time, ..RuleNews::default() };
    while let Some(word) = words.next() {
        match word {
            "rules" => news.rules = Some(Vec::new()),
            "rule" => {
                let rule = [words.next()?, words.next()?, words.next()?, words.next()?];
                news.rules.as_mut()?.extend(rule_of(rule, date, time));
            }
            "do" => {
                let at = words.next()?.parse().ok().filter(|at| *at <= version_number)?;
                let event = [words.next()?, words.next()?, words.next()?];
                let event = event_of(event).filter(|event| event.number <= at);
                news.once.extend(event.map(|event| (at, event)));
            }
            "missed" => {
                let before = words.next()?.parse().ok().filter(|at| *at <= version_number)?;
                news.missed_before = Some(before);
            }
            _ => return None,
        }
    }
    Some(news)
}

/// `None`: another program wrote it.
fn event_of([number, word, key]: [&str; 3]) -> Option<RuleEvent> {
    let is_lift = match word {
        "reset" => false,
        "lift" => true,
        _ => return None,
    };
    Some(RuleEvent { number: number.parse().ok()?, key: key.parse().ok()?, is_lift })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(ruling: Ruling) -> KeyRule {
        KeyRule {
            limit: Arc::from("writes"),
            key: KeyHash { high: 1, low: 2 },
            ruling,
            until: Nanos::from_secs(1_060),
            made_at: Nanos::from_secs(999),
            version: Some(1_800_000_000_000_000),
            by: Arc::from("o'brien"),
            reason: Arc::from("a \"launch\" \u{1f680}"),
        }
    }

    fn known() -> RulesVersion {
        RulesVersion { number: 7, mark: "k".to_owned() }
    }

    const KEY: &str = "0000000000000001000000000000005f";

    fn question(known: &RulesVersion, date: Nanos) -> RulesQuestion<'_> {
        RulesQuestion { known, wants_all: false, changes: &[], date, told: 0, done: 0 }
    }

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let date = Nanos::from_secs(1_000);
        let rate = Rate::new(600, Nanos::from_secs(60)).unwrap();
        for ruling in [
            Ruling::Ban,
            Ruling::Allow,
            Ruling::Deny,
            Ruling::Rate { rate, burst: None },
            Ruling::Rate { rate, burst: Some(7) },
        ] {
            let written = rule(ruling);
            let mut words = Vec::new();
            RuleChange::Put(written.clone()).write(&mut words, date);
            RuleChange::Keep(written.clone()).write(&mut words, date);
            let (put, keep) = words.split_at(4);
            let [put, field, span, text] = put else { panic!("{words:?}") };
            // The store's clock is not this node's.
            let (made, now) = ("1800000000000000", "1800000001000000");
            assert_eq!((&**put, &**span), ("put", "60000000"));
            assert_eq!(keep, ["keep", field, span, made, text]);
            let reply = ["8", "m", now, "rules", "rule", field, span, made, text];
            let read = parse_news(&reply.map(str::to_owned), question(&known(), date)).unwrap();
            assert_eq!(read.rules, Some(vec![written]));
        }
    }

    #[test]
    fn a_reply_that_makes_no_sense_is_refused_or_read_as_far_as_it_does() {
        let date = Nanos::from_secs(1_000);
        let news = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            parse_news(&words, question(&known(), date))
        };
        for words in [
            &[][..],
            &["x", "m", "9"],
            &["8"],
            &["8", "m"],
            &["8", "m", "9", "rules", "rule", "b1"],
            &["8", "m", "9", "rule", "o1", "5", "1", "{}"],
            &["8", "m", "9", "do", "8", "8", "reset"],
            &["8", "m", "9", "do", "9", "8", "reset", KEY],
            &["8", "m", "9", "missed", "9"],
            &["8", "m", "9", "?"],
            &["18446744073709551614", "m", "9"],
            &["8", "m", "18446744073709551614"],
        ] {
            assert_eq!(news(words), None, "{words:?}");
        }
        // Rules and events that this version does not know are left out.
        let words =
            ["8", "m", "9", "rules", "rule", "o1", "5", "1", "{}", "rule", "", "5", "1", "x"];
        let read = news(&words).unwrap();
        assert_eq!(read.rules, Some(Vec::new()));
        assert_eq!(news(&["7", "k", "9"]).unwrap().rules, None);
        for event in [
            ["8", "reset", "xyz"],
            ["x", "reset", KEY],
            ["8", "forget", KEY],
            ["9", "reset", KEY],
            ["99999999999999999999", "lift", KEY],
        ] {
            let words = [&["8", "m", "9", "do", "8"][..], &event].concat();
            assert_eq!(news(&words).unwrap().once, [], "{event:?}");
        }
        let read = news(&["8", "m", "9", "do", "8", "7", "lift", KEY]).unwrap();
        let event = RuleEvent { number: 7, key: KEY.parse().unwrap(), is_lift: true };
        assert_eq!((read.once, read.time), (vec![(8, event)], 9));
    }
}
