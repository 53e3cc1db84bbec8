//! What operators change on one node holds on all nodes that share a store: overrides, bans, resets and their ends.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::clock::{Clock, Nanos, SystemClock};
use tollgate::policy::{KeyHash, Penalty};
use tollgate::store::Bans;
use tollgate::store::redis::{RuleChange, RuleEvent, RulesQuestion, RulesVersion};

use crate::engines::one;
use crate::fleet_exchange::real_store;
use crate::redis_servers::{Cluster, Redis, Watched};
use support::servers::{Gate, Origin, client, eventually, origin_yaml};

/// The longest time until a change holds on another node.
const EVERYWHERE: Duration = Duration::from_secs(1);

const TOKEN: &str = "0123456789abcdef";

/// Two limits of one key, as a stack, with everything that a key may be counted in.
const POLICY: &str = "
limits:
  writes:
    tier: exact
    algorithm: fixed_window
    rate: 3/30d
    key: [header:x-org, header:x-key]
    missing_key: skip
    candidate: { rate: 2/30d }
    refund: { status: [500] }
  org: { tier: exact, algorithm: token_bucket, rate: 50/30d, key: header:x-org, missing_key: skip }
routes: [{ name: r, limits: [org, writes] }]
access_log: { to: none }
check: { silence: [fixed-key-secret, spoofable-key, unlimited-preflights] }
";

/// A limit whose counts travel between nodes, and outlive the store's.
const PAGES: &str = "
limits:
  writes: { tier: estimate, rate: 3/30d, key: [header:x-org, header:x-key], missing_key: skip, scope: fleet }
routes: [{ name: r, limits: [writes] }]
fleet: { every: 100ms }
access_log: { to: none }
check: { silence: [fixed-key-secret, spoofable-key] }
";

async fn node(origin: &Origin, store: &str) -> Gate {
    node_with(origin, store, POLICY).await
}

async fn node_with(origin: &Origin, store: &str, policy: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    let policy = format!(
        "  token_file: token\n{}store: {{ redis: {{ {store}, timeout: 1s }} }}\n{policy}",
        origin_yaml(origin.address)
    );
    Gate::start_in(folder, &policy, "").await
}

