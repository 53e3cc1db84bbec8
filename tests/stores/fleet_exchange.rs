//! What nodes of a fleet tell each other through the store: the same cases over the script in an interpreter, whose time is
//! virtual, and over a real server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Nanos, SystemClock};
use tollgate::store::redis::{
    Address, FleetChunk, FleetCursor, FleetNews, FleetQuestion, Login, MAX_FLEET_CHUNKS,
    MAX_FLEET_TEXT, ServerDiscovery, SharedStore, StoreFailure, StoreSettings,
};

use crate::engines::one;
use crate::redis_servers::{Cluster, Redis, Watched};
use crate::virtual_store::{Plan, VirtualStore};
use support::lua::{Kept, SortedSet};

const SCRIPT: &str = include_str!("../../src/store/redis/fleet.lua");

/// A lifetime that does not end during a test.
const LONG: Duration = Duration::from_secs(3_600);

const LIVENESS: Duration = Duration::from_secs(2);

const TIMEOUT: Duration = Duration::from_secs(5);

/// The keys that the script keeps.
const KEYS: [&str; 5] =
    ["t:{fleet}:nodes", "t:{fleet}:order", "t:{fleet}:texts", "t:{fleet}:ends", "t:{fleet}:state"];

enum Server {
    Interpreter(Arc<VirtualStore>),
    Real(Redis),
}

/// A store, and the server behind it.
struct Subject {
    store: Arc<SharedStore>,
    server: Server,
}

impl Subject {
    fn interpreter() -> Self {
        let (server, store) = VirtualStore::start(Duration::ZERO, TIMEOUT);
        Self { store, server: Server::Interpreter(server) }
    }

    async fn real() -> Self {
        let redis = Redis::start(&[]).await;
        Self { store: real_store(one(redis.port)).await, server: Server::Real(redis) }
    }

    /// Runs the script with other words than a node sends.
    async fn run(&self, words: &[&str]) -> Vec<String> {
        match &self.server {
            Server::Interpreter(server) => {
                let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
                let lua = server.lua.lock();
                lua.set_time(server.clock.now().wall.get() / 1_000);
                lua.evaluate(SCRIPT, &KEYS.map(str::to_owned), &words).unwrap()
            }
            Server::Real(redis) => redis.ask(&[&["EVAL", SCRIPT, "5"], &KEYS[..], words].concat()),
        }
    }

    fn empty(&self) {
        match &self.server {
            Server::Interpreter(server) => server.lua.lock().empty(),
            Server::Real(redis) => redis.ask(&["FLUSHALL"]),
        }
    }

    fn forget(&self, key: &str) {
        match &self.server {
            Server::Interpreter(server) => server.lua.lock().forget(key),
            Server::Real(redis) => redis.ask(&["DEL", key]),
        }
    }

    /// How many chunks it keeps, those included that have ended.
    fn kept(&self) -> usize {
        match &self.server {
            Server::Interpreter(server) => match server.lua.lock().get(KEYS[2]) {
                Some((Kept::Hash(texts), _)) => texts.len(),
                other => other.map_or(0, |other| panic!("{other:?}")),
            },
            Server::Real(redis) => redis.ask(&["HLEN", KEYS[2]]),
        }
    }

    /// Another program writes a text where a key of the script is.
    fn spoil(&self, key: &str) {
        match &self.server {
            Server::Interpreter(server) => server.lua.lock().put(key, Kept::Text("x".to_owned())),
            Server::Real(redis) => redis.ask(&["SET", key, "x"]),
        }
    }

    fn copy(&self, from: &str, to: &str) {
        match &self.server {
            Server::Interpreter(server) => {
                let lua = server.lua.lock();
                lua.put(to, lua.get(from).unwrap().0);
            }
            Server::Real(redis) => assert_eq!(redis.ask::<u8>(&["COPY", from, to, "REPLACE"]), 1),
        }
    }

    fn save(&self) {
        KEYS.iter().for_each(|key| self.copy(key, &format!("saved:{key}")));
    }

    /// The store goes back to what was saved.
    fn restore(&self) {
        KEYS.iter().for_each(|key| self.copy(&format!("saved:{key}"), key));
    }
}

/// A store of real servers, which answers.
pub async fn real_store(servers: ServerDiscovery) -> Arc<SharedStore> {
    let settings = StoreSettings {
        servers,
        login: Login::default(),
        tls: None,
        timeout: TIMEOUT,
        prefix: "t".to_owned(),
    };
    let store = SharedStore::start(settings, Arc::new(SystemClock::new()));
    assert!(store.wait_until_up(Duration::from_secs(10)).await, "the store does not answer");
    store
}

