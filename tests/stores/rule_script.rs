//! The script that keeps the rules of operators, on a clock that is turned by hand: rules end when they should, also when the
//! clock of the store is set back.

use support::lua::Server;

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
    let words: Vec<String> =
        [&["0", "", "m", "all", &*told], changes].concat().into_iter().map(str::to_owned).collect();
    let keys = ["rules", "changes", "at", "of", "over", "time"].map(str::to_owned);
    lua.evaluate(SCRIPT, &keys, &words).unwrap()
}

/// The fields and the rests, in microseconds, of all rules.
fn ask(lua: &Server, now: u64, changes: &[&str]) -> Vec<(String, u64)> {
    let reply = reply(lua, now, 0, changes);
    let rules = reply[2..].chunks(4).filter(|words| words[0] == "rule");
    rules.map(|words| (words[1].clone(), words[2].parse().unwrap())).collect()
}

#[test]
fn a_rule_ends_after_its_time_also_when_the_clock_is_set_back() {
    let lua = Server::new();
    let minute = (60 * SECOND).to_string();
    let left = |seconds: u64| vec![("b1f".to_owned(), seconds * SECOND)];
    assert_eq!(ask(&lua, BEGIN, &["put", "b1f", &minute, "1", "{}"]), left(60));
    assert_eq!(ask(&lua, BEGIN + 10 * SECOND, &[]), left(50));
    // The time stands still until the first question after it, and goes on from there.
    let back = BEGIN - HOUR;
    assert_eq!(ask(&lua, back, &[]), left(50));
    assert_eq!(ask(&lua, back + 20 * SECOND, &[]), left(30));
    let next = ask(&lua, back + 30 * SECOND, &["put", "o1f", &minute, "1", "{}"]);
    assert_eq!(next, [left(20), vec![("o1f".to_owned(), 60 * SECOND)]].concat());
    assert_eq!(ask(&lua, back + 50 * SECOND, &[]), [("o1f".to_owned(), 40 * SECOND)]);
    assert_eq!(ask(&lua, back - HOUR, &[]), [("o1f".to_owned(), 40 * SECOND)], "no new life");
}

#[test]
fn a_time_that_another_program_wrote_ends_no_rule() {
    let minute = (60 * SECOND).to_string();
    for text in ["99999999999999999999 0", "1800000000000000 99999999999999", "x"] {
        let lua = Server::new();
        lua.put("time", support::lua::Kept::Text(text.to_owned()));
        let rules = ask(&lua, BEGIN, &["put", "b1f", &minute, "1", "{}"]);
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
    assert_eq!(told[2..], ["do", &*told[0], "reset", "2f"].map(str::to_owned));
    let after = version(&reply(&lua, BEGIN - HOUR, 0, &["reset", "3f"]));
    assert!(after > version(&told));
}

#[test]
fn a_version_that_another_program_wrote_hides_no_change() {
    for text in ["4503599627370495", "1810000000000000", "99999999999999999999", "-1", "x"] {
        let lua = Server::new();
        let hash = [("version".to_owned(), text.to_owned())].into();
        lua.put("rules", support::lua::Kept::Hash(hash));
        let before: u64 = reply(&lua, BEGIN, 0, &[])[0].parse().unwrap();
        let told = reply(&lua, BEGIN, before, &["reset", "1f"]);
        let after: u64 = told[0].parse().unwrap();
        assert!(before < BEGIN + HOUR && after < BEGIN + HOUR, "{text}: {before} {after}");
        assert_eq!(told[2..], ["do", &*told[0], "reset", "1f"].map(str::to_owned), "{text}");
    }
}