async fn change(node: &Gate, path: &str, more: Value) -> Value {
    let mut body = json!({ "limit": "writes", "key": ["acme", "k1"], "reason": "a test" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ask(node, path, body).await
}

/// What a key has spent, as far as a node knows.
async fn spent(node: &Gate) -> u64 {
    let body = json!({ "limit": "writes", "key": ["acme", "k1"] });
    ask(node, "/keys", body).await["spent"].as_u64().unwrap()
}

async fn ask(node: &Gate, path: &str, body: Value) -> Value {
    let url = format!("http://127.0.0.1:{}{path}", node.admin);
    let answer = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

async fn status(node: &Gate, key: &str) -> u16 {
    let sent =
        client().get(node.url("/")).header("x-org", "acme").header("x-key", key).send().await;
    sent.unwrap().status().as_u16()
}

/// How many of `times` requests pass.
async fn admitted(node: &Gate, key: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(status(node, key).await == 200);
    }
    admitted
}

/// Waits until a node has as many rules, at most as long as a change may take.
async fn has_rules(node: &Gate, count: usize) {
    let url = format!("http://127.0.0.1:{}/overrides", node.admin);
    let learned = eventually(EVERYWHERE, || async {
        let answer = client().get(&url).bearer_auth(TOKEN).send().await.unwrap();
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        answer["overrides"].as_array().unwrap().len() == count
    });
    assert!(learned.await, "{count} rules within {EVERYWHERE:?}");
}

/// An evening with two nodes of one store.
async fn an_evening(origin: &Origin, store: &str) {
    let (a, b) = (node(origin, store).await, node(origin, store).await);
    assert_eq!((admitted(&a, "k1", 5).await, admitted(&b, "k1", 2).await), (3, 0));

    // A rate raised on one node admits the customer on the other.
    let state = change(&a, "/keys/override", json!({ "rate": "7/30d", "for": "2h" })).await;
    assert_eq!((&state["spent"], &state["remaining"]), (&json!(3), &json!(4)));
    has_rules(&b, 1).await;
    assert_eq!((admitted(&b, "k1", 3).await, admitted(&a, "k1", 3).await), (3, 1));

    // A reset on one node is one on the other, whatever it has cached.
    let state = change(&b, "/keys/reset", json!({})).await;
    assert_eq!((&state["spent"], &state["remaining"]), (&json!(0), &json!(7)));
    assert_eq!(admitted(&b, "k1", 2).await, 2);
    let forgotten = eventually(EVERYWHERE, || async { status(&a, "k1").await == 200 });
    assert!(forgotten.await, "the other node has forgotten its denials");

    // A ban, and its end.
    change(&b, "/keys/ban", json!({ "for": "1h" })).await;
    assert_eq!(status(&b, "k1").await, 429);
    has_rules(&a, 2).await;
    let refused = client().get(a.url("/")).header("x-org", "acme").header("x-key", "k1");
    let text = refused.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("abnormal-usage-detected"), "{text}");
    assert_eq!(status(&a, "k2").await, 200, "another key of the organisation");
    change(&a, "/keys/unban", json!({})).await;
    assert_eq!(status(&a, "k1").await, 200);
    has_rules(&b, 1).await;
    assert_eq!(status(&b, "k1").await, 200);

    // A node that starts later knows the rule, and a reload keeps it.
    let c = node(origin, store).await;
    has_rules(&c, 1).await;
    let url = format!("http://127.0.0.1:{}/reload", c.admin);
    let reloaded = client().post(url).bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(reloaded.status(), 200);
    has_rules(&c, 1).await;

    // An override that is ended ends everywhere; what was spent stays spent.
    change(&c, "/keys/override", json!({ "action": "none" })).await;
    has_rules(&a, 0).await;
    has_rules(&b, 0).await;
    assert_eq!((admitted(&a, "k1", 2).await, admitted(&b, "k1", 2).await), (0, 0));

    // An override of two seconds ends by itself.
    change(&a, "/keys/override", json!({ "action": "allow", "for": "2s" })).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 5).await, 5);
    let ended = eventually(Duration::from_secs(4), || async {
        status(&a, "k1").await == 429 && status(&b, "k1").await == 429
    });
    assert!(ended.await, "it has an end");
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_one_server() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    an_evening(&origin, &format!("url: \"{}\"", redis.url())).await;
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_a_cluster() {
    let _alone = crate::alone().await;
    let (origin, cluster) = (Origin::start("site").await, Cluster::start().await);
    an_evening(&origin, &cluster.yaml()).await;
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_sentinels() {
    let _alone = crate::alone().await;
    let (origin, watched) = (Origin::start("site").await, Watched::start().await);
    an_evening(&origin, &watched.yaml()).await;
}

#[tokio::test]
async fn rules_outlive_a_store_that_loses_them_and_changes_need_the_store() {
    let _alone = crate::alone().await;
    let (origin, mut redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node(&origin, &store).await, node(&origin, &store).await);
    change(&a, "/keys/override", json!({ "action": "allow", "for": "2h" })).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 9).await, 9);

    let _: String = redis.ask(&["FLUSHALL"]);
    let restored = eventually(EVERYWHERE, || async {
        redis.ask::<Vec<String>>(&["KEYS", "*rules*"]).len() == 1
    });
    assert!(restored.await, "a node that knows the rules tells the store again");
    has_rules(&a, 1).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 9).await, 9);

    redis.kill();
    let url = format!("http://127.0.0.1:{}/keys/ban", a.admin);
    let body = json!({ "limit": "writes", "key": ["acme", "k2"], "for": "1h", "reason": "a test" });
    let answer = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(admitted(&a, "k1", 9).await, 9, "the rule holds while the store is away");
    redis.restart().await;
    let again = eventually(Duration::from_secs(10), || async {
        let url = format!("http://127.0.0.1:{}/keys/ban", b.admin);
        let sent = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await;
        sent.unwrap().status() == 200
    });
    assert!(again.await);
    has_rules(&a, 2).await;
    assert_eq!((status(&a, "k2").await, admitted(&a, "k1", 9).await), (429, 9));
}

#[tokio::test]
async fn the_first_change_on_an_empty_store_reaches_every_node() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node(&origin, &store).await, node(&origin, &store).await);
    assert_eq!((admitted(&a, "k1", 5).await, admitted(&b, "k1", 2).await), (3, 0));
    change(&b, "/keys/reset", json!({})).await;
    let forgotten = eventually(EVERYWHERE, || async { status(&a, "k1").await == 200 });
    assert!(forgotten.await, "the other node has forgotten its denials");
}

