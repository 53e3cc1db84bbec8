//! The script that keeps the rules of operators, on a clock that is turned by hand: rules end when they should, also when the
//! clock of the store is set back.

use support::lua::{Kept, Server, SortedSet};

const SCRIPT: &str = concat!(
    include_str!("../../src/store/redis/common.lua"),
    include_str!("../../src/store/redis/key_rules.lua")
);

const BEGIN: u64 = 1_800_000_000_000_000;
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// Asks as a node that knows no rules and was told this time. Returns the reply.
fn reply(lua: &Server, now: u64, told: u64, changes: &[&str]) -> Vec<String> {
    lua.set_time(now);
    let told = told.to_string();
    let words: Vec<String> = [&["0", "", "m", "all", &*told, "0"], changes]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
    lua.evaluate(SCRIPT, &keys, &words).unwrap()
}

/// How many words follow this one in a reply, with itself.
fn length_of(word: &str) -> usize {
    match word {
        "rules" => 1,
        "missed" => 2,
        "rule" => 5,
        "do" => 5,
        _ => panic!("{word}"),
    }
}

/// The fields and the rests, in microseconds, of all rules.
fn ask(lua: &Server, now: u64, changes: &[&str]) -> Vec<(String, u64)> {
    let reply = reply(lua, now, 0, changes);
    let (mut rules, mut rest) = (Vec::new(), &reply[3..]);
    while let Some(word) = rest.first() {
        if word == "rule" {
            rules.push((rest[1].clone(), rest[2].parse().unwrap()));
        }
        rest = &rest[length_of(word)..];
    }
    rules
}

#[test]
fn a_rule_ends_after_its_time_also_when_the_clock_is_set_back() {
    let lua = Server::new();
    let minute = (60 * SECOND).to_string();
    let left = |seconds: u64| vec![("b1f".to_owned(), seconds * SECOND)];
    assert_eq!(ask(&lua, BEGIN, &["put", "b1f", &minute, "{}"]), left(60));
    assert_eq!(ask(&lua, BEGIN + 10 * SECOND, &[]), left(50));
    // The time stands still until the first question after it, and goes on from there.
    let back = BEGIN - HOUR;
    assert_eq!(ask(&lua, back, &[]), left(50));
    assert_eq!(ask(&lua, back + 20 * SECOND, &[]), left(30));
    let next = ask(&lua, back + 30 * SECOND, &["put", "o1f", &minute, "{}"]);
    assert_eq!(next, [left(20), vec![("o1f".to_owned(), 60 * SECOND)]].concat());
    assert_eq!(ask(&lua, back + 50 * SECOND, &[]), [("o1f".to_owned(), 40 * SECOND)]);
    assert_eq!(ask(&lua, back - HOUR, &[]), [("o1f".to_owned(), 40 * SECOND)], "no new life");
}

#[test]
fn a_time_that_another_program_wrote_ends_no_rule() {
    let minute = (60 * SECOND).to_string();
    for text in ["99999999999999999999 0", "1800000000000000 999999999999999", "x"] {
        let lua = Server::new();
        lua.put("time", support::lua::Kept::Text(text.to_owned()));
        let rules = ask(&lua, BEGIN, &["put", "b1f", &minute, "{}"]);
        assert_eq!(rules, [("b1f".to_owned(), 60 * SECOND)], "{text}");
        assert_eq!(ask(&lua, BEGIN + SECOND, &[]), [("b1f".to_owned(), 59 * SECOND)], "{text}");
    }
}

#[test]
fn changes_in_a_store_that_has_lost_everything_are_later_than_those_before() {
    let lua = Server::new();
    let version = |reply: &[String]| reply[0].parse::<u64>().unwrap();
    let first = version(&reply(&lua, BEGIN, 0, &["reset", "1f"]));
    let second = version(&reply(&lua, BEGIN, first, &["reset", "1f"]));
    assert!(first >= BEGIN && second > first, "{first} {second}");
    lua.empty();
    let told = reply(&lua, BEGIN - HOUR, second, &["reset", "2f"]);
    assert!(version(&told) > second, "{told:?}");
    assert_eq!(told[4..], ["do", &*told[0], &*told[0], "reset", "2f"].map(str::to_owned));
    let after = version(&reply(&lua, BEGIN - HOUR, 0, &["reset", "3f"]));
    assert!(after > version(&told));
}

