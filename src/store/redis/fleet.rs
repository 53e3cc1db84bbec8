//! The exchange of a fleet: nodes pass chunks of text to each other through the store, a few times a second.
//!
//! An exchange is one call. The node says that it lives, writes the chunks of its own that have changed, and reads those
//! that other nodes have written since its previous call. What a chunk says is unknown here. The script is `fleet.lua`.
//! No request waits for this.

use std::time::Duration;

use super::failure::StoreFailure;
use super::shared_store::SharedStore;
use super::slots;
use super::transport::Readiness;
use crate::clock::Nanos;
use crate::limit::MICROSECOND;

/// The script that keeps the chunks.
const SCRIPT: &str = include_str!("fleet.lua");

/// The hash tag that keeps the chunks of a deployment in one slot.
const HASH_TAG: &str = "fleet";

/// The largest number of chunks that an exchange writes, and that it reads. The server is busy with them for a millisecond
/// or two.
pub const MAX_FLEET_CHUNKS: usize = 256;

/// The longest text of a chunk, in bytes.
pub const MAX_FLEET_TEXT: usize = 65_536;

/// The longest mark of a history. The script writes 16 hex digits.
const MAX_MARK: usize = 64;

/// The largest sequence number: numbers of the script are exact up to here.
const MAX_SEQUENCE: u64 = 1 << 52;

const MICROS_PER_MILLI: u64 = 1_000;

/// The latest time that a store may tell, in microseconds since the epoch: the year 2200. Sums of later times and spans would end
/// at the largest number, where time stands still.
pub(super) const MAX_TIME: u64 = 7_258_118_400 * 1_000_000;

/// Where a node has read up to. The default has read nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCursor {
    /// The history of the store; empty in the default.
    mark: String,
    /// The number of the latest write that was read.
    sequence: u64,
    /// The store's time of the latest exchange, in microseconds. A store that does not know of this exchange has lost writes.
    at: u64,
}

impl FleetCursor {
    /// Whether nothing was read yet.
    pub fn is_start(&self) -> bool {
        *self == Self::default()
    }

    /// Whether both are of one history of a store, which may have lost writes in between.
    pub fn has_mark_of(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

#[cfg(feature = "bin")]
impl FleetCursor {
    /// A cursor behind the write of this number, of a channel with a single history.
    pub(crate) fn behind(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// The number of the latest write that was read; zero: none.
    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// A chunk of what a node publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetChunk {
    /// Its number. A chunk replaces the one of the same node and number.
    pub number: u16,
    /// What other nodes read, at most [`MAX_FLEET_TEXT`] bytes. An empty text deletes the chunk. Nodes that have read it are
    /// not told.
    pub text: String,
    /// How long it can be read, at most 366 days.
    pub lifetime: Nanos,
}

/// What a node tells the store and asks it.
#[derive(Clone, Copy, Debug)]
pub struct FleetQuestion<'q> {
    /// The node. No other node has this number.
    pub node: u64,
    /// The cursor of the previous [`FleetNews`].
    pub cursor: &'q FleetCursor,
    /// Chunks to write, at most [`MAX_FLEET_CHUNKS`]. The order is kept.
    pub chunks: &'q [FleetChunk],
    /// A node that is not heard for this long does not count any more.
    pub liveness: Nanos,
    /// The largest number of bytes of texts to read. A first text that is longer is read nevertheless.
    pub max_bytes: usize,
    /// Whether the node ends: it does not count any more. Its chunks stay for their lifetimes.
    pub leaves: bool,
    /// The longest time that the reply may take.
    pub timeout: Duration,
}

/// A chunk of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedChunk {
    /// The node that wrote it.
    pub node: u64,
    /// Its number.
    pub number: u16,
    /// What the node wrote.
    pub text: String,
}

/// What the store tells a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNews {
    /// The store's time, since the epoch.
    pub at: Nanos,
    /// The cursor of the next exchange.
    pub cursor: FleetCursor,
    /// Whether more can be read at once.
    pub has_more: bool,
    /// How many nodes are live, this one included unless it leaves.
    pub nodes: u32,
    /// The store has another history than the one of the question's cursor, or has lost writes: everything has to be
    /// published again, and everything that other nodes have published is read again, beginning with this reply.
    pub is_new_history: bool,
    /// What other nodes have written, in the order of their writes.
    pub chunks: Vec<ReceivedChunk>,
}