/// A node, and what it asks for.
struct Node {
    id: u64,
    cursor: FleetCursor,
    lifetime: Duration,
    liveness: Duration,
    max_bytes: usize,
    leaves: bool,
}

impl Node {
    fn new(id: u64) -> Self {
        let cursor = FleetCursor::default();
        Self { id, cursor, lifetime: LONG, liveness: LIVENESS, max_bytes: 1 << 20, leaves: false }
    }

    async fn try_exchange(
        &mut self,
        store: &SharedStore,
        chunks: &[(u16, &str)],
    ) -> Result<FleetNews, StoreFailure> {
        let lifetime = self.lifetime.into();
        let chunk =
            |&(number, text): &(u16, &str)| FleetChunk { number, text: text.to_owned(), lifetime };
        let chunks: Vec<FleetChunk> = chunks.iter().map(chunk).collect();
        let question = FleetQuestion {
            node: self.id,
            cursor: &self.cursor,
            chunks: &chunks,
            liveness: self.liveness.into(),
            max_bytes: self.max_bytes,
            leaves: self.leaves,
            timeout: TIMEOUT,
        };
        let news = store.exchange_fleet(question).await?;
        self.cursor = news.cursor.clone();
        Ok(news)
    }

    async fn exchange(&mut self, subject: &Subject, chunks: &[(u16, &str)]) -> FleetNews {
        self.try_exchange(&subject.store, chunks).await.unwrap()
    }

    /// What it reads, without writing anything.
    async fn read(&mut self, subject: &Subject) -> Vec<String> {
        texts(&self.exchange(subject, &[]).await)
    }
}

/// `node:number=text` of each chunk.
fn texts(news: &FleetNews) -> Vec<String> {
    let text = |chunk: &tollgate::store::redis::ReceivedChunk| {
        format!("{}:{}={}", chunk.node, chunk.number, chunk.text)
    };
    news.chunks.iter().map(text).collect()
}

const NOTHING: [&str; 0] = [];

async fn each_node_reads_the_chunks_of_the_others_once(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, u64::MAX].map(Node::new);
    let first = a.exchange(subject, &[(0, "x"), (65_535, "y")]).await;
    assert!(first.is_new_history && !first.has_more && first.nodes == 1, "{first:?}");
    assert_eq!(texts(&first), NOTHING);
    let second = b.exchange(subject, &[(0, "z")]).await;
    assert_eq!((second.nodes, texts(&second)), (2, vec!["1:0=x".into(), "1:65535=y".into()]));
    assert!(second.at >= first.at && second.at < first.at.saturating_add(Nanos::from_secs(60)));
    let third = c.exchange(subject, &[(7, "w")]).await;
    assert_eq!((third.nodes, texts(&third).len()), (3, 3));

    assert_eq!(a.read(subject).await, ["2:0=z", &format!("{}:7=w", u64::MAX)]);
    assert_eq!(b.read(subject).await, [format!("{}:7=w", u64::MAX)]);
    for node in [&mut a, &mut b, &mut c] {
        let again = node.exchange(subject, &[]).await;
        assert_eq!(texts(&again), NOTHING);
        assert!(!again.is_new_history && !again.has_more && again.nodes == 3, "{again:?}");
    }
    // A chunk that is written twice before it is read is read once, as it was written last.
    a.exchange(subject, &[(0, "x2"), (65_535, "y2"), (0, "x3")]).await;
    assert_eq!(b.read(subject).await, ["1:65535=y2", "1:0=x3"]);
    assert_eq!(b.read(subject).await, NOTHING);
}

async fn a_chunk_that_ends_or_is_deleted_is_gone(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, 3].map(Node::new);
    a.lifetime = Duration::from_secs(1);
    a.exchange(subject, &[(0, "short")]).await;
    a.lifetime = LONG;
    a.exchange(subject, &[(1, "long"), (2, "deleted")]).await;
    assert_eq!(b.read(subject).await, ["1:0=short", "1:1=long", "1:2=deleted"]);
    a.exchange(subject, &[(2, ""), (3, "")]).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(subject.kept(), 2);
    assert_eq!(c.read(subject).await, ["1:1=long"]);
    assert_eq!(subject.kept(), 1);
    // A lifetime of nothing is a valid one.
    a.lifetime = Duration::ZERO;
    a.exchange(subject, &[(4, "none")]).await;
    assert_eq!(c.read(subject).await, NOTHING);
}