#[test]
fn a_version_that_another_program_wrote_hides_no_change() {
    for text in ["4503599627370495", "99999999999999999999", "-1", "x"] {
        let lua = Server::new();
        let hash = [("version".to_owned(), text.to_owned())].into();
        lua.put("rules", support::lua::Kept::Hash(hash));
        let before: u64 = reply(&lua, BEGIN, 0, &[])[0].parse().unwrap();
        let told = reply(&lua, BEGIN, before, &["reset", "1f"]);
        let after: u64 = told[0].parse().unwrap();
        assert!(before < BEGIN + HOUR && after < BEGIN + HOUR, "{text}: {before} {after}");
        assert_eq!(
            told[4..],
            ["do", &*told[0], &*told[0], "reset", "1f"].map(str::to_owned),
            "{text}"
        );
    }
}

#[test]
fn changes_after_a_clock_was_far_ahead_are_made() {
    let (lua, far) = (Server::new(), BEGIN + 40 * 24 * HOUR);
    let version = |reply: &[String]| reply[0].parse::<u64>().unwrap();
    let first = version(&reply(&lua, far, 0, &["reset", "1f"]));
    let second = version(&reply(&lua, BEGIN, first, &["reset", "1f"]));
    assert!(first >= far && second > first, "{first} {second}");
    lua.empty();
    assert!(version(&reply(&lua, BEGIN, second, &["reset", "1f"])) > second);
}

/// What a node with this version has to do, as `number word key`, and the words behind `missed`.
fn to_do(lua: &Server, now: u64, known: &[String]) -> (Vec<String>, Option<u64>) {
    lua.set_time(now);
    let words = [&*known[0], &*known[1], "m", "-", "0", &*known[0]].map(str::to_owned);
    let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
    let reply = lua.evaluate(SCRIPT, &keys, &words).unwrap();
    assert_ne!(reply[0], "lost");
    let (mut all, mut missed, mut rest) = (Vec::new(), None, &reply[3..]);
    while let Some(word) = rest.first() {
        match &**word {
            "missed" => missed = rest[1].parse().ok(),
            "do" => all.push(rest[2..5].join(" ")),
            _ => {}
        }
        rest = &rest[length_of(word)..];
    }
    (all, missed)
}

#[test]
fn a_store_that_has_lost_changes_is_told_them_with_their_numbers() {
    let lua = Server::new();
    let nothing = ["0".to_owned(), String::new()];
    let reset = reply(&lua, BEGIN, 0, &["reset", "1f"])[0].clone();
    let lift = reply(&lua, BEGIN + 5, 0, &["lift", "2f"])[0].clone();
    lua.empty();
    // An older state of the bans has the second key.
    let ban = [("2f".to_owned(), format!("1 {} 60 0", BEGIN + HOUR))];
    lua.put("of", Kept::Hash(ban.into()));
    let mut at = SortedSet::default();
    at.add("2f", BEGIN as f64);
    lua.put("at", Kept::SortedSet(at));
    let again = ["again", &*reset, "reset", "1f", "again", &*lift, "lift", "2f"];
    for _node in 0..2 {
        let told: u64 = lift.parse().unwrap();
        let version: u64 = reply(&lua, BEGIN + 9, told, &again)[0].parse().unwrap();
        assert!(version > told);
    }
    let (all, missed) = to_do(&lua, BEGIN + 10, &nothing);
    assert_eq!((all, missed), (vec![format!("{reset} reset 1f"), format!("{lift} lift 2f")], None));
    let Some((Kept::Hash(bans), _)) = lua.get("of") else { panic!("no bans") };
    assert!(bans["2f"].starts_with("0 "), "{bans:?}");
    assert_eq!(lua.get("at"), None, "it is told to nobody");
}