/// What the store keeps of operators' rules.
fn kept(redis: &Redis) -> (Vec<String>, Vec<String>) {
    let rules = redis.ask(&["HGETALL", "tollgate:{bans}:rules"]);
    (rules, redis.ask(&["ZRANGE", "tollgate:{bans}:changes", "0", "-1", "WITHSCORES"]))
}

/// The store has an older state again, as after a restart from a snapshot.
fn put_back(redis: &Redis, (rules, changes): &(Vec<String>, Vec<String>)) {
    let mut words = vec!["HSET", "{bans}:rules"];
    words.extend(rules.iter().map(String::as_str));
    let _: u32 = redis.ask(&words);
    for pair in changes.chunks(2) {
        let _: u32 = redis.ask(&["ZADD", "{bans}:changes", &pair[1], &pair[0]]);
    }
    // No node sees a half of it.
    for name in ["{bans}:changes", "{bans}:rules"] {
        let _: String = redis.ask(&["RENAME", name, &format!("tollgate:{name}")]);
    }
}

#[tokio::test]
async fn a_store_with_an_older_state_undoes_nothing() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node(&origin, &store).await, node(&origin, &store).await);
    change(&a, "/keys/ban", json!({ "for": "1h" })).await;
    let two = json!({ "key": ["acme", "k2"], "action": "allow", "for": "1h" });
    change(&a, "/keys/override", two).await;
    has_rules(&b, 2).await;
    let before = kept(&redis);

    change(&b, "/keys/unban", json!({})).await;
    let two = json!({ "key": ["acme", "k2"], "action": "deny", "for": "1h" });
    change(&a, "/keys/override", two).await;
    has_rules(&b, 1).await;
    put_back(&redis, &before);
    let told = eventually(EVERYWHERE, || async { kept(&redis).0.len() == 10 });
    assert!(told.await, "version, mark, ruled, a rule and an ended one: {:?}", kept(&redis));
    for node in [&a, &b] {
        let agrees = eventually(EVERYWHERE, || async {
            // In this order: each request that passes spends one of three units.
            status(node, "k2").await == 429 && status(node, "k1").await == 200
        });
        assert!(agrees.await, "what was ended stays ended, and the later override counts");
    }
}

#[tokio::test]
async fn nodes_that_know_two_histories_of_the_store_come_to_one() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let a = node(&origin, &store).await;
    change(&a, "/keys/ban", json!({ "for": "1h" })).await;
    // A promoted replica has another change of the same number.
    let _: u32 = redis.ask(&["DEL", "tollgate:{bans}:rules", "tollgate:{bans}:changes"]);
    let b = node(&origin, &store).await;
    let foreign = json!({ "key": ["acme", "k2"], "for": "1h" });
    // The node that knows the ban may have told it already; both hold in the end.
    change(&b, "/keys/ban", foreign).await;
    has_rules(&a, 2).await;
    has_rules(&b, 2).await;
    let mut rules = kept(&redis);
    let mark = rules.0.iter().position(|word| word == "mark").unwrap() + 1;
    rules.0[mark] = "ffffffffffffffff".to_owned();
    put_back(&redis, &rules);
    let told = eventually(EVERYWHERE, || async { !kept(&redis).0.contains(&rules.0[mark]) });
    assert!(told.await, "the same number with another mark is another history");
    has_rules(&a, 2).await;
    assert_eq!((status(&a, "k1").await, status(&b, "k2").await), (429, 429));
}

#[tokio::test]
async fn what_others_write_into_the_rules_stops_neither_changes_nor_requests() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node(&origin, &store).await, node(&origin, &store).await);
    let rules = "tollgate:{bans}:rules";
    let long = "x".repeat(100_000);
    for (field, value) in [
        ("o0123456789abcdef0123456789abcdef", "9999999999999999 1 \u{fffd}\u{202e}"),
        ("o0123456789abcdef0123456789abcdee", &format!("9999999999999999 1 {long}")),
        ("version", "9007199254740993"),
        ("rubbish", "rubbish"),
    ] {
        let _: u32 = redis.ask(&["HSET", rules, field, value]);
    }
    let _: String = redis.ask(&["SET", "tollgate:{bans}:changes", "a string"]);
    change(&a, "/keys/ban", json!({ "for": "1h" })).await;
    has_rules(&b, 1).await;
    assert_eq!(status(&b, "k1").await, 429);
    change(&b, "/keys/unban", json!({})).await;
    has_rules(&a, 0).await;
    assert_eq!(status(&a, "k1").await, 200);
}

