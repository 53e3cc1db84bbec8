//! The script that shares bans, on a clock that is turned by hand: bans end when they should, and every node hears of them,
//! also when the clock of the store is set back.

use support::lua::{Kept, Server, SortedSet};

const SCRIPT: &str = concat!(
    include_str!("../../src/store/redis/common.lua"),
    include_str!("../../src/store/redis/bans.lua")
);
const RULES: &str = concat!(
    include_str!("../../src/store/redis/common.lua"),
    include_str!("../../src/store/redis/key_rules.lua")
);

const BEGIN: u64 = 1_800_000_000_000_000;
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// A ban as the store tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    key: String,
    reported_at: u64,
    /// Microseconds; negative: it has ended.
    left: i64,
}

struct Store {
    lua: Server,
    now: u64,
}

/// A node that remembers what it was told.
struct Node {
    since: String,
    /// The number of the latest change of operators that it had made before its bans.
    made_changes: u64,
}

impl Store {
    fn new() -> Self {
        Self { lua: Server::new(), now: BEGIN }
    }

    fn pass(&mut self, span: u64) {
        self.now += span;
    }

    fn set_back(&mut self, span: u64) {
        self.now -= span;
    }

    /// Lifts the ban of a key, as an operator does. Returns the number of the change.
    fn lift(&self, key: &str) -> u64 {
        self.change("lift", key)
    }

    fn change(&self, word: &str, key: &str) -> u64 {
        self.lua.set_time(self.now);
        let words = ["0", "", "a2", "-", "0", "0", word, key].map(str::to_owned);
        let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
        self.lua.evaluate(RULES, &keys, &words).unwrap()[0].parse().unwrap()
    }
}

impl Node {
    fn new() -> Self {
        Self { since: "0".to_owned(), made_changes: 0 }
    }

    /// Reports bans of a minute that were made just now.
    fn exchange(&mut self, store: &Store, banned: &[&str]) -> Vec<Told> {
        self.report(store, banned, 0)
    }

    /// Reports bans of a minute that were made `age` microseconds ago.
    fn report(&mut self, store: &Store, banned: &[&str], age: u64) -> Vec<Told> {
        store.lua.set_time(store.now);
        let minute = (60 * SECOND).to_string();
        let mut words = vec![self.since.clone()];
        for key in banned {
            let made = self.made_changes.to_string();
            let ban = [key, &*minute, &*minute, &*minute, &*minute, &*age.to_string(), &*made];
            words.extend(ban.map(str::to_owned));
        }
        let keys = ["at", "of", "over", "time"].map(str::to_owned);
        let mut reply = store.lua.evaluate(SCRIPT, &keys, &words).unwrap().into_iter();
        self.since = reply.next().unwrap();
        let rest: Vec<String> = reply.collect();
        let told = |words: &[String]| Told {
            key: words[0].clone(),
            reported_at: words[1].parse().unwrap(),
            left: words[2].parse().unwrap(),
        };
        rest.chunks(3).map(told).collect()
    }
}

#[test]
fn a_ban_ends_after_its_time_also_when_the_clock_is_set_back() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let first = maker.exchange(&store, &["a1"]);
    assert_eq!(first, [Told { key: "a1".to_owned(), reported_at: BEGIN, left: 60_000_000 }]);
    for back in [0, HOUR, 0, 2 * HOUR] {
        store.set_back(back);
        store.pass(10 * SECOND);
        let _told = other.exchange(&store, &[]);
    }
    // The node that was told last says how the time went on: each time that the clock was set back, it stood still until then.
    let told = Node::new().exchange(&store, &[]);
    assert_eq!((told.len(), told[0].left), (1, 40_000_000));
    for _ in 0..4 {
        store.pass(10 * SECOND);
        let _told = other.exchange(&store, &[]);
    }
    assert_eq!(Node::new().exchange(&store, &[])[0].left, 0, "it has ended");
    store.set_back(HOUR);
    assert_eq!(Node::new().exchange(&store, &[])[0].left, 0, "and does not begin anew");
}