async fn chunks_that_end_together_are_dropped_bit_by_bit_and_not_read(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, 3].map(Node::new);
    let all: Vec<(u16, &str)> = (0..MAX_FLEET_CHUNKS as u16).map(|number| (number, "x")).collect();
    for node in [&mut a, &mut b] {
        node.lifetime = Duration::from_secs(1);
        node.exchange(subject, &all).await;
    }
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for left in [MAX_FLEET_CHUNKS, 0] {
        assert_eq!(c.read(subject).await, NOTHING);
        assert_eq!(subject.kept(), left);
    }
}

async fn a_node_that_leaves_or_falls_silent_does_not_count(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, 3].map(Node::new);
    a.exchange(subject, &[(0, "stays")]).await;
    b.exchange(subject, &[]).await;
    assert_eq!(c.exchange(subject, &[]).await.nodes, 3);
    b.leaves = true;
    let left = b.exchange(subject, &[(0, "last")]).await;
    assert_eq!((left.nodes, left.is_new_history), (2, false));
    assert_eq!(c.exchange(subject, &[]).await.nodes, 2);
    tokio::time::sleep(LIVENESS + Duration::from_millis(100)).await;
    // What they wrote is still read, for its lifetime.
    let mut d = Node::new(4);
    let news = d.exchange(subject, &[]).await;
    assert_eq!((news.nodes, texts(&news)), (1, vec!["1:0=stays".into(), "2:0=last".into()]));
    // The store cannot say whether it has lost what a forgotten node wrote.
    let back = a.exchange(subject, &[]).await;
    assert_eq!((back.nodes, back.is_new_history, texts(&back)), (2, true, vec!["2:0=last".into()]));
    assert!(!a.exchange(subject, &[]).await.is_new_history);
}

async fn an_emptied_store_has_a_new_history(subject: &Subject) {
    let [mut a, mut b] = [1, 2].map(Node::new);
    a.exchange(subject, &[(0, "x"), (1, "y")]).await;
    b.exchange(subject, &[(0, "z")]).await;
    subject.empty();
    let news = b.exchange(subject, &[(0, "z")]).await;
    assert!(news.is_new_history && news.nodes == 1 && texts(&news).is_empty(), "{news:?}");
    let news = a.exchange(subject, &[(0, "x")]).await;
    assert!(news.is_new_history && texts(&news) == ["2:0=z"], "{news:?}");
    assert_eq!(b.read(subject).await, ["1:0=x"]);
    assert!(!a.exchange(subject, &[]).await.is_new_history);
}

async fn a_store_that_went_back_is_noticed_by_each_node(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, 3].map(Node::new);
    for node in [&mut a, &mut b, &mut c] {
        node.exchange(subject, &[(0, "old")]).await;
    }
    subject.save();
    tokio::time::sleep(Duration::from_millis(5)).await;
    a.exchange(subject, &[(0, "new"), (1, "new")]).await;
    b.exchange(subject, &[(0, "new")]).await;
    subject.restore();
    // Other writes have hidden that the numbers went back before the nodes ask.
    let many: Vec<(u16, &str)> = (0..10).map(|number| (number, "c")).collect();
    c.exchange(subject, &many).await;
    for node in [&mut a, &mut b] {
        let news = node.exchange(subject, &[(0, "new")]).await;
        assert!(news.is_new_history, "{news:?}");
        assert_eq!(news.chunks.iter().filter(|chunk| chunk.node == 3).count(), 10);
        assert!(!node.exchange(subject, &[]).await.is_new_history);
    }
}

async fn a_cursor_of_another_history_reads_everything(subject: &Subject) {
    let (mut a, id, mark) = (Node::new(1), "0000000000000002", "00000000000000ff");
    a.exchange(subject, &[(0, "x")]).await;
    let ask = async |words: [&str; 3]| {
        subject.run(&[&[id, mark], &words[..], &["60000", "100", "stay"]].concat()).await
    };
    let first = ask(["-", "0", "0"]).await;
    let ([at, known, cursor, more, nodes, anew], _) = first.split_first_chunk().unwrap();
    assert_eq!([cursor, more, nodes, anew], ["1", "-", "2", "anew"]);
    assert_ne!(known, mark);
    let at = (at.parse::<u64>().unwrap() / 1_000).to_string();
    let later = (at.parse::<u64>().unwrap() + 60_000).to_string();
    for (words, is_known) in [
        ([&**known, "1", &at], true),
        ([known, "0", &at], true),
        ([known, "2", &at], false),
        ([known, "99999999999999999999", &at], false),
        ([known, "x", &at], true),
        ([known, "1", &later], false),
        ([mark, "1", &at], false),
        ([&known[1..], "1", &at], false),
    ] {
        let reply = ask(words).await;
        let has_read = reply.get(6..) == Some(&["0000000000000001:0".into(), "x".into()]);
        assert_eq!(reply[2], "1", "{words:?}");
        assert_eq!(reply[5], if is_known { "-" } else { "anew" }, "{words:?}");
        assert_eq!(has_read, !is_known || words[1] != "1", "{words:?}");
    }
}