/// Another program has removed it. A node that began since does not know the rule, and ends it on the others.
#[tokio::test]
async fn any_node_ends_a_rule_that_the_store_has_lost() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let a = node(&origin, &store).await;
    let ban = ('b', ("/keys/ban", json!({ "for": "1h" })), ("/keys/unban", json!({})));
    let deny = json!({ "for": "1h", "action": "deny" });
    let deny = ('o', ("/keys/override", deny), ("/keys/override", json!({ "action": "none" })));
    for (kind, (make, ruling), (end, none)) in [ban, deny] {
        for is_known in [true, false] {
            change(&a, make, ruling.clone()).await;
            let fields: Vec<String> = redis.ask(&["HKEYS", "tollgate:{bans}:rules"]);
            let field = fields.iter().find(|field| field.starts_with(kind)).unwrap();
            assert_eq!(redis.ask::<u32>(&["HDEL", "tollgate:{bans}:rules", field]), 1);
            let b = node(&origin, &store).await;
            has_rules(&b, 0).await;
            assert_eq!(status(&a, "k1").await, 429);
            change(if is_known { &a } else { &b }, end, none.clone()).await;
            has_rules(&a, 0).await;
            change(&a, "/keys/reset", json!({})).await;
            assert_eq!(status(&a, "k1").await, 200, "{kind} {is_known}");
        }
    }
}

#[tokio::test]
async fn a_rule_has_its_dates_by_the_clock_of_the_node_though_that_of_the_store_is_ahead() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let a = node(&origin, &format!("url: \"{}\"", redis.url())).await;
    let hour = 3_600_000_000_u64;
    let now = SystemClock::new().now().wall.get() / 1_000;
    let _: String = redis.ask(&["SET", "tollgate:{bans}:time", &format!("{} {hour}", now + hour)]);
    change(&a, "/keys/ban", json!({ "for": "5m" })).await;
    assert_eq!(status(&a, "k1").await, 429);
    let url = format!("http://127.0.0.1:{}/overrides", a.admin);
    let answer = client().get(&url).bearer_auth(TOKEN).send().await.unwrap();
    let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let rule = &answer["overrides"][0];
    let [since, until] = ["since", "until"]
        .map(|name| humantime::parse_rfc3339_weak(rule[name].as_str().unwrap()).unwrap());
    let span = until.duration_since(since).unwrap().as_secs_f64();
    assert!((299.0..301.0).contains(&span), "{rule}");
}

#[tokio::test]
async fn a_change_that_the_store_makes_too_late_is_in_the_audit_log() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let a = node(&origin, &format!("url: \"{}\"", redis.url())).await;
    redis.signal("STOP");
    let url = format!("http://127.0.0.1:{}", a.admin);
    let body = json!({ "limit": "writes", "key": ["acme", "k1"], "for": "1h", "reason": "late" });
    let ban = client().post(format!("{url}/keys/ban")).bearer_auth(TOKEN).body(body.to_string());
    let answer = ban.send().await.unwrap();
    let (status_code, text) = (answer.status(), answer.text().await.unwrap());
    redis.signal("CONT");
    assert!(status_code == 503 && text.contains("may have been made"), "{status_code} {text}");
    let audit = client().get(format!("{url}/audit")).bearer_auth(TOKEN).send().await.unwrap();
    let audit = audit.text().await.unwrap();
    assert!(audit.contains("it may have been made") && audit.contains("late"), "{audit}");
}