#[test]
fn a_ban_is_told_to_nodes_that_asked_before_the_clock_was_set_back() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let first = maker.exchange(&store, &["a1"]);
    store.pass(1);
    assert_eq!(
        other.exchange(&store, &[]),
        [Told { key: "a1".to_owned(), reported_at: BEGIN, left: 59_999_999 }]
    );
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]), []);
    store.set_back(HOUR);
    let second = maker.exchange(&store, &["a2"]);
    store.pass(1);
    let told = other.exchange(&store, &[]);
    assert!(told.iter().any(|ban| ban.key == "a2"), "{told:?}");
    let made = second.iter().find(|ban| ban.key == "a2").unwrap();
    assert!(made.reported_at > first[0].reported_at, "later bans have later times");
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]), [], "each is told once");
}

#[test]
fn a_store_that_has_lost_its_times_tells_everything_again() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let _told = (maker.exchange(&store, &["a1"]), other.exchange(&store, &[]));
    store.lua.empty();
    store.set_back(30 * SECOND);
    // A node that knows nothing reports a ban, before one asks that was told a later time.
    let made = Node::new().exchange(&store, &["a2"]);
    assert_eq!(made.len(), 1);
    let told = other.exchange(&store, &[]);
    assert_eq!((told.len(), told[0].key.as_str()), (1, "a2"));
    // From then on times are later than all that were told.
    let later = maker.exchange(&store, &["a3"]);
    let n = later.iter().find(|ban| ban.key == "a3").unwrap();
    assert!(n.reported_at >= BEGIN, "{later:?}");
}

#[test]
fn a_ban_that_was_made_before_its_lift_does_not_come_back_by_a_late_report() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    // It was made a second ago.
    let _told = maker.exchange(&store, &["a1"]);
    store.pass(SECOND);
    let lifted = store.lift("a1");
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]), []);
    for (key, age, ends) in [("a1", 2 * SECOND + 1, true), ("a1", 0, false)] {
        store.pass(SECOND);
        other.made_changes = lifted;
        let told = other.report(&store, &[key], age);
        assert_eq!((told.len(), told[0].left < 0), (1, ends), "{told:?}");
    }
}

#[test]
fn a_time_that_another_program_wrote_ends_no_ban() {
    for text in
        ["99999999999999999999 0", "1800000000000000 999999999999999", "x", "9000000000000000 5"]
    {
        let (store, mut maker) = (Store::new(), Node::new());
        store.lua.put("time", Kept::Text(text.to_owned()));
        let told = maker.exchange(&store, &["a1"]);
        assert_eq!((told.len(), told[0].left), (1, 60_000_000), "{text}");
        assert!(told[0].reported_at < BEGIN + HOUR, "{text}");
    }
}

#[test]
fn what_another_program_wrote_hides_no_ban() {
    let (store, mut maker) = (Store::new(), Node::new());
    let foreign = ["not a key", "\u{1}", "0123456789abcdef0123456789abcdef0"];
    let mut at = SortedSet::default();
    let mut of = std::collections::BTreeMap::new();
    for (n, key) in (0_u32..).zip(foreign) {
        at.add(key, f64::from(n));
        of.insert(key.to_owned(), "1 2000000000000000 1".to_owned());
    }
    // Later than the time of the store.
    at.add("a9", 9e15);
    of.insert("a9".to_owned(), "1 2000000000000000 1".to_owned());
    store.lua.put("at", Kept::SortedSet(at));
    store.lua.put("of", Kept::Hash(of));
    store.lua.put("over", Kept::Text("a string".to_owned()));
    for _ in 0..2 {
        let told = maker.exchange(&store, &["a1"]);
        assert_eq!((told.len(), told[0].left), (1, 60_000_000), "{told:?}");
    }
}

