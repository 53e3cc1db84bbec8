//! The scripts in an interpreter of their own, on a small stand-in for the server: strings, lists, hashes and sorted sets
//! that expire, and a clock that is turned by hand. One line of a script asks what time it is.

mod sorted_set;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mlua::{Error, Function, IntoLua, Lua, Table, Value, Variadic};
use tollgate::store::redis::{Argument, Arguments, Call, ChargeReply, SCRIPT, StoreCharge};

pub use sorted_set::SortedSet;

/// What a server keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    Text(String),
    List(Vec<String>),
    Hash(BTreeMap<String, String>),
    SortedSet(SortedSet),
}

/// Commands that write nothing.
const READS: [&str; 18] = [
    "TIME",
    "TYPE",
    "GET",
    "GETRANGE",
    "LINDEX",
    "LRANGE",
    "LLEN",
    "HGET",
    "HMGET",
    "HKEYS",
    "HLEN",
    "HSTRLEN",
    "EXISTS",
    "STRLEN",
    "ZSCORE",
    "ZCARD",
    "ZRANGE",
    "ZRANGEBYSCORE",
];

#[derive(Default)]
struct Keep {
    /// Microseconds since the epoch.
    now: u64,
    kept: BTreeMap<String, (Kept, u64)>,
    writes: usize,
    /// What every command that writes is answered, if the server takes none.
    refuses_writes: Option<&'static str>,
}

/// The stand-in, with the script loaded.
pub struct Server {
    lua: Lua,
    script: Function,
    keep: Arc<Mutex<Keep>>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    pub fn new() -> Self {
        let lua = Lua::new();
        let keep = Arc::<Mutex<Keep>>::default();
        let redis = lua.create_table().unwrap();
        let inner = Arc::clone(&keep);
        let call = move |lua: &Lua, words: Variadic<Value>| {
            let words = words.iter().map(text).collect::<Vec<_>>();
            inner.lock().unwrap().call(lua, &words)
        };
        let call = lua.create_function(call).unwrap();
        redis.set("call", &call).unwrap();
        // No test has a server refuse what a script can do without.
        redis.set("pcall", call).unwrap();
        let refuse = |_: &Lua, text: String| -> mlua::Result<Table> { Err(Error::runtime(text)) };
        redis.set("error_reply", lua.create_function(refuse).unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let script = lua.load(SCRIPT).into_function().unwrap();
        Self { lua, script, keep }
    }

    pub fn set_time(&self, micros: u64) {
        self.keep.lock().unwrap().now = micros;
    }

    pub fn put(&self, key: &str, kept: Kept) {
        self.keep.lock().unwrap().kept.insert(key.to_owned(), (kept, u64::MAX));
    }

    /// What stands under a key, and when it expires.
    pub fn get(&self, key: &str) -> Option<(Kept, u64)> {
        let keep = self.keep.lock().unwrap();
        keep.kept.get(key).filter(|(_, until)| *until > keep.now).cloned()
    }

    /// From now on commands that write fail with this error, or succeed again.
    pub fn refuse_writes(&self, error: Option<&'static str>) {
        self.keep.lock().unwrap().refuses_writes = error;
    }

    /// Forgets one key.
    pub fn forget(&self, key: &str) {
        self.keep.lock().unwrap().kept.remove(key);
    }

    /// Every key that is there, and what stands under it.
    pub fn all(&self) -> Vec<(String, Kept)> {
        let keep = self.keep.lock().unwrap();
        let live = keep.kept.iter().filter(|(_, (_, until))| *until > keep.now);
        live.map(|(key, (kept, _))| (key.clone(), kept.clone())).collect()
    }

    pub fn writes(&self) -> usize {
        self.keep.lock().unwrap().writes
    }

    pub fn run(&self, arguments: &Arguments) -> Result<Vec<u64>, Error> {
        let word = |one: &Argument| match one {
            Argument::Word(word) => (*word).to_owned(),
            Argument::Number(number) => number.to_string(),
        };
        let rest: Vec<String> = arguments.argv.iter().map(word).collect();
        self.run_words(&arguments.keys, &rest)
    }

    pub fn run_words(&self, keys: &[String], rest: &[String]) -> Result<Vec<u64>, Error> {
        let globals = self.lua.globals();
        globals.set("KEYS", keys)?;
        globals.set("ARGV", rest)?;
        let reply: Vec<f64> = self.script.call(())?;
        // As a server turns a number into an integer.
        Ok(reply.into_iter().map(|number| number as u64).collect())
    }

    /// Runs another script, whose reply is a list of texts.
    pub fn evaluate(
        &self,
        script: &str,
        keys: &[String],
        rest: &[String],
    ) -> Result<Vec<String>, Error> {
        let globals = self.lua.globals();
        globals.set("KEYS", keys)?;
        globals.set("ARGV", rest)?;
        self.lua.load(script).call(())
    }

    /// Forgets everything.
    pub fn empty(&self) {
        self.keep.lock().unwrap().kept.clear();
    }

    /// Charges that go out as one call, or as several where a call does not hold them all.
    pub fn settle(&self, charges: &[StoreCharge]) -> Vec<ChargeReply> {
        let mut answered = Vec::new();
        let mut rest = charges;
        while !rest.is_empty() {
            let mut call = Call::default();
            let taken = rest.iter().take_while(|charge| call.add(charge).is_ok()).count();
            assert!(taken > 0, "a call holds any charge by itself");
            let reply = self.run(&call.arguments(9, "t", false)).unwrap();
            let answers = call.read_reply(9, &reply);
            answered.extend(
                answers.unwrap_or_else(|| {
                    panic!("{reply:?} contradicts itself: {:?}", &rest[..taken])
                }),
            );
            rest = &rest[taken..];
        }
        answered
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_str().unwrap().to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => format!("{number:.0}"),
        other => panic!("{other:?} is no argument of a command"),
    }
}

fn wrong_type() -> Error {
    Error::runtime("WRONGTYPE Operation against a key holding the wrong kind of value")
}

impl Keep {
    /// What stands under a key. What has expired is gone.
    fn live(&mut self, key: &str) -> Option<&mut Kept> {
        if self.kept.get(key).is_some_and(|(_, until)| *until <= self.now) {
            self.kept.remove(key);
        }
        self.kept.get_mut(key).map(|(kept, _)| kept)
    }