#[test]
fn a_ban_that_was_reported_after_its_lift_outlives_a_lift_that_is_told_again() {
    let lua = Server::new();
    let ban = [("2f".to_owned(), format!("1 {} 60 0", BEGIN + HOUR))];
    lua.put("of", Kept::Hash(ban.into()));
    let mut at = SortedSet::default();
    at.add("2f", BEGIN as f64);
    lua.put("at", Kept::SortedSet(at));
    let before = (BEGIN - 1).to_string();
    let _told = reply(&lua, BEGIN + 9, BEGIN, &["again", &before, "lift", "2f"]);
    let Some((Kept::Hash(bans), _)) = lua.get("of") else { panic!("no bans") };
    assert_eq!(bans["2f"], format!("1 {} 60 {before}", BEGIN + HOUR));
}

#[test]
fn a_node_that_was_away_for_more_changes_than_are_kept_is_told_so() {
    let lua = Server::new();
    let first = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    for n in 1..=999 {
        let _told = reply(&lua, BEGIN + n, 0, &["reset", "2f"]);
    }
    let nothing = ["0".to_owned(), String::new()];
    assert!(to_do(&lua, BEGIN + SECOND, &first).1.is_none());
    let _told = reply(&lua, BEGIN + SECOND, 0, &["reset", "2f"]);
    for known in [&first[..2], &nothing] {
        let (all, missed) = to_do(&lua, BEGIN + SECOND, known);
        assert!(!all.iter().any(|one| one.ends_with("1f")), "it is not kept any more");
        assert_eq!(missed, Some(BEGIN + 1));
    }
}

#[test]
fn what_another_program_wrote_costs_a_call_no_more_than_its_bounds() {
    let lua = Server::new();
    let _told = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    let mut changes = SortedSet::default();
    (0..10_000).for_each(|n| {
        changes.add(&format!("{BEGIN} lift {n:x}"), BEGIN as f64);
    });
    lua.put("changes", Kept::SortedSet(changes));
    lua.put("rules", Kept::Hash([("mark".to_owned(), "m".repeat(1 << 20))].into()));
    let words = reply(&lua, BEGIN + 1, 0, &[]);
    assert!(words.iter().map(String::len).sum::<usize>() < 100, "{}", words.len());
    assert!(reply(&lua, BEGIN + 2, 0, &["reset", "1f"])[0].parse::<u64>().unwrap() > BEGIN);
}

/// Two nodes that have made different changes tell a store that has lost them, in either order: each hears of what the other
/// has made, whatever its number is.
#[test]
fn a_change_that_is_told_again_reaches_nodes_that_told_theirs_before() {
    let lua = Server::new();
    let first = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    let second = reply(&lua, BEGIN + 5, 0, &["reset", "2f"]);
    let told = [&first, &second].map(|reply| reply[0].clone());
    for (early, late) in [(0, 1), (1, 0)] {
        lua.empty();
        let again = |node: usize| ["again", &*told[node], "reset", ["1f", "2f"][node]];
        let seen = told[early].parse().unwrap();
        let known = reply(&lua, BEGIN + 9, seen, &again(early));
        let _late = reply(&lua, BEGIN + 9, told[late].parse().unwrap(), &again(late));
        let (all, _) = to_do(&lua, BEGIN + 10, &known);
        assert_eq!(all, [again(late)[1..].join(" ")], "{early} was first");
        // It is not made once more by those who tell it too.
        let _again = reply(&lua, BEGIN + 11, seen, &again(late));
        let (all, _) = to_do(&lua, BEGIN + 12, &known);
        assert_eq!(all.len(), 1, "{all:?}");
    }
}