async fn pages_yield_each_chunk_once_in_the_order_of_writes(subject: &Subject) {
    let [mut a, mut b, mut c] = [1, 2, 3].map(Node::new);
    let text = |n: usize| "x".repeat(1 + n * 37 % 120);
    let mut written = Vec::new();
    for n in 0..300_usize {
        let node = if n % 3 == 0 { &mut a } else { &mut b };
        let text = text(n);
        node.exchange(subject, &[((n / 2) as u16, &text)]).await;
        // Chunks of its own lie between them.
        c.exchange(subject, &[((n % 5) as u16, "own")]).await;
        let chunk = format!("{}:{}=", node.id, n / 2);
        written.retain(|earlier: &String| !earlier.starts_with(&chunk));
        written.push(format!("{chunk}{text}"));
    }
    for max_bytes in [0, 1, 100, 119, 1_000, 1 << 20] {
        c.cursor = FleetCursor::default();
        c.max_bytes = max_bytes;
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let news = c.exchange(subject, &[]).await;
            let bytes: usize = news.chunks.iter().map(|chunk| chunk.text.len()).sum();
            assert!(bytes <= max_bytes || news.chunks.len() == 1, "{max_bytes}: {news:?}");
            assert!(!news.chunks.is_empty(), "`more` was not true");
            found.extend(texts(&news));
            pages += 1;
            if !news.has_more {
                break;
            }
        }
        assert_eq!(found, written, "{max_bytes}");
        assert!(max_bytes > 1_000 || pages > written.len() / 100, "{max_bytes}: {pages} pages");
        assert_eq!(c.read(subject).await, NOTHING);
    }
}

async fn a_reply_has_at_most_so_many_chunks(subject: &Subject) {
    let [mut a, mut b] = [1, 2].map(Node::new);
    let all: Vec<(u16, &str)> = (0..=MAX_FLEET_CHUNKS as u16).map(|number| (number, "x")).collect();
    let refused = a.try_exchange(&subject.store, &all).await;
    assert_eq!(refused, Err(StoreFailure::Refused));
    a.exchange(subject, &all[1..]).await;
    let news = b.exchange(subject, &[]).await;
    assert!(!news.has_more && news.chunks.len() == MAX_FLEET_CHUNKS);
    a.exchange(subject, &all[..1]).await;
    b.cursor = FleetCursor::default();
    let news = b.exchange(subject, &[]).await;
    assert!(news.has_more && news.chunks.len() == MAX_FLEET_CHUNKS);
    let news = b.exchange(subject, &[]).await;
    assert!(!news.has_more && texts(&news) == ["1:0=x"]);
}

async fn any_text_is_carried_up_to_the_longest(subject: &Subject) {
    let [mut a, mut b] = [1, 2].map(Node::new);
    let longest = "x".repeat(MAX_FLEET_TEXT);
    let refused = a.try_exchange(&subject.store, &[(0, &format!("{longest}x"))]).await;
    assert_eq!(refused, Err(StoreFailure::Refused));
    let every: String = ('\0'..='\u{7f}').collect();
    let odd = ["\0", "\r\n$5\r\n*1\r\n", " ", "%d %s %1", "-", "nil", "\"'\\", &every, "1"];
    for text in odd.into_iter().chain([&*longest]) {
        a.exchange(subject, &[(3, text)]).await;
        let news = b.exchange(subject, &[]).await;
        assert!(news.chunks.len() == 1 && news.chunks[0].text == text, "{text:?}: {news:?}");
    }
}

async fn keys_that_others_have_spoilt_begin_a_new_history(subject: &Subject) {
    let [mut a, mut b] = [1, 2].map(Node::new);
    a.exchange(subject, &[(0, "x")]).await;
    for (n, key) in KEYS.into_iter().enumerate() {
        for is_evicted in [true, false] {
            // The second chunk is not written again.
            a.exchange(subject, &[(0, "x"), (9, "y")]).await;
            match is_evicted {
                true => subject.forget(key),
                false => subject.spoil(key),
            }
            for node in [&mut a, &mut b] {
                let news = node.exchange(subject, &[(0, "x")]).await;
                assert!(news.is_new_history, "{key}, {is_evicted}: {news:?}");
            }
            // The chunks are still there if only the nodes were lost.
            let expected: &[&str] = if n == 0 { &[] } else { &["2:0=x"] };
            let read = a.read(subject).await;
            assert!(read.iter().all(|text| text == "2:0=x") && read.len() >= expected.len());
            assert_eq!(a.read(subject).await, NOTHING);
            assert!(!b.exchange(subject, &[]).await.is_new_history);
        }
    }
}

