//! The script that shares bans, on a clock that is turned by hand: bans end when they should, and every node hears of them,
//! also when the clock of the store is set back.

use support::lua::Server;

const SCRIPT: &str = include_str!("../../src/store/redis/bans.lua");

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
}

impl Node {
    fn new() -> Self {
        Self { since: "0".to_owned() }
    }

    /// Reports bans of a minute that were made just now.
    fn exchange(&mut self, store: &Store, banned: &[&str]) -> Vec<Told> {
        store.lua.set_time(store.now);
        let minute = (60 * SECOND).to_string();
        let mut words = vec![self.since.clone()];
        for key in banned {
            let ban = [key, &*minute, &*minute, &*minute, &*minute, "0"];
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
    let first = maker.exchange(&store, &["k"]);
    assert_eq!(first, [Told { key: "k".to_owned(), reported_at: BEGIN, left: 60_000_000 }]);
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
    let first = maker.exchange(&store, &["k"]);
    store.pass(1);
    assert_eq!(
        other.exchange(&store, &[]),
        [Told { key: "k".to_owned(), reported_at: BEGIN, left: 59_999_999 }]
    );
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]), []);
    store.set_back(HOUR);
    let second = maker.exchange(&store, &["m"]);
    store.pass(1);
    let told = other.exchange(&store, &[]);
    assert!(told.iter().any(|ban| ban.key == "m"), "{told:?}");
    let made = second.iter().find(|ban| ban.key == "m").unwrap();
    assert!(made.reported_at > first[0].reported_at, "later bans have later times");
    store.pass(SECOND);
    assert_eq!(other.exchange(&store, &[]), [], "each is told once");
}

#[test]
fn a_store_that_has_lost_its_times_tells_everything_again() {
    let (mut store, mut maker, mut other) = (Store::new(), Node::new(), Node::new());
    let _told = (maker.exchange(&store, &["k"]), other.exchange(&store, &[]));
    store.lua.empty();
    store.set_back(HOUR);
    let made = maker.exchange(&store, &["m"]);
    assert_eq!(other.exchange(&store, &[]), made);
    assert_eq!(made.len(), 1);
}

#[test]
fn a_time_that_another_program_wrote_ends_no_ban() {
    for text in
        ["99999999999999999999 0", "1800000000000000 99999999999999", "x", "9000000000000000 5"]
    {
        let (store, mut maker) = (Store::new(), Node::new());
        store.lua.put("time", support::lua::Kept::Text(text.to_owned()));
        let told = maker.exchange(&store, &["k"]);
        assert_eq!((told.len(), told[0].left), (1, 60_000_000), "{text}");
        assert!(told[0].reported_at < BEGIN + HOUR, "{text}");
    }
}