impl SharedStore {
    /// Whether the server that carries the exchange answers, as far as is known.
    pub fn carries_fleet(&self) -> bool {
        self.batcher().transport.readiness(self.fleet_slot()) != Readiness::Away
    }

    fn fleet_slot(&self) -> u16 {
        if self.batcher().has_slots { slots::hash_slot(HASH_TAG.as_bytes()) } else { 0 }
    }

    /// Says that a node lives, writes its chunks, and reads those of other nodes.
    ///
    /// # Errors
    /// [`StoreFailure`]. After a failure that [may have charged](StoreFailure::may_have_charged), the chunks may have been
    /// written; to write them again does no harm. [`StoreFailure::Refused`]: there are too many chunks, a text is too long,
    /// or the server refused the call.
    pub async fn exchange_fleet(
        &self,
        question: FleetQuestion<'_>,
    ) -> Result<FleetNews, StoreFailure> {
        let is_too_long = |chunk: &FleetChunk| chunk.text.len() > MAX_FLEET_TEXT;
        if question.chunks.len() > MAX_FLEET_CHUNKS || question.chunks.iter().any(is_too_long) {
            return Err(StoreFailure::Refused);
        }
        let batcher = self.batcher();
        let names = ["nodes", "order", "texts", "ends", "state"];
        let keys = names.map(|name| format!("{}:{{{HASH_TAG}}}:{name}", batcher.prefix));
        let slot = self.fleet_slot();
        let (arguments, timeout) = (question.arguments(), question.timeout);
        let reply = batcher.transport.evaluate(slot, SCRIPT, &keys, &arguments, timeout).await?;
        parse_news(reply, question).ok_or(StoreFailure::Invalid)
    }
}

impl FleetQuestion<'_> {
    fn arguments(&self) -> Vec<String> {
        let FleetCursor { mark, sequence, at } = self.cursor;
        let mark = if mark.is_empty() { "-" } else { mark };
        // It only has to differ from the marks of other histories.
        let new_mark = format!("{:016x}", fastrand::u64(..));
        let mut arguments = vec![
            format!("{:016x}", self.node),
            new_mark,
            mark.to_owned(),
            sequence.to_string(),
            (at / MICROS_PER_MILLI).to_string(),
            millis(self.liveness).to_string(),
            self.max_bytes.to_string(),
            if self.leaves { "leave" } else { "stay" }.to_owned(),
        ];
        for FleetChunk { number, text, lifetime } in self.chunks {
            arguments.extend([number.to_string(), millis(*lifetime).to_string(), text.clone()]);
        }
        arguments
    }
}

/// A span in milliseconds, rounded up, so that no lifetime becomes zero.
fn millis(span: Nanos) -> u64 {
    span.get().div_ceil(Nanos::from_millis(1).get())
}

/// Reads a reply. `None`: its first words make no sense. A chunk that makes no sense is left out.
fn parse_news(reply: Vec<String>, question: FleetQuestion<'_>) -> Option<FleetNews> {
    let known = question.cursor;
    let mut words = reply.into_iter();
    let at = words.next()?.parse().ok().filter(|at| *at <= MAX_TIME)?;
    let mark = words.next().filter(|mark| is_mark(mark))?;
    let sequence = words.next()?.parse().ok().filter(|sequence| *sequence <= MAX_SEQUENCE)?;
    let has_more = flag(&words.next()?, "more")?;
    let nodes = words.next()?.parse().ok()?;
    let is_anew = flag(&words.next()?, "anew")?;
    let is_new_history = is_anew || mark != known.mark || sequence < known.sequence;
    // A reply that says "more" has read something. Otherwise a node would ask without end.
    if has_more && !is_new_history && sequence == known.sequence {
        return None;
    }
    Some(FleetNews {
        at: MICROSECOND.saturating_mul(at),
        cursor: FleetCursor { mark, sequence, at },
        has_more,
        nodes,
        is_new_history,
        chunks: read_chunks(words, question),
    })
}