async fn words_that_no_node_sends_do_no_harm(subject: &Subject) {
    let mut a = Node::new(1);
    a.liveness = Duration::from_secs(60);
    let (id, mark) = ("0000000000000002", "00000000000000ff");
    let longer = "x".repeat(MAX_FLEET_TEXT + 1);
    for bad in ["", "2", "000000000000000g", "00000000000000020"] {
        assert_eq!(subject.run(&[bad, mark, "-", "0", "0", "1", "1", "stay"]).await, NOTHING);
        assert_eq!(subject.run(&[id, bad, "-", "0", "0", "1", "1", "stay"]).await, NOTHING);
    }
    let head = [id, mark, "-", "inf", "nan", "60000", "1e9", ""];
    let mut kept = 0;
    for (words, is_written) in [
        (&["65536", "60000", "x"][..], false),
        (&["-1", "60000", "x"], false),
        (&["x", "60000", "x"], false),
        (&["1e2", "60000", "x"], false),
        (&["9", "60000", &longer], false),
        (&["9", "60000"], false),
        (&["9", "-1", "x"], false),
        (&["9", "inf", "x"], false),
        (&["0009", "99999999999999999999999", "x"], true),
        (&["10", "60000", "x", "11"], true),
    ] {
        assert!(subject.run(&[&head[..], words].concat()).await.len() >= 6);
        assert_eq!(a.read(subject).await.len(), usize::from(is_written), "{:?}", words[0]);
        kept += usize::from(is_written);
        assert_eq!(subject.kept(), kept, "{:?}", words[0]);
    }
    // More chunks than a call may write.
    let words: Vec<String> = (100..400).map(|number| number.to_string()).collect();
    let words: Vec<&str> = words.iter().flat_map(|number| [&**number, "60000", "x"]).collect();
    subject.run(&[&head[..], &words].concat()).await;
    assert_eq!(a.read(subject).await.len(), MAX_FLEET_CHUNKS);
    assert_eq!(a.read(subject).await, NOTHING);
    // No number is no span. Each node is live for its own.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let reply = subject.run(&[id, mark, "-", "0", "0", "-1", "x", "stay"]).await;
    assert_eq!(reply[4], "2");
}

async fn a_full_store_drops_the_chunks_that_were_written_first(subject: &Subject) {
    const MAX_CHUNKS: usize = 8_192;
    let all: Vec<(u16, &str)> = (0..MAX_FLEET_CHUNKS as u16).map(|number| (number, "x")).collect();
    let nodes = MAX_CHUNKS / MAX_FLEET_CHUNKS;
    for n in 0..nodes {
        let mut node = Node::new(n as u64);
        // Whoever asks for the longest time has no advantage.
        node.lifetime = if n == 0 { 100 * LONG } else { LONG };
        node.exchange(subject, &all).await;
    }
    // It is written again, and so it is among the latest.
    Node::new(1).exchange(subject, &[(7, "y")]).await;
    let mut reader = Node::new(1 << 40);
    let mut count = async || {
        reader.cursor = FleetCursor::default();
        let mut found = BTreeMap::<u64, usize>::new();
        loop {
            let news = reader.exchange(subject, &[]).await;
            news.chunks.iter().for_each(|chunk| *found.entry(chunk.node).or_default() += 1);
            if !news.has_more {
                return found;
            }
        }
    };
    assert_eq!(count().await, (0..nodes as u64).map(|n| (n, MAX_FLEET_CHUNKS)).collect());
    let mut more = Node::new(1 << 41);
    more.exchange(subject, &all).await;
    more.id += 1;
    more.exchange(subject, &all[..100]).await;
    let found = count().await;
    assert_eq!(found.values().sum::<usize>(), MAX_CHUNKS);
    assert_eq!((found.get(&0), found[&1], found[&2]), (None, MAX_FLEET_CHUNKS - 100, 256));
    more.cursor = FleetCursor::default();
    let mut all_read = more.read(subject).await;
    while all_read.len() < MAX_CHUNKS - 100 {
        all_read.extend(more.read(subject).await);
    }
    assert!(all_read.contains(&"1:7=y".to_owned()));
}