    fn made(&mut self, key: &str, fresh: Kept) -> &mut Kept {
        self.live(key);
        &mut self.kept.entry(key.to_owned()).or_insert((fresh, u64::MAX)).0
    }

    /// As a server does: what is empty is no key.
    fn drop_empty(&mut self, key: &str) {
        let empty = match self.live(key) {
            Some(Kept::List(list)) => list.is_empty(),
            Some(Kept::Hash(hash)) => hash.is_empty(),
            Some(Kept::SortedSet(set)) => set.is_empty(),
            Some(Kept::Text(_)) | None => false,
        };
        if empty {
            self.kept.remove(key);
        }
    }

    fn list(&mut self, key: &str, make: bool) -> mlua::Result<Option<&mut Vec<String>>> {
        let kept = match make {
            true => Some(self.made(key, Kept::List(Vec::new()))),
            false => self.live(key),
        };
        match kept {
            None => Ok(None),
            Some(Kept::List(list)) => Ok(Some(list)),
            Some(Kept::Text(_) | Kept::Hash(_) | Kept::SortedSet(_)) => Err(wrong_type()),
        }
    }

    fn hash(
        &mut self,
        key: &str,
        make: bool,
    ) -> mlua::Result<Option<&mut BTreeMap<String, String>>> {
        let kept = match make {
            true => Some(self.made(key, Kept::Hash(BTreeMap::new()))),
            false => self.live(key),
        };
        match kept {
            None => Ok(None),
            Some(Kept::Hash(hash)) => Ok(Some(hash)),
            Some(Kept::Text(_) | Kept::List(_) | Kept::SortedSet(_)) => Err(wrong_type()),
        }
    }

    fn sorted_set(&mut self, key: &str, make: bool) -> mlua::Result<Option<&mut SortedSet>> {
        let kept = match make {
            true => Some(self.made(key, Kept::SortedSet(SortedSet::default()))),
            false => self.live(key),
        };
        match kept {
            None => Ok(None),
            Some(Kept::SortedSet(set)) => Ok(Some(set)),
            Some(Kept::Text(_) | Kept::List(_) | Kept::Hash(_)) => Err(wrong_type()),
        }
    }

