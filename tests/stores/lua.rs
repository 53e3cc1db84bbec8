//! The script in an interpreter of its own, on a small stand-in for the server: strings and lists
//! that expire, and a clock that is turned by hand. One line of the script asks what time it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mlua::{Error, Function, IntoLua, Lua, Table, Value, Variadic};
use tollgate::store::redis::{Answered, Argument, Arguments, Call, Charge, SCRIPT};

/// What a server keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    Text(String),
    List(Vec<String>),
}

#[derive(Default)]
struct Keep {
    /// Microseconds since the epoch.
    now: u64,
    kept: HashMap<String, (Kept, u64)>,
    writes: usize,
}

/// The stand-in, with the script loaded.
pub struct Server {
    lua: Lua,
    script: Function,
    keep: Arc<Mutex<Keep>>,
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
        redis.set("call", lua.create_function(call).unwrap()).unwrap();
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

    pub fn writes(&self) -> usize {
        self.keep.lock().unwrap().writes
    }

    pub fn run(&self, arguments: &Arguments) -> Result<Vec<u64>, Error> {
        let word = |one: &Argument| match one {
            Argument::Word(word) => (*word).to_owned(),
            Argument::Number(number) => number.to_string(),
        };
        let rest: Vec<String> = arguments.rest.iter().map(word).collect();
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

    /// Forgets everything.
    pub fn empty(&self) {
        self.keep.lock().unwrap().kept.clear();
    }

    /// Charges that go out as one call.
    pub fn settle(&self, charges: &[Charge]) -> Vec<Answered> {
        let mut call = Call::default();
        for charge in charges {
            call.add(charge).unwrap();
        }
        let reply = self.run(&call.arguments(9, "t", false)).unwrap();
        call.answers(9, &reply)
            .unwrap_or_else(|| panic!("{reply:?} contradicts itself: {charges:?}"))
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

impl Keep {
    fn list(&mut self, key: &str) -> mlua::Result<&mut Vec<String>> {
        let (kept, _) = self.live(key);
        match kept {
            Kept::List(list) => Ok(list),
            Kept::Text(_) => Err(Error::runtime("WRONGTYPE")),
        }
    }

    fn live(&mut self, key: &str) -> &mut (Kept, u64) {
        if self.kept.get(key).is_some_and(|(_, until)| *until <= self.now) {
            self.kept.remove(key);
        }
        self.kept.entry(key.to_owned()).or_insert((Kept::List(Vec::new()), u64::MAX))
    }

    fn call(&mut self, lua: &Lua, words: &[String]) -> mlua::Result<Value> {
        let word = |n: usize| words[n].as_str();
        let place = |list: &[String], n: usize| -> i64 {
            let at: i64 = words[n].parse().unwrap();
            if at < 0 { at + list.len() as i64 } else { at }
        };
        if !["TIME", "GET", "LINDEX", "LRANGE", "LLEN"].contains(&word(0)) {
            self.writes += 1;
        }
        let none = || Ok(Value::Boolean(false));
        match word(0) {
            "TIME" => {
                let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
                vec![seconds.to_string(), micros.to_string()].into_lua(lua)
            }
            "GET" => match &self.live(word(1)).0 {
                Kept::Text(text) => text.clone().into_lua(lua),
                Kept::List(list) if list.is_empty() => none(),
                Kept::List(_) => Err(Error::runtime("WRONGTYPE")),
            },
            "SET" => {
                assert_eq!(word(3), "PX");
                let until = self.now + words[4].parse::<u64>().unwrap() * 1_000;
                self.kept.insert(words[1].clone(), (Kept::Text(words[2].clone()), until));
                "OK".into_lua(lua)
            }
            "DEL" => Ok(Value::Integer(i64::from(self.kept.remove(word(1)).is_some()))),
            "LLEN" => Ok(Value::Integer(self.list(word(1))?.len() as i64)),
            "LINDEX" => {
                let list = self.list(word(1))?;
                let at = place(list, 2);
                match usize::try_from(at).ok().and_then(|at| list.get(at)) {
                    Some(text) => text.clone().into_lua(lua),
                    None => none(),
                }
            }
            "LRANGE" | "LTRIM" => {
                let list = self.list(word(1))?;
                let (first, last) = (place(list, 2).max(0) as usize, place(list, 3));
                let end = usize::try_from(last + 1).unwrap_or(0).min(list.len());
                let part = list.get(first..end).unwrap_or_default().to_vec();
                if word(0) == "LTRIM" {
                    *list = part;
                    return "OK".into_lua(lua);
                }
                part.into_lua(lua)
            }
            "RPUSH" => {
                self.list(word(1))?.extend_from_slice(&words[2..]);
                Ok(Value::Integer(1))
            }
            "RPOP" => match self.list(word(1))?.pop() {
                Some(text) => text.into_lua(lua),
                None => none(),
            },
            "PEXPIRE" => {
                let until = self.now + words[2].parse::<u64>().unwrap() * 1_000;
                self.live(word(1)).1 = until;
                Ok(Value::Integer(1))
            }
            other => Err(Error::runtime(format!("the script calls {other}"))),
        }
    }
}