async fn a_full_store_drops_the_node_that_was_not_heard_for_longest(subject: &Subject) {
    let mark = "00000000000000ff";
    let mut a = Node::new(1 << 60);
    a.liveness = Duration::from_secs(600);
    a.exchange(subject, &[(0, "x")]).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut reply = Vec::new();
    for n in 0..1_030 {
        let id = format!("{n:016x}");
        reply = subject.run(&[&id, mark, "-", "0", "0", "600000", "1", "stay"]).await;
    }
    assert_eq!(reply[4], "1024");
    // It was dropped, which does not mean that the store has lost anything.
    let news = a.exchange(subject, &[]).await;
    assert!(news.nodes == 1_024 && !news.is_new_history, "{news:?}");
}

async fn nothing_stays_of_a_fleet_that_is_gone(subject: &Subject) {
    let mut a = Node::new(1);
    a.lifetime = Duration::from_secs(100);
    a.exchange(subject, &[(0, "x")]).await;
    a.lifetime = Duration::from_secs(10);
    a.exchange(subject, &[(1, "x")]).await;
    match &subject.server {
        Server::Interpreter(server) => {
            tokio::time::sleep(Duration::from_secs(150)).await;
            let now = || server.clock.now().wall.get() / 1_000;
            server.lua.lock().set_time(now());
            assert_eq!(server.lua.lock().all().len(), KEYS.len());
            tokio::time::sleep(Duration::from_secs(20)).await;
            server.lua.lock().set_time(now());
            assert_eq!(server.lua.lock().all(), []);
        }
        Server::Real(redis) => {
            for key in KEYS {
                let left: i64 = redis.ask(&["PTTL", key]);
                assert!((100_000..=160_000).contains(&left), "{key}: {left}");
            }
        }
    }
}

macro_rules! cases {
    ($($case:ident)*) => {
        mod interpreter {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(&super::Subject::interpreter()).await;
            })*
        }

        mod server {
            $(#[tokio::test]
            async fn $case() {
                let _alone = crate::alone().await;
                super::$case(&super::Subject::real().await).await;
            })*
        }
    };
}

cases! {
    each_node_reads_the_chunks_of_the_others_once
    a_chunk_that_ends_or_is_deleted_is_gone
    chunks_that_end_together_are_dropped_bit_by_bit_and_not_read
    a_node_that_leaves_or_falls_silent_does_not_count
    an_emptied_store_has_a_new_history
    a_store_that_went_back_is_noticed_by_each_node
    a_cursor_of_another_history_reads_everything
    pages_yield_each_chunk_once_in_the_order_of_writes
    a_reply_has_at_most_so_many_chunks
    any_text_is_carried_up_to_the_longest
    keys_that_others_have_spoilt_begin_a_new_history
    words_that_no_node_sends_do_no_harm
    a_full_store_drops_the_chunks_that_were_written_first
    a_full_store_drops_the_node_that_was_not_heard_for_longest
    nothing_stays_of_a_fleet_that_is_gone
}

/// A lost reply: what the node writes again is what the others read, once.
#[tokio::test(start_paused = true)]
async fn an_exchange_whose_reply_was_lost_is_repeated() {
    let subject = Subject::interpreter();
    let Server::Interpreter(server) = &subject.server else { panic!("it is the interpreter") };
    let [mut a, mut b] = [1, 2].map(Node::new);
    a.exchange(&subject, &[]).await;
    b.exchange(&subject, &[(0, "z")]).await;
    server.plan(Plan::LoseReply);
    let lost = a.try_exchange(&subject.store, &[(0, "x")]).await;
    assert_eq!(lost, Err(StoreFailure::Timeout));
    server.plan(Plan::Answer);
    // It was away for longer than the liveness, but no other node has asked since.
    let news = a.exchange(&subject, &[(0, "x")]).await;
    assert!(!news.is_new_history && texts(&news) == ["2:0=z"], "{news:?}");
    assert_eq!(b.read(&subject).await, ["1:0=x"]);
    assert_eq!(b.read(&subject).await, NOTHING);
}