    fn call(&mut self, lua: &Lua, words: &[String]) -> mlua::Result<Value> {
        let word = words[0].as_str();
        if !READS.contains(&word) {
            if let Some(error) = self.refuses_writes {
                return Err(Error::runtime(error));
            }
            self.writes += 1;
        }
        match word {
            "TIME" => {
                let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
                vec![seconds.to_string(), micros.to_string()].into_lua(lua)
            }
            "TYPE" => {
                let kind = match self.live(&words[1]) {
                    None => "none",
                    Some(Kept::Text(_)) => "string",
                    Some(Kept::List(_)) => "list",
                    Some(Kept::Hash(_)) => "hash",
                    Some(Kept::SortedSet(_)) => "zset",
                };
                lua.create_table_from([("ok", kind)])?.into_lua(lua)
            }
            "GET" => match self.live(&words[1]) {
                Some(Kept::Text(text)) => text.clone().into_lua(lua),
                None => none(),
                Some(Kept::List(_) | Kept::Hash(_) | Kept::SortedSet(_)) => Err(wrong_type()),
            },
            "GETRANGE" => match self.live(&words[1]) {
                Some(Kept::Text(text)) => {
                    let (first, last): (usize, usize) =
                        (words[2].parse().unwrap(), words[3].parse().unwrap());
                    let end = text.len().min(last + 1);
                    text.get(first..end).unwrap_or_default().to_owned().into_lua(lua)
                }
                None => String::new().into_lua(lua),
                Some(Kept::List(_) | Kept::Hash(_) | Kept::SortedSet(_)) => Err(wrong_type()),
            },
            "STRLEN" => match self.live(&words[1]) {
                Some(Kept::Text(text)) => number(text.len()),
                None => number(0),
                Some(Kept::List(_) | Kept::Hash(_) | Kept::SortedSet(_)) => Err(wrong_type()),
            },
            "SET" => {
                let until = match words.get(3).map(String::as_str) {
                    None => u64::MAX,
                    Some("PX") => self.now + words[4].parse::<u64>().unwrap() * 1_000,
                    Some(other) => panic!("SET with {other}"),
                };
                self.kept.insert(words[1].clone(), (Kept::Text(words[2].clone()), until));
                "OK".into_lua(lua)
            }
            "EXISTS" => number(words[1..].iter().filter(|key| self.live(key).is_some()).count()),
            "DEL" | "UNLINK" => {
                let there = words[1..].iter().filter(|key| self.live(key).is_some()).count();
                words[1..].iter().for_each(|key| drop(self.kept.remove(key)));
                number(there)
            }
            "PEXPIRE" => {
                let until = self.now + words[2].parse::<u64>().unwrap() * 1_000;
                self.live(&words[1]);
                let kept = self.kept.get_mut(&words[1]);
                let there = usize::from(kept.is_some());
                if let Some((_, ends)) = kept {
                    *ends = until;
                }
                number(there)
            }
            word if word.starts_with('H') => self.call_hash(lua, words),
            word if word.starts_with('Z') => self.call_sorted_set(lua, words),
            _ => self.call_list(lua, words),
        }
    }

    fn call_list(&mut self, lua: &Lua, words: &[String]) -> mlua::Result<Value> {
        let key = words[1].as_str();
        let place = |list: &[String], n: usize| -> i64 {
            let at: i64 = words[n].parse().unwrap();
            if at < 0 { at + list.len() as i64 } else { at }
        };
        match words[0].as_str() {
            "LLEN" => number(self.list(key, false)?.map_or(0, |list| list.len())),
            "LINDEX" => {
                let Some(list) = self.list(key, false)? else { return none() };
                match usize::try_from(place(list, 2)).ok().and_then(|at| list.get(at)) {
                    Some(text) => text.clone().into_lua(lua),
                    None => none(),
                }
            }
            "LRANGE" | "LTRIM" => {
                let Some(list) = self.list(key, false)? else {
                    return Vec::<String>::new().into_lua(lua);
                };
                let (first, last) = (place(list, 2).max(0) as usize, place(list, 3));
                let end = usize::try_from(last + 1).unwrap_or(0).min(list.len());
                let part = list.get(first..end).unwrap_or_default().to_vec();
                if words[0] == "LTRIM" {
                    *list = part;
                    self.drop_empty(key);
                    return "OK".into_lua(lua);
                }
                part.into_lua(lua)
            }
            "RPUSH" => {
                let Some(list) = self.list(key, true)? else { return number(0) };
                list.extend_from_slice(&words[2..]);
                number(list.len())
            }
            "RPOP" => {
                let last = self.list(key, false)?.and_then(Vec::pop);
                self.drop_empty(key);
                match last {
                    Some(text) => text.into_lua(lua),
                    None => none(),
                }
            }
            other => Err(Error::runtime(format!("the script calls {other}"))),
        }
    }