fn is_mark(mark: &str) -> bool {
    (1..=MAX_MARK).contains(&mark.len()) && mark.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn flag(word: &str, set: &str) -> Option<bool> {
    (word == set || word == "-").then_some(word == set)
}

fn read_chunks(
    mut words: impl Iterator<Item = String>,
    question: FleetQuestion<'_>,
) -> Vec<ReceivedChunk> {
    let max_bytes = question.max_bytes.saturating_add(MAX_FLEET_TEXT);
    let (mut chunks, mut bytes) = (Vec::new(), 0_usize);
    while let (Some(member), Some(text)) = (words.next(), words.next()) {
        bytes = bytes.saturating_add(text.len());
        if bytes > max_bytes || chunks.len() == MAX_FLEET_CHUNKS {
            break;
        }
        let is_text = (1..=MAX_FLEET_TEXT).contains(&text.len());
        if let Some((node, number)) = parse_member(&member)
            && node != question.node
            && is_text
        {
            chunks.push(ReceivedChunk { node, number, text });
        }
    }
    chunks
}

/// The node and the number of a chunk, if they are spelt as the script spells them.
fn parse_member(member: &str) -> Option<(u64, u16)> {
    let (node, number) = member.split_once(':')?;
    let (node, number) = (u64::from_str_radix(node, 16).ok()?, number.parse::<u16>().ok()?);
    (format!("{node:016x}:{number}") == member).then_some((node, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> FleetCursor {
        FleetCursor { mark: "5f".to_owned(), sequence: 7, at: 1_000 }
    }

    fn question(cursor: &FleetCursor) -> FleetQuestion<'_> {
        FleetQuestion {
            node: 1,
            cursor,
            chunks: &[],
            liveness: Nanos::from_secs(3),
            max_bytes: 10,
            leaves: false,
            timeout: Duration::from_secs(1),
        }
    }

    fn news_of(words: &[&str]) -> Option<FleetNews> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        parse_news(words, question(&known()))
    }

    /// A valid head, and what follows it.
    fn chunks_of(words: &[&str]) -> Vec<(u64, u16, usize)> {
        let words = [&["2000", "5f", "9", "-", "2", "-"], words].concat();
        let chunks = news_of(&words).unwrap().chunks.into_iter();
        chunks.map(|chunk| (chunk.node, chunk.number, chunk.text.len())).collect()
    }

    #[test]
    fn a_question_is_written_as_the_script_reads_it() {
        let chunks =
            [FleetChunk { number: 65_535, text: "a b".to_owned(), lifetime: Nanos::new(1) }];
        let cursor = FleetCursor { at: 1_234_567, ..known() };
        let mut words = FleetQuestion { chunks: &chunks, ..question(&cursor) }.arguments();
        assert_eq!(words.remove(1).len(), 16);
        let expected =
            ["0000000000000001", "5f", "7", "1234", "3000", "10", "stay", "65535", "1", "a b"];
        assert_eq!(words, expected);
        let first = FleetQuestion { leaves: true, ..question(&FleetCursor::default()) }.arguments();
        assert_eq!(first[2..], ["-", "0", "0", "3000", "10", "leave"]);
    }

    #[test]
    fn a_reply_is_read_as_the_script_writes_it() {
        let member = "00000000000000ff:3";
        let news = news_of(&["2000", "5f", "9", "more", "2", "-", member, "t"]).unwrap();
        let expected = FleetNews {
            at: Nanos::new(2_000_000),
            cursor: FleetCursor { mark: "5f".to_owned(), sequence: 9, at: 2_000 },
            has_more: true,
            nodes: 2,
            is_new_history: false,
            chunks: vec![ReceivedChunk { node: 255, number: 3, text: "t".to_owned() }],
        };
        assert_eq!(news, expected);
    }

    #[test]
    fn another_history_is_noticed() {
        let is_new = |words: &[&str]| news_of(words).unwrap().is_new_history;
        assert!(!is_new(&["1", "5f", "7", "-", "1", "-"]));
        assert!(is_new(&["1", "60", "9", "-", "1", "-"]));
        assert!(is_new(&["1", "5f", "9", "-", "1", "anew"]));
        assert!(is_new(&["1", "5f", "6", "-", "1", "-"]));
        assert!(is_new(&["1", "5f", "6", "more", "1", "anew"]));
    }

    #[test]
    fn a_reply_whose_first_words_make_no_sense_is_refused() {
        let long = "5".repeat(MAX_MARK + 1);
        let bad = [
            &[][..],
            &["2000", "5f", "9", "-", "2"],
            &["-1", "5f", "9", "-", "2", "-"],
            &["x", "5f", "9", "-", "2", "-"],
            &["99999999999999999999", "5f", "9", "-", "2", "-"],
            &["2000", "", "9", "-", "2", "-"],
            &["2000", "5 f", "9", "-", "2", "-"],
            &["2000", &long, "9", "-", "2", "-"],
            &["2000", "5f", "4503599627370497", "-", "2", "-"],
            &["2000", "5f", "9", "yes", "2", "-"],
            &["2000", "5f", "9", "-", "4294967296", "-"],
            &["2000", "5f", "9", "-", "2", ""],
            // It says "more", but has read nothing.
            &["2000", "5f", "7", "more", "2", "-"],
        ];
        for words in bad {
            assert_eq!(news_of(words), None, "{words:?}");
        }
        let largest = MAX_TIME.to_string();
        let news = news_of(&[&largest, "5f", "4503599627370496", "more", "4294967295", "-"]);
        assert_eq!(news.unwrap().at, Nanos::from_secs(7_258_118_400));
        let later = (MAX_TIME + 1).to_string();
        assert_eq!(news_of(&[&later, "5f", "9", "-", "2", "-"]), None);
    }

    #[test]
    fn a_chunk_that_makes_no_sense_is_left_out() {
        let good = "00000000000000ff:3";
        let bad = [
            "",
            ":",
            "ff:3",
            "00000000000000FF:3",
            "+0000000000000ff:3",
            "00000000000000ff",
            "00000000000000ff:",
            "00000000000000ff:03",
            "00000000000000ff:+3",
            "00000000000000ff:65536",
            "00000000000000ff:3:4",
            "000000000000000ff:3",
            // The node that asks.
            "0000000000000001:3",
        ];
        for member in bad {
            assert_eq!(chunks_of(&[member, "t", good, "t"]), [(255, 3, 1)], "{member}");
        }
        assert_eq!(chunks_of(&[good, "", good, "t", good]), [(255, 3, 1)]);
    }

    #[test]
    fn more_than_was_asked_for_is_left_out() {
        let (member, longest) = ("00000000000000ff:3", "x".repeat(MAX_FLEET_TEXT));
        let longer = format!("{longest}x");
        assert_eq!(chunks_of(&[member, &longest]), [(255, 3, MAX_FLEET_TEXT)]);
        assert_eq!(chunks_of(&[member, &longer]), []);
        let read = chunks_of(&[member, &longest, member, "0123456789", member, "x"]);
        assert_eq!(read, [(255, 3, MAX_FLEET_TEXT), (255, 3, 10)]);
        assert_eq!(chunks_of(&[member, "t"].repeat(300)).len(), MAX_FLEET_CHUNKS);
    }
}