#[test]
fn more_bans_of_one_microsecond_than_a_reply_has_stop_nobody() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let keys: Vec<String> = (0..300).map(|n| format!("{n:x}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let _told = maker.exchange(&store, &keys);
    store.pass(SECOND);
    let _told = maker.exchange(&store, &["a1ffff"]);
    for _ in 0..4 {
        store.pass(1);
        let told = other.exchange(&store, &[]);
        if told.iter().any(|ban| ban.key == "a1ffff") {
            return;
        }
    }
    panic!("the ban behind them was not told");
}

#[test]
fn denials_that_were_forgiven_make_no_ban() {
    for word in ["reset", "lift"] {
        let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
        let change = store.change(word, "a1");
        store.pass(SECOND / 10);
        // It has not heard of the change yet.
        let told = maker.exchange(&store, &["a1"]);
        assert!(told.len() == 1 && told[0].left <= 0, "{word}: {told:?}");
        assert!(other.exchange(&store, &[]).iter().all(|ban| ban.left <= 0), "{word}");
        store.pass(SECOND);
        maker.made_changes = change;
        assert_eq!(
            maker.exchange(&store, &["a1"])[0].left,
            60_000_000,
            "{word}: it is another one"
        );
    }
}

#[test]
fn a_reset_leaves_a_ban_that_was_made_before_and_its_level() {
    let (mut store, mut maker) = (Store::new(), Node::new());
    let _first = maker.exchange(&store, &["a1"]);
    store.pass(SECOND);
    maker.made_changes = store.change("reset", "a1");
    assert_eq!(Node::new().exchange(&store, &[])[0].left, 59_000_000);
    let Some((Kept::Hash(bans), _)) = store.lua.get("of") else { panic!("no bans") };
    assert!(bans["a1"].starts_with("1 "), "{bans:?}");
}

#[test]
fn a_ban_keeps_its_length_when_a_clock_that_was_far_ahead_is_set_right() {
    let (mut store, mut maker) = (Store::new(), Node::new());
    store.pass(40 * 24 * HOUR);
    let _first = maker.exchange(&store, &["a1"]);
    store.set_back(40 * 24 * HOUR);
    store.pass(61 * SECOND);
    let _told = maker.exchange(&store, &[]);
    store.pass(61 * SECOND);
    let told = maker.exchange(&store, &["a1"]);
    assert_eq!(told.iter().map(|ban| ban.left).max(), Some(60_000_000), "{told:?}");
}

#[test]
fn a_ban_of_centuries_that_another_program_wrote_is_none() {
    let (store, mut node) = (Store::new(), Node::new());
    let put = |key: &str, kept| store.lua.put(key, kept);
    let till = BEGIN + 900_000_000 * SECOND;
    put("of", Kept::Hash([("a1".to_owned(), format!("1 {till} 6 0"))].into()));
    let mut at = SortedSet::default();
    at.add("a1", BEGIN as f64);
    // A time that no server can keep a key for.
    let mut over = SortedSet::default();
    over.add("ff", f64::INFINITY);
    put("at", Kept::SortedSet(at));
    put("over", Kept::SortedSet(over));
    let told = node.exchange(&store, &["a2"]);
    assert!(told.len() == 1 && told[0].key == "a2", "{told:?}");
}

#[test]
fn keys_without_a_ban_delay_no_ban() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let mut at = SortedSet::default();
    (0..900).for_each(|n| {
        at.add(&format!("{n:x}"), (BEGIN - SECOND + n) as f64);
    });
    store.lua.put("at", Kept::SortedSet(at));
    let _told = maker.exchange(&store, &["abc1"]);
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]).len(), 1);
}

#[test]
fn a_ban_that_does_not_count_is_told_to_its_maker_alone() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    assert!(other.exchange(&store, &[]).is_empty());
    let _change = store.change("reset", "a1");
    store.pass(SECOND / 10);
    assert!(maker.exchange(&store, &["a1"])[0].left <= 0);
    assert!(other.exchange(&store, &[]).is_empty(), "its denials are all good");
}

/// A lift that is told again ends the bans from before it, and none that was made since and is told later.
#[test]
fn a_lift_that_is_told_again_ends_no_later_ban() {
    let (mut store, mut maker) = (Store::new(), Node::new());
    maker.made_changes = store.lift("a1");
    let number = maker.made_changes.to_string();
    store.lua.empty();
    store.pass(HOUR);
    store.lua.set_time(store.now);
    let words = ["0", "", "a3", "-", "0", "0", "again", &*number, "lift", "a1"].map(str::to_owned);
    let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
    let _told = store.lua.evaluate(RULES, &keys, &words).unwrap();
    let told = maker.report(&store, &["a1"], 10 * SECOND);
    assert_eq!(told[0].left, 50_000_000, "it began ten seconds ago");
}

#[test]
fn what_a_wrong_clock_wrote_forgives_nothing_later() {
    let (mut store, mut maker) = (Store::new(), Node::new());
    let far = BEGIN + 25 * 366 * 24 * HOUR;
    store.lua.put("of", Kept::Hash([("a1".to_owned(), format!("0 0 1 {far}"))].into()));
    let mut over = SortedSet::default();
    over.add("a1", far as f64);
    store.lua.put("over", Kept::SortedSet(over));
    store.pass(SECOND);
    assert_eq!(maker.exchange(&store, &["a1"])[0].left, 60_000_000);
}