    fn call_hash(&mut self, lua: &Lua, words: &[String]) -> mlua::Result<Value> {
        let key = words[1].as_str();
        let field = |hash: Option<&BTreeMap<String, String>>, name: &String| match hash
            .and_then(|hash| hash.get(name))
        {
            Some(text) => text.clone().into_lua(lua),
            None => none(),
        };
        match words[0].as_str() {
            "HGET" => field(self.hash(key, false)?.as_deref(), &words[2]),
            "HMGET" => {
                let hash = self.hash(key, false)?.map(|hash| &*hash);
                let found = words[2..].iter().map(|name| field(hash, name));
                found.collect::<mlua::Result<Vec<Value>>>()?.into_lua(lua)
            }
            "HKEYS" => {
                let hash = self.hash(key, false)?;
                let names = hash.into_iter().flatten().map(|(name, _)| name.clone());
                names.collect::<Vec<_>>().into_lua(lua)
            }
            "HSTRLEN" => {
                let hash = self.hash(key, false)?;
                number(hash.and_then(|hash| hash.get(&words[2])).map_or(0, String::len))
            }
            "HLEN" => number(self.hash(key, false)?.map_or(0, |hash| hash.len())),
            "HSET" => {
                let Some(hash) = self.hash(key, true)? else { return number(0) };
                let pairs = words[2..].chunks(2);
                let new =
                    pairs.filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none());
                number(new.count())
            }
            "HDEL" => {
                let hash = self.hash(key, false)?;
                let gone = hash.map_or(0, |hash| {
                    words[2..].iter().filter(|name| hash.remove(*name).is_some()).count()
                });
                self.drop_empty(key);
                number(gone)
            }
            "HINCRBY" => {
                let Some(hash) = self.hash(key, true)? else { return number(0) };
                let text = hash.entry(words[2].clone()).or_insert_with(|| "0".to_owned());
                let not_whole = || Error::runtime("ERR hash value is not an integer");
                let sum = text.parse::<i64>().map_err(|_| not_whole())?
                    + words[3].parse::<i64>().map_err(|_| not_whole())?;
                *text = sum.to_string();
                Ok(Value::Number(sum as f64))
            }
            other => Err(Error::runtime(format!("the script calls {other}"))),
        }
    }
}

impl Keep {
    fn call_sorted_set(&mut self, lua: &Lua, words: &[String]) -> mlua::Result<Value> {
        let key = words[1].as_str();
        let word = |n: usize| words[n].as_str();
        let rank = |n: usize| words[n].parse::<i64>().unwrap();
        match words[0].as_str() {
            "ZADD" => {
                let Some(set) = self.sorted_set(key, true)? else { return number(0) };
                let keeps = words[2].eq_ignore_ascii_case("NX");
                let pairs = words[2 + usize::from(keeps)..].chunks(2);
                let new = pairs.filter(|pair| {
                    let is_kept = keeps && set.score(&pair[1]).is_some();
                    !is_kept && set.add(&pair[1], pair[0].parse().unwrap())
                });
                number(new.count())
            }
            "ZSCORE" => match self.sorted_set(key, false)?.and_then(|set| set.score(word(2))) {
                Some(score) => score.to_string().into_lua(lua),
                None => none(),
            },
            "ZCARD" => number(self.sorted_set(key, false)?.map_or(0, |set| set.len())),
            "ZRANGE" => {
                let set = self.sorted_set(key, false)?;
                let found = set.map_or(Vec::new(), |set| set.by_rank(rank(2), rank(3)));
                members(lua, found, &words[4..])
            }
            "ZRANGEBYSCORE" => {
                let set = self.sorted_set(key, false)?;
                let found = set.map_or(Vec::new(), |set| set.by_score(word(2), word(3)));
                members(lua, found, &words[4..])
            }
            "ZREM" => self.remove_members(key, &words[2..]),
            "ZREMRANGEBYSCORE" => {
                let set = self.sorted_set(key, false)?;
                let found = set.map_or(Vec::new(), |set| set.by_score(word(2), word(3)));
                self.remove_members(
                    key,
                    &found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
                )
            }
            "ZREMRANGEBYRANK" => {
                let set = self.sorted_set(key, false)?;
                let found = set.map_or(Vec::new(), |set| set.by_rank(rank(2), rank(3)));
                self.remove_members(
                    key,
                    &found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
                )
            }
            other => Err(Error::runtime(format!("the script calls {other}"))),
        }
    }

    fn remove_members(&mut self, key: &str, members: &[String]) -> mlua::Result<Value> {
        let gone = self.sorted_set(key, false)?.map_or(0, |set| set.remove(members));
        self.drop_empty(key);
        number(gone)
    }
}

/// Members as a range answers them, with the words behind the range: `WITHSCORES` and `LIMIT first count`.
fn members(lua: &Lua, found: Vec<(String, f64)>, options: &[String]) -> mlua::Result<Value> {
    let (mut with_scores, mut first, mut count) = (false, 0, usize::MAX);
    let mut options = options.iter().map(String::as_str);
    while let Some(option) = options.next() {
        let mut next = || options.next().and_then(|word| word.parse().ok()).expect("a number");
        match option {
            "WITHSCORES" => with_scores = true,
            "LIMIT" => (first, count) = (next(), next()),
            other => panic!("a range with {other}"),
        }
    }
    let mut texts = Vec::new();
    for (member, score) in found.into_iter().skip(first).take(count) {
        texts.push(member);
        if with_scores {
            texts.push(score.to_string());
        }
    }
    texts.into_lua(lua)
}

fn none() -> mlua::Result<Value> {
    Ok(Value::Boolean(false))
}

fn number(count: usize) -> mlua::Result<Value> {
    Ok(Value::Number(count as f64))
}