#[test]
fn a_version_of_no_possible_time_is_not_exceeded() {
    let lua = Server::new();
    let _told = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    for far in [BEGIN + 25 * 366 * 24 * HOUR, 1 << 52, u64::MAX - 1] {
        let far = far.to_string();
        let ask = |changes: &[&str]| {
            lua.set_time(BEGIN + SECOND);
            let words = [&[&*far, "k", "m2", "-", &far, &far], changes].concat();
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
            lua.evaluate(SCRIPT, &keys, &words).unwrap()
        };
        assert_eq!(ask(&[]), ["lost"]);
        let told = ask(&["again", &far, "lift", "2f", "seen"]);
        let [version, time] = [0, 2].map(|n| told[n].parse::<u64>().unwrap());
        assert!(version < BEGIN + HOUR && time == BEGIN + SECOND, "{told:?}");
        // Nodes go on from there, and do what was changed at no possible time.
        let known = reply(&lua, BEGIN + SECOND, time, &[]);
        assert_eq!(known[0], told[0]);
        let (all, _) = to_do(&lua, BEGIN + SECOND, &["0".to_owned(), String::new()]);
        assert!(all.contains(&format!("{version} lift 2f")), "{all:?}");
    }
}

#[test]
fn an_event_of_another_program_hides_no_change() {
    let lua = Server::new();
    let known = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    let Some((Kept::SortedSet(mut changes), _)) = lua.get("changes") else { panic!("no changes") };
    changes.add("99999999999999999999 reset ab", 1e22);
    changes.add("7 reset ab", f64::INFINITY);
    lua.put("changes", Kept::SortedSet(changes));
    let (all, _) = to_do(&lua, BEGIN + 1, &known);
    assert!(all.is_empty(), "{all:?}");
    let next = reply(&lua, BEGIN + 2, 0, &["reset", "2f"]);
    let (all, _) = to_do(&lua, BEGIN + 3, &known);
    assert_eq!(all, [format!("{} reset 2f", next[0])]);
    let Some((Kept::SortedSet(changes), _)) = lua.get("changes") else { panic!("no changes") };
    assert_eq!(changes.len(), 4, "two marks and two changes");
}

/// Resets leave room for bans.
#[test]
fn a_flood_of_resets_drops_no_ban() {
    let lua = Server::new();
    let mut over = SortedSet::default();
    (0..32_768).for_each(|n| {
        over.add(&format!("{n:x}"), (BEGIN + 24 * HOUR) as f64);
    });
    lua.put("over", Kept::SortedSet(over));
    let _told = reply(&lua, BEGIN, 0, &["reset", "abcdef", "lift", "abcdee"]);
    let Some((Kept::Hash(bans), _)) = lua.get("of") else { panic!("no bans") };
    assert_eq!(bans.len(), 1, "a lift is kept, a reset is not: {bans:?}");
}

/// A reset does not have all nodes read all rules.
#[test]
fn rules_are_told_to_nodes_that_do_not_know_them() {
    let lua = Server::new();
    let minute = (60 * SECOND).to_string();
    let has_rules = |known: &[String], changes: &[&str]| {
        let words = [&[&*known[0], &*known[1], "m", "-", "0", &*known[0]], changes].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
        let reply = lua.evaluate(SCRIPT, &keys, &words).unwrap();
        (reply[3..].iter().any(|word| word == "rules"), reply)
    };
    lua.set_time(BEGIN);
    let nothing = ["0".to_owned(), String::new()];
    let (_, known) = has_rules(&nothing, &["put", "b1f", &minute, "{}"]);
    let (told, reset) = has_rules(&known, &["reset", "1f"]);
    assert!(!told, "its maker knows them: {reset:?}");
    let (told, reply) = has_rules(&known, &[]);
    assert!(!told && reply.iter().any(|word| word == "do"), "{reply:?}");
    assert!(has_rules(&nothing, &[]).0, "a node that begins");
    let (told, _) = has_rules(&reset, &["drop", "b1f", "known"]);
    assert!(told && has_rules(&known, &[]).0 && has_rules(&reset, &[]).0);
    // A version that is not known to be of these rules.
    lua.empty();
    lua.set_time(BEGIN + SECOND);
    let (told, _) = has_rules(&known, &["keep", "b1f", &minute, "1", "{}", "seen"]);
    assert!(told);
}