/// A ban that is made at once after an unban stays on a node that hears of the ban first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unban_that_is_heard_late_leaves_the_next_ban() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let rule = Penalty {
        after: 1,
        within: Nanos::from_secs(60),
        ban: Nanos::from_secs(600),
        double_up_to: Nanos::from_secs(600),
        forgive: Nanos::from_secs(600),
        at_connection: false,
    };
    let key = KeyHash { high: 1, low: 2 };
    let clock = Arc::new(SystemClock::new());
    let (store, other_store) =
        (real_store(one(redis.port)).await, real_store(one(redis.port)).await);
    let (bans, other_bans) = (Arc::<Bans>::default(), Arc::<Bans>::default());
    store.share_bans(&bans);
    other_store.share_bans(&other_bans);
    let is_told = async |before: u64| {
        let told = eventually(Duration::from_secs(5), || async {
            other_bans.latest_ban(key).is_some_and(|(_, reported_at)| reported_at > before)
        });
        assert!(told.await, "{:?}", other_bans.latest_ban(key));
        other_bans.latest_ban(key).unwrap().1
    };
    assert!(bans.ban(key, &rule, clock.now().mono).is_some());
    let first = is_told(0).await;

    let question = RulesQuestion {
        known: &RulesVersion::default(),
        wants_all: false,
        changes: &[RuleChange::Lift(key)],
        date: clock.now().wall,
        told: 0,
        done: 0,
    };
    let news = store.exchange_rules(question).await.unwrap();
    let [(_, RuleEvent { number: lifted, is_lift: true, .. })] = news.once[..] else {
        panic!("{:?}", news.once);
    };
    assert!(lifted >= first, "{lifted} {first}");
    bans.lift_reported(key, lifted, clock.now().mono);
    bans.set_made_changes(lifted);
    assert!(bans.ban(key, &rule, clock.now().mono).is_some());
    assert!(is_told(first).await > lifted);

    let now = clock.now().mono;
    other_bans.lift_reported(key, lifted, now);
    assert!(other_bans.remaining(key, now).is_some());
}

/// A store that has lost everything numbers its changes above those before, so every node makes them, and what was forgotten
/// stays forgotten.
#[tokio::test]
async fn a_reset_in_a_store_that_has_lost_everything_reaches_every_node() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node_with(&origin, &store, PAGES).await, node_with(&origin, &store, PAGES).await);
    let is_known = async |node: &Gate| {
        eventually(EVERYWHERE, || async { status(node, "k1").await == 429 }).await
    };
    let is_forgotten = async || {
        let forgotten = eventually(EVERYWHERE, || async {
            status(&a, "k1").await == 200 && status(&b, "k1").await == 200
        });
        forgotten.await
    };
    change(&a, "/keys/reset", json!({ "key": ["acme", "k2"] })).await;
    assert_eq!(admitted(&a, "k1", 5).await, 3);
    assert!(is_known(&b).await);
    for _ in 0..2 {
        let _: String = redis.ask(&["FLUSHALL"]);
        change(&b, "/keys/reset", json!({})).await;
        assert!(is_forgotten().await);
        // Three in all, and what one has not heard of the other yet.
        assert!((1..=2).contains(&admitted(&b, "k1", 5).await));
        assert!(is_known(&a).await);
    }
}

/// Resets and unbans that the store has lost are told again by the nodes that made them, with their numbers: a node that hangs
/// meanwhile, or begins afterwards, makes them too.
#[tokio::test]
async fn what_nodes_have_forgotten_stays_so_when_the_store_comes_back_with_older_data() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node_with(&origin, &store, PAGES).await, node_with(&origin, &store, PAGES).await);
    assert_eq!(admitted(&a, "k1", 5).await, 3);
    let is_known = async |node: &Gate| {
        eventually(EVERYWHERE, || async { status(node, "k1").await == 429 }).await
    };
    assert!(is_known(&b).await);
    // What the store has now comes back later.
    let names = ["nodes", "order", "texts", "ends", "state"];
    let fleet = names.map(|name| format!("tollgate:{{fleet}}:{name}"));
    for name in &fleet {
        let _: u32 = redis.ask(&["COPY", name, name, "DB", "1"]);
    }
    change(&b, "/keys/reset", json!({})).await;
    let is_forgotten = eventually(EVERYWHERE, || async {
        status(&a, "k1").await == 200 && status(&b, "k1").await == 200
    });
    assert!(is_forgotten.await);
    drop(a);
    let _: String = redis.ask(&["SWAPDB", "0", "1"]);
    let late = node_with(&origin, &store, PAGES).await;
    // It has read the chunks of both, and heard of the reset.
    tokio::time::sleep(EVERYWHERE).await;
    assert_eq!(status(&late, "k1").await, 200, "{}", late.log());
}