/// After the clock of a server was set back, nodes that are gone do not count until it has caught up.
#[tokio::test(start_paused = true)]
async fn nodes_that_were_heard_in_the_future_do_not_count() {
    let subject = Subject::interpreter();
    let Server::Interpreter(server) = &subject.server else { panic!("it is the interpreter") };
    let mut a = Node::new(1);
    let millis = a.exchange(&subject, &[]).await.at.get() / 1_000_000;
    for (ahead, expected) in [(60_000, 3), (600_002, 1)] {
        let mut nodes = SortedSet::default();
        nodes.add("0000000000000001", (millis + ahead) as f64);
        nodes.add("0000000000000002", (millis + ahead) as f64);
        nodes.add("0000000000000003", (millis + ahead - 1) as f64);
        server.lua.lock().put(KEYS[0], Kept::SortedSet(nodes));
        assert_eq!(a.exchange(&subject, &[]).await.nodes, expected);
        assert!(!a.exchange(&subject, &[]).await.is_new_history);
    }
}

/// Chunks as another program may write them: only those are left out that are none.
#[tokio::test]
async fn what_other_programs_write_is_left_out() {
    let _alone = crate::alone().await;
    let subject = Subject::real().await;
    let Server::Real(redis) = &subject.server else { panic!("it is the server") };
    let [mut a, mut b] = [1, 2].map(Node::new);
    a.exchange(&subject, &[(0, "x")]).await;
    let raw = |words: &[&[u8]]| {
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let (command, rest) = words.split_first().unwrap();
        let mut command = redis::cmd(std::str::from_utf8(command).unwrap());
        command.arg(rest).exec(&mut connection).unwrap();
    };
    let not_ascii: [&[u8]; 4] = [b"\xff", b"a\x80", b"\xc3\xa9", b"\xf0\x9f\x9a\x80 x"];
    let names = (100..).map(|n: u32| format!("0000000000000003:{n}").into_bytes());
    let mut chunks: Vec<(Vec<u8>, &[u8])> = names.zip(not_ascii).collect();
    let foreign: [&[u8]; 6] =
        [b"", b"x", b"3:1", b"0000000000000003:", b"0000000000000003:999999", b"\xff:1"];
    chunks.extend(foreign.map(|name| (name.to_vec(), &b"x"[..])));
    chunks.push((b"0000000000000003:5".to_vec(), b"good"));
    for (name, text) in &chunks {
        // Their numbers are between two writes of the store, and its latest number is not theirs.
        raw(&[b"ZADD", KEYS[1].as_bytes(), b"0.4", name]);
        raw(&[b"HSET", KEYS[2].as_bytes(), name, text]);
        raw(&[b"ZADD", KEYS[3].as_bytes(), b"inf", name]);
    }
    assert_eq!(b.read(&subject).await, ["3:5=good", "1:0=x"]);
    assert_eq!(b.read(&subject).await, NOTHING);
    for key in KEYS {
        assert!(redis.ask::<i64>(&["PTTL", key]) > 0, "{key} stays");
    }
}

/// A call names the script: the server has it already, or is told it again.
#[tokio::test]
async fn the_script_is_sent_when_the_server_does_not_have_it() {
    let _alone = crate::alone().await;
    let subject = Subject::real().await;
    let Server::Real(redis) = &subject.server else { panic!("it is the server") };
    let [mut a, mut b] = [1, 2].map(Node::new);
    let calls = |command: &str| {
        let told: String = redis.ask(&["INFO", "commandstats"]);
        let of =
            |line: &str| line.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned);
        let line = told.lines().find_map(of);
        line.map_or(0, |line| line.split(',').next().unwrap().parse::<usize>().unwrap())
    };
    let before = calls("script|load");
    for round in 0..3 {
        redis.ask::<()>(&["SCRIPT", "FLUSH"]);
        let text = round.to_string();
        a.exchange(&subject, &[(0, &text)]).await;
        assert_eq!(b.read(&subject).await, [format!("1:0={text}")]);
    }
    assert_eq!(calls("script|load") - before, 3, "once after each flush");
    assert_eq!(calls("eval"), 0);
    // Each exchange, and each that was not executed.
    assert_eq!(calls("evalsha"), 9);
}

async fn two_nodes_of(servers: ServerDiscovery) {
    let store = real_store(servers).await;
    let [mut a, mut b] = [1, 2].map(Node::new);
    a.try_exchange(&store, &[(0, "x")]).await.unwrap();
    let news = b.try_exchange(&store, &[(0, "y")]).await.unwrap();
    assert_eq!((news.nodes, texts(&news)), (2, vec!["1:0=x".to_owned()]));
    assert_eq!(texts(&a.try_exchange(&store, &[]).await.unwrap()), ["2:0=y"]);
}

#[tokio::test]
async fn two_nodes_meet_in_a_cluster() {
    let _alone = crate::alone().await;
    let cluster = Cluster::start().await;
    let seed = Address::Tcp("127.0.0.1".to_owned(), cluster.servers[0].port);
    two_nodes_of(ServerDiscovery::Cluster(vec![seed])).await;
}