/// A node that knows a later version of another history may not know these rules.
#[test]
fn rules_are_told_to_a_node_that_comes_from_another_history() {
    let (old, new) = (Server::new(), Server::new());
    let minute = (60 * SECOND).to_string();
    let before = reply(&old, BEGIN, 0, &[]);
    reply(&new, BEGIN + SECOND, 0, &["put", "b1f", &minute, "{}"]);
    let known = reply(&old, BEGIN + 2 * SECOND, 0, &["reset", "2f"]);
    assert_ne!(before[0], known[0]);
    let ask = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
        new.evaluate(SCRIPT, &keys, &words).unwrap()
    };
    new.set_time(BEGIN + 3 * SECOND);
    let knows = |mark: &str, change: &[&str]| {
        ask(&[&[&*known[0], &*known[1], mark, "-", &*known[0], &*known[0]], change].concat())
    };
    assert_eq!(knows("m", &[]), ["lost"]);
    let told = knows("n", &["seen"]);
    assert!(told.contains(&"b1f".to_owned()), "{told:?}");
}

/// A rule that was ended does not come back by a node that was away, whoever tells first.
#[test]
fn a_rule_that_is_gone_is_not_told_back() {
    let minute = (60 * SECOND).to_string();
    let date = |micros: u64| (BEGIN + micros).to_string();
    let (gone, dropped) = (["gone", "b1f", &*date(200)], ["drop", "b1f", "known"]);
    let put = ["put", "b1f", &*minute, "{}"];
    let told = |made: &str| ["keep", "b1f", &*minute, made, "{}"].map(str::to_owned);
    let (keep, keep_later) = (told(&date(100)), told(&date(300)));
    fn words(words: &[String; 5]) -> Vec<&str> {
        words.iter().map(|word| &**word).collect()
    }
    let rule = [("b1f".to_owned(), 60 * SECOND)];
    for changes in [[gone.to_vec(), words(&keep)], [words(&keep), gone.to_vec()]] {
        let lua = Server::new();
        for change in changes {
            ask(&lua, BEGIN, &change);
        }
        assert_eq!(ask(&lua, BEGIN, &[]), []);
        assert_eq!(ask(&lua, BEGIN, &words(&keep_later)), rule, "it was made afterwards");
        assert_eq!(ask(&lua, BEGIN, &dropped), []);
        assert_eq!(ask(&lua, BEGIN, &words(&keep_later)), [], "an operator ended it");
        assert_eq!(ask(&lua, BEGIN, &put), rule, "made now");
        assert_eq!(ask(&lua, BEGIN, &dropped), []);
        assert_eq!(ask(&lua, BEGIN, &put), rule);
        assert_eq!(ask(&lua, BEGIN, &["drop", "b1f", "-"]), []);
        assert_eq!(ask(&lua, BEGIN, &words(&keep_later)), []);
        // After so long no node tells it any more.
        let month = BEGIN + 32 * 24 * HOUR;
        assert_eq!(ask(&lua, month, &["drop", "o2f", "known"]), []);
        assert_eq!(ask(&lua, month, &words(&keep_later)), rule);
    }
}