/// A change that a store has lost before a node heard of it reaches that node, also if the node has told the store its own changes
/// before.
#[tokio::test]
async fn a_change_that_a_store_has_lost_reaches_a_node_that_was_first_to_tell_its_own() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node_with(&origin, &store, PAGES).await, node_with(&origin, &store, PAGES).await);
    change(&b, "/keys/reset", json!({ "key": ["acme", "k2"] })).await;
    assert_eq!(admitted(&b, "k1", 5).await, 3);
    let knows = eventually(EVERYWHERE, || async { status(&a, "k1").await == 429 });
    assert!(knows.await, "{}", a.log());
    b.signal("STOP");
    change(&a, "/keys/reset", json!({})).await;
    a.signal("STOP");
    let _: String = redis.ask(&["FLUSHALL"]);
    b.signal("CONT");
    let told = eventually(EVERYWHERE, || async {
        redis.ask::<u32>(&["ZCARD", "tollgate:{bans}:changes"]) > 0
    });
    assert!(told.await, "{}", b.log());
    a.signal("CONT");
    let is_forgotten = eventually(EVERYWHERE, || async {
        status(&b, "k1").await == 200 && status(&a, "k1").await == 200
    });
    assert!(is_forgotten.await, "{}\n{}", a.log(), b.log());
}

/// A step of the store's clock, as the nodes see one: the time that the store keeps goes on from there. What operators change before
/// and afterwards is made by nodes that began before the step, and by one that begins after it.
#[tokio::test]
async fn a_reset_reaches_every_node_after_a_step_of_the_clock() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node_with(&origin, &store, PAGES).await, node_with(&origin, &store, PAGES).await);
    // A node that has a rule has heard of everything that was changed before.
    let all_have_heard = async |maker: &Gate, nodes: &[&Gate], rules: usize| {
        let mark =
            json!({ "key": ["acme", format!("mark {rules}")], "action": "allow", "for": "30d" });
        change(maker, "/keys/override", mark).await;
        for node in nodes {
            has_rules(node, rules).await;
            assert_eq!(spent(node).await, 0, "{}", node.log());
        }
    };
    let is_full = async |nodes: &[&Gate]| {
        for node in nodes {
            let is_full = eventually(EVERYWHERE, || async { spent(node).await >= 3 });
            assert!(is_full.await, "{}", node.log());
        }
    };
    for (round, hours) in [2_u64, 50].into_iter().enumerate() {
        assert_eq!(admitted(&a, "k1", 5).await, 3);
        is_full(&[&a, &b]).await;
        // One node hears of the change after the step.
        let (first, other) = if round == 0 { (&a, &b) } else { (&b, &a) };
        other.signal("STOP");
        change(first, "/keys/reset", json!({})).await;
        let ahead = hours * 3_600_000_000;
        let (seconds, micros): (u64, u64) = redis.ask(&["TIME"]);
        let time = seconds * 1_000_000 + micros + ahead;
        let _: String = redis.ask(&["SET", "tollgate:{bans}:time", &format!("{time} {ahead}")]);
        other.signal("CONT");
        all_have_heard(first, &[&a, &b], 2 * round + 1).await;
        let late = node_with(&origin, &store, PAGES).await;
        has_rules(&late, 2 * round + 1).await;
        assert_eq!(admitted(&late, "k1", 5).await, 3);
        is_full(&[&late, &a, &b]).await;
        change(&late, "/keys/reset", json!({})).await;
        all_have_heard(&late, &[&late, &a, &b], 2 * round + 2).await;
    }
}

/// A reset that the old process has not heard of when it hands over holds for what the successor takes over from it.
#[tokio::test]
async fn a_reset_at_the_switch_of_an_upgrade_reaches_every_node() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let policy = format!("{PAGES}limits_of_this_proxy: {{ drain: 300ms, finish: 10s }}\n");
    let (mut a, b) =
        (node_with(&origin, &store, &policy).await, node_with(&origin, &store, &policy).await);
    for _ in 0..3 {
        assert_eq!(admitted(&a, "k1", 5).await, 3);
        let knows = eventually(EVERYWHERE, || async { spent(&b).await >= 3 });
        assert!(knows.await, "{}", b.log());
        let mut new = a.successor();
        let waits = || async { a.log().contains("a successor is waiting") };
        assert!(eventually(Duration::from_secs(20), waits).await, "{}", new.log());
        change(&b, "/keys/reset", json!({})).await;
        a.signal("QUIT");
        assert!(a.ended(Duration::from_secs(20)).await.is_some(), "{}", a.log());
        new.wait_ready().await;
        let is_forgotten =
            eventually(EVERYWHERE, || async { spent(&new).await == 0 && spent(&b).await == 0 });
        assert!(is_forgotten.await, "{} {}\n{}", spent(&new).await, spent(&b).await, new.log());
        a = new;
    }
}