#[tokio::test]
async fn two_nodes_meet_behind_sentinels() {
    let _alone = crate::alone().await;
    let watched = Watched::start().await;
    let address = |server: &Redis| Address::Tcp("127.0.0.1".to_owned(), server.port);
    let servers = ServerDiscovery::Sentinel {
        addresses: watched.sentinels.iter().map(address).collect(),
        login: Login::default(),
        master: "edge".to_owned(),
    };
    two_nodes_of(servers).await;
}

/// What a server has to keep, in a form that is too simple to be wrong.
#[derive(Default)]
struct Model {
    /// Each chunk that was written and not deleted: when, its text, and when it ends.
    chunks: BTreeMap<(u64, u16), (usize, String, tokio::time::Instant)>,
    writes: usize,
}

impl Model {
    fn write(&mut self, node: &Node, number: u16, text: &str) {
        let chunk = (node.id, number);
        self.writes += 1;
        let ends = tokio::time::Instant::now() + node.lifetime;
        match text {
            "" => drop(self.chunks.remove(&chunk)),
            text => drop(self.chunks.insert(chunk, (self.writes, text.to_owned(), ends))),
        }
    }

    /// What a node reads if it has read up to the write `from`.
    fn read(&self, node: &Node, from: usize) -> Vec<String> {
        let now = tokio::time::Instant::now();
        let unread = self
            .chunks
            .iter()
            .filter(|((id, _), (write, _, ends))| *id != node.id && *write > from && *ends > now);
        let mut unread: Vec<_> = unread.collect();
        unread.sort_by_key(|(_, (write, ..))| *write);
        unread.iter().map(|((id, n), (_, text, _))| format!("{id}:{n}={text}")).collect()
    }
}

/// Nodes that write, delete, read in pages, leave and come back at random, over a store that is emptied now and then.
#[tokio::test(start_paused = true)]
async fn random_exchanges_are_those_of_the_model() {
    let mut reads = BTreeSet::new();
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let subject = Subject::interpreter();
        let mut model = Model::default();
        let mut nodes = [1, 2, 3].map(|id| (Node::new(id), 0));
        for step in 0..60 {
            let (node, has_read) = &mut nodes[random.usize(..3)];
            node.lifetime = Duration::from_millis(random.u64(1..2_000));
            node.max_bytes = random.usize(..12);
            node.leaves = random.u8(..10) == 0;
            let texts_written: Vec<(u16, String)> = (0..random.usize(..4))
                .map(|_| (random.u16(..4), "x".repeat(random.usize(..8))))
                .collect();
            let chunks: Vec<(u16, &str)> =
                texts_written.iter().map(|(number, text)| (*number, &**text)).collect();
            if random.u8(..20) == 0 {
                subject.empty();
                model.chunks.clear();
            }
            chunks.iter().for_each(|(number, text)| model.write(node, *number, text));
            let mut news = node.exchange(&subject, &chunks).await;
            if news.is_new_history {
                *has_read = 0;
            }
            let mut found = texts(&news);
            while news.has_more {
                node.leaves = false;
                news = node.exchange(&subject, &[]).await;
                if news.is_new_history {
                    // It has left, and reads from the beginning.
                    (*has_read, found) = (0, Vec::new());
                }
                found.extend(texts(&news));
            }
            let expected = model.read(node, *has_read);
            assert_eq!(found, expected, "seed {seed}, step {step}");
            reads.insert(found.len());
            *has_read = model.writes;
            tokio::time::sleep(Duration::from_millis(random.u64(..200))).await;
        }
    }
    assert!(reads.len() > 6, "the nodes read nothing: {reads:?}");
}

/// A server without room takes nothing more from a fleet either.
#[tokio::test]
async fn a_full_server_refuses_the_exchange() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]).await;
    let subject = Subject { store: real_store(one(redis.port)).await, server: Server::Real(redis) };
    let Server::Real(redis) = &subject.server else { panic!("it is the server") };
    let mut a = Node::new(1);
    a.exchange(&subject, &[(0, "x")]).await;
    let fill = "for n = 1, 4096 do redis.pcall('SET', 'full:' .. n, string.rep('x', 4096)) end";
    redis.ask::<()>(&["EVAL", fill, "0"]);
    assert_eq!(a.try_exchange(&subject.store, &[(1, "y")]).await, Err(StoreFailure::Refused));
    redis.ask::<()>(&["FLUSHALL"]);
    assert!(a.exchange(&subject, &[(1, "y")]).await.is_new_history);
}