/// The store remembers no more of them than a node tells, and takes rules all the same.
#[test]
fn rules_that_are_gone_fill_no_store() {
    let lua = Server::new();
    let (minute, now) = ((60 * SECOND).to_string(), BEGIN.to_string());
    for node in 0..3 {
        let names: Vec<String> = (0..1_000).map(|n| format!("b{node}{n:x}")).collect();
        let words: Vec<&str> = names.iter().flat_map(|name| ["gone", &**name, &*now]).collect();
        ask(&lua, BEGIN, &words);
    }
    let Some((Kept::Hash(rules), _)) = lua.get("rules") else { panic!() };
    assert!((1_000..1_010).contains(&rules.len()), "{}", rules.len());
    // The latest are remembered.
    let (later, made) = ((BEGIN + 9).to_string(), (BEGIN + 5).to_string());
    ask(&lua, BEGIN, &["gone", "bffee", &later]);
    assert_eq!(ask(&lua, BEGIN, &["keep", "bffee", &minute, &made, "{}"]), []);
    // An operator may end a rule that only nodes know which are away: the store has lost it.
    for (name, is_known) in [("baaaa", "known"), ("baaab", "-")] {
        ask(&lua, BEGIN + 9, &["drop", name, is_known]);
        let kept = ask(&lua, BEGIN + 9, &["keep", name, &minute, &made, "{}"]);
        assert_eq!(kept, [], "{is_known}");
    }
    assert_eq!(ask(&lua, BEGIN, &["put", "b1f", &minute, "{}"]).len(), 1);
}

/// A thousand rules that are gone, the first of them `b0` and each a microsecond after the one before.
fn thousand_gone(lua: &Server) {
    let ends: Vec<_> = (0..1_000).map(|n| (format!("b{n:x}"), (BEGIN + n).to_string())).collect();
    let words: Vec<&str> = ends.iter().flat_map(|(name, at)| ["gone", &**name, &**at]).collect();
    ask(lua, BEGIN, &words);
}

#[test]
fn of_rules_that_were_removed_twice_the_latest_time_counts() {
    let lua = Server::new();
    thousand_gone(&lua);
    let minute = (60 * SECOND).to_string();
    let [middle, late] = [5, 9].map(|seconds| (BEGIN + seconds * SECOND).to_string());
    ask(&lua, BEGIN, &["gone", "bffff", &middle, "gone", "b0", &late, "seen"]);
    assert_eq!(ask(&lua, BEGIN, &["keep", "b0", &minute, &middle, "{}"]), []);
    let first = (BEGIN - 1).to_string();
    assert_eq!(ask(&lua, BEGIN, &["keep", "b1", &minute, &first, "{}"]).len(), 1);
    assert_eq!(ask(&lua, BEGIN, &["keep", "b2", &minute, &first, "{}"]).len(), 1, "b2 is kept");
}

#[test]
fn rules_that_are_back_leave_room_for_those_that_are_gone() {
    let lua = Server::new();
    thousand_gone(&lua);
    let (minute, late) = ((60 * SECOND).to_string(), (BEGIN + SECOND).to_string());
    let names: Vec<String> = (0..150).map(|n| format!("b{:x}", 900 + n)).collect();
    let (back, gone) = names.split_at(100);
    let gone = gone.iter().flat_map(|name| ["gone", &**name, &*late]);
    let back = back.iter().flat_map(|name| ["keep", &**name, &*minute, &*late, "{}"]);
    let words: Vec<&str> = gone.chain(back).collect();
    assert_eq!(ask(&lua, BEGIN, &words).len(), 100);
    let Some((Kept::Hash(rules), _)) = lua.get("rules") else { panic!() };
    assert_eq!(rules.keys().filter(|field| field.starts_with("gb")).count(), 950);
}

/// Each unban ends a rule, whether there was one or not; and so does each end of an override.
#[test]
fn ends_of_rules_that_nobody_knows_have_no_rule_forgotten() {
    let minute = (60 * SECOND).to_string();
    for (flood, other) in [("b", "o"), ("o", "b")] {
        let lua = Server::new();
        let [known, lost, unknown] = ["1f", "2f", "3f"].map(|key| format!("{other}{key}"));
        ask(&lua, BEGIN, &["put", &known, &minute, "{}"]);
        // Of the others only nodes know that are away; and of the second the node that ends it.
        let ends = [&*known, &lost].into_iter().flat_map(|name| ["drop", name, "known"]);
        let ends: Vec<&str> = ends.chain(["drop", &unknown, "-"]).collect();
        ask(&lua, BEGIN, &ends);
        let ruled = || {
            let Some((Kept::Hash(rules), _)) = lua.get("rules") else { panic!() };
            (rules["ruled"].clone(), rules.len())
        };
        let (before, _) = ruled();
        for n in 0..1_100 {
            reply(&lua, BEGIN + SECOND, 0, &["drop", &format!("{flood}{n:x}"), "-"]);
        }
        let (after, fields) = ruled();
        if flood == "b" {
            assert_eq!(after, before, "no node is told all rules for it");
        }
        assert!(fields < 110, "{fields}");
        for name in [&known, &lost, &unknown] {
            let made = BEGIN.to_string();
            let kept = ask(&lua, BEGIN + SECOND, &["keep", name, &minute, &made, "{}"]);
            assert_eq!(kept, [], "{name}");
        }
    }
}

/// Two nodes were away. The second tells it after many other ends.
#[test]
fn an_end_of_a_rule_that_a_node_turns_out_to_know_is_one_that_is_known() {
    let lua = Server::new();
    let (minute, made) = ((60 * SECOND).to_string(), BEGIN.to_string());
    let keep = ["keep", "b1f", &minute, &made, "{}"];
    ask(&lua, BEGIN + SECOND, &["drop", "b1f", "-"]);
    assert_eq!(ask(&lua, BEGIN + SECOND, &keep), []);
    for n in 0..200 {
        reply(&lua, BEGIN + 2 * SECOND, 0, &["drop", &format!("b9{n:x}"), "-"]);
    }
    assert_eq!(ask(&lua, BEGIN + 2 * SECOND, &keep), []);
}

#[test]
fn a_time_that_no_store_can_have_told_ends_and_replaces_no_rule() {
    let lua = Server::new();
    let minute = (60 * SECOND).to_string();
    let far = (BEGIN + 21 * 366 * 24 * HOUR).to_string();
    let made = reply(&lua, BEGIN, 0, &["put", "b1f", &minute, "{\"a\":1}"]);
    ask(&lua, BEGIN, &["gone", "b1f", &far, "keep", "b1f", &minute, &far, "{}", "seen"]);
    let told = reply(&lua, BEGIN, 0, &[]);
    assert_eq!(told[3..], made[3..]);
}

/// The clock of the store jumps, or another program removes a rule: nodes have it still, and an operator ends it there.
#[test]
fn an_end_reaches_nodes_that_have_a_rule_which_the_store_has_not() {
    let minute = (60 * SECOND).to_string();
    let rules = |lua: &Server, known: &[String], changes: &[&str]| {
        let words = [&[&*known[0], &*known[1], "n", "-", "0", &*known[0]], changes].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
        let reply = lua.evaluate(SCRIPT, &keys, &words).unwrap();
        (reply.contains(&"rules".to_owned()), reply.contains(&"rule".to_owned()))
    };
    let cases = [
        ("b1f", false, "-"),
        ("b1f", false, "known"),
        ("b1f", true, "known"),
        ("o1f", true, "known"),
        ("o1f", true, "-"),
    ];
    for (name, is_removed, is_known) in cases {
        let lua = Server::new();
        let known = reply(&lua, BEGIN, 0, &["put", name, &minute, "{}"]);
        match is_removed {
            true => {
                let Some((Kept::Hash(mut kept), _)) = lua.get("rules") else { panic!() };
                kept.remove(name).unwrap();
                lua.put("rules", Kept::Hash(kept));
            }
            false => lua.set_time(BEGIN + HOUR),
        }
        assert_eq!(rules(&lua, &known, &[]), (false, false), "nothing is known to have changed");
        let told = rules(&lua, &known, &["drop", name, is_known]);
        assert_eq!(told, (true, false), "who ends it: {name} {is_removed} {is_known}");
        let others = rules(&lua, &known, &[]);
        assert_eq!(others, (true, false), "others: {name} {is_removed} {is_known}");
    }
}

/// The clock of another store was an hour ahead. A store that has an older state again is told the rule as it was made last.
#[test]
fn a_rule_is_made_later_than_what_it_replaces() {
    let minute = (60 * SECOND).to_string();
    let ahead = (BEGIN + HOUR).to_string();
    let (gone, keep) = (["gone", "b1f", &*ahead], ["keep", "b1f", &*minute, &*ahead, "{}"]);
    let (put, dropped) = (["put", "b1f", &*minute, "{\"a\":1}"], ["drop", "b1f", "known"]);
    let rule = |reply: &[String]| {
        let at = reply.iter().position(|word| word == "rule").unwrap();
        (reply[at + 3].clone(), reply[at + 4].clone())
    };
    let cases = [
        (vec![], 0),
        (gone.to_vec(), HOUR),
        ([&keep[..], &dropped].concat(), HOUR),
        ([&keep[..], &put, &dropped].concat(), HOUR),
        (keep.to_vec(), HOUR),
    ];
    for (before, later) in cases {
        let lua = Server::new();
        ask(&lua, BEGIN, &[&before[..], &["seen"]].concat());
        let older = lua.get("rules").unwrap().0;
        let (made, text) = rule(&reply(&lua, BEGIN, 0, &put));
        assert!(made.parse::<u64>().unwrap() >= BEGIN + later, "{before:?}: {made}");
        lua.put("rules", older);
        let again = reply(&lua, BEGIN, 0, &["keep", "b1f", &minute, &made, &text, "seen"]);
        assert_eq!(rule(&again), (made, text), "{before:?}");
    }
}

/// So many can only be there after nodes have told two histories.
#[test]
fn a_rule_is_replaced_though_there_are_too_many() {
    let lua = Server::new();
    let (minute, made) = ((60 * SECOND).to_string(), BEGIN.to_string());
    let names: Vec<String> = (0..1_002).map(|n| format!("b{n:x}")).collect();
    let keep = names.iter().flat_map(|name| ["keep", &**name, &*minute, &*made, "{}"]);
    assert_eq!(ask(&lua, BEGIN, &keep.collect::<Vec<_>>()).len(), 1_002);
    assert_eq!(reply(&lua, BEGIN, 0, &["put", "o1f", &minute, "{}"]), ["full"]);
    let (later, short) = ((BEGIN + 1).to_string(), (SECOND / 2).to_string());
    ask(&lua, BEGIN, &["keep", "b0", &short, &later, "{}"]);
    let before = lua.get("rules").unwrap().0;
    assert_eq!(reply(&lua, BEGIN + SECOND, 0, &["put", "o1f", &minute, "{}"]), ["full"]);
    assert_eq!(lua.get("rules").unwrap().0, before, "also not what has ended");
    let told = reply(&lua, BEGIN, 0, &["put", "b1f", &minute, "{\"a\":1}"]);
    assert!(told.contains(&"{\"a\":1}".to_owned()), "{}", told.len());
}

/// It knows the rules, and not what the process before it has done.
#[test]
fn a_store_that_has_lost_its_rules_says_so_to_a_node_that_took_over_an_older_count() {
    let lua = Server::new();
    let minute = (60 * SECOND).to_string();
    let first = reply(&lua, BEGIN, 0, &["reset", "1f"]);
    let known = reply(&lua, BEGIN, 0, &["put", "b1f", &minute, "{}", "reset", "2f"]);
    let ask = |changes: &[&str]| {
        lua.set_time(BEGIN + SECOND);
        let words = [&[&*known[0], &*known[1], "n", "-", &*known[0], &*first[0]], changes].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
        lua.evaluate(SCRIPT, &keys, &words).unwrap()
    };
    let to_do = ["do", &*known[0], &*known[0], "reset", "2f"].map(str::to_owned);
    assert_eq!(ask(&[])[3..], to_do, "what came after the older count, and no rules");
    lua.empty();
    assert_eq!(ask(&["reset", "3f"]), ["lost"]);
    assert_eq!(ask(&["keep", "b1f", &minute, "1", "{}", "seen"])[3], "rules");
}
