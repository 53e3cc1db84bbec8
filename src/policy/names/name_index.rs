//! Finds the pieces of a query or of `Cookie` lines that may have a name, without reading all pieces for each name.
//!
//! The index only preselects, by a hash in which all spellings of a name are equal; [`spelling`] decides. What always
//! holds: a piece that some origin may read as one of a name is found for that name, and pieces are found in order.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;

use super::pieces::{Piece, Position, Syntax};
use super::spelling::{self, NameHash};
use crate::policy::unreadable::Unreadable;
use crate::policy::work_budget::WorkBudget;

/// So many names are looked for by reading all pieces. Most policies name fewer, and for these an index costs more than it
/// saves.
const MAX_READS: u32 = 4;

/// The units of work of an entry of the index, and of a look at it.
const WORK_OF_ENTRY: usize = 8;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The pieces of one request, indexed once enough names have been looked for.
#[derive(Debug, Default)]
pub(in crate::policy) struct NameIndex {
    reads: AtomicU32,
    /// An error if they cannot be read, whatever the name.
    entries: OnceLock<Result<Box<Entries>, Unreadable>>,
}

#[derive(Debug, Default)]
struct Entries {
    pieces: Vec<IndexedPiece>,
    lists: HashMap<NameHash, List>,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct IndexedPiece {
    line: u32,
    start: u32,
    end: u32,
    is_first: bool,
    is_alone: bool,
}

/// The pieces with a hash, by the indices of links.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    piece: u32,
    /// The index of the next link, or [`NONE`].
    next: u32,
}

impl NameIndex {
    /// Calls `visit` with each piece that some origin may read as one of this name, and perhaps with others, in order,
    /// until it returns false or fails.
    ///
    /// # Errors
    /// Origins split the text in different ways, or the request has no work left.
    pub(in crate::policy) fn each<'r, L: Iterator<Item = &'r [u8]>>(
        &self,
        lines: impl Fn() -> L,
        syntax: Syntax,
        name: &[u8],
        budget: &WorkBudget,
        mut visit: impl FnMut(Piece<'r>) -> Result<bool, Unreadable>,
    ) -> Result<(), Unreadable> {
        let reads = self.reads.load(Ordering::Relaxed);
        if reads < MAX_READS || name.is_empty() {
            self.reads.store(reads.saturating_add(1), Ordering::Relaxed);
            return each_of_all(lines(), syntax, budget, visit);
        }
        budget.charge(WORK_OF_ENTRY)?;
        let entries = self.entries.get_or_init(|| Entries::new(lines(), syntax, budget));
        let entries = entries.as_ref().map_err(|error| *error)?;
        let mut lines = lines().zip(0_u32..).peekable();
        for indexed in entries.of(spelling::hash(name)) {
            while lines.next_if(|(_, number)| *number < indexed.line).is_some() {}
            let Some((line, _)) = lines.peek() else {
                break;
            };
            let Some(piece) = syntax.piece(line, indexed.position())? else {
                continue;
            };
            budget.charge(WORK_OF_ENTRY + piece.name.len() + piece.value.len())?;
            if !visit(piece)? {
                break;
            }
        }
        Ok(())
    }
}

/// Calls `visit` with every piece, in order, until it returns false or fails.
///
/// # Errors
/// As [`NameIndex::each`].
pub(in crate::policy) fn each_of_all<'r>(
    lines: impl Iterator<Item = &'r [u8]>,
    syntax: Syntax,
    budget: &WorkBudget,
    mut visit: impl FnMut(Piece<'r>) -> Result<bool, Unreadable>,
) -> Result<(), Unreadable> {
    for line in lines {
        budget.charge(line.len().saturating_mul(2))?;
        for position in syntax.positions(line) {
            if let Some(piece) = syntax.piece(line, position)?
                && !visit(piece)?
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Entries {
    fn new<'r>(
        lines: impl Iterator<Item = &'r [u8]>,
        syntax: Syntax,
        budget: &WorkBudget,
    ) -> Result<Box<Self>, Unreadable> {
        let mut entries = Box::<Self>::default();
        for (text, line) in lines.zip(0_u32..) {
            budget.charge(text.len())?;
            for position in syntax.positions(text) {
                // What has no name is no piece of any name.
                let found = syntax.piece(text, position)?.filter(|piece| !piece.name.is_empty());
                if let Some(piece) = found {
                    let links = entries.links.len();
                    entries.add(line, position, piece.name)?;
                    budget.charge(WORK_OF_ENTRY * (1 + entries.links.len() - links))?;
                }
            }
        }
        Ok(entries)
    }

    fn add(&mut self, line: u32, position: Position, name: &[u8]) -> Result<(), Unreadable> {
        let index = |length: usize| u32::try_from(length).map_err(|_| Unreadable);
        let (start, end) = (index(position.start)?, index(position.end)?);
        let Position { is_first, is_alone, .. } = position;
        let piece = index(self.pieces.len())?;
        self.pieces.push(IndexedPiece { line, start, end, is_first, is_alone });
        let Self { lists, links, .. } = self;
        let mut result = Ok(());
        spelling::each_hash(name, |hash| {
            let Ok(link) = index(links.len()) else {
                result = Err(Unreadable);
                return;
            };
            let list = lists.entry(hash).or_insert(List { first: link, last: link });
            if let Some(last) = links.get_mut(list.last as usize) {
                if last.piece == piece {
                    return;
                }
                last.next = link;
            }
            list.last = link;
            links.push(Link { piece, next: NONE });
        });
        result
    }

    /// The pieces with a hash, in order.
    fn of(&self, hash: NameHash) -> impl Iterator<Item = IndexedPiece> {
        let first = self.lists.get(&hash).map_or(NONE, |list| list.first);
        let link = |index: u32| self.links.get(index as usize);
        let links = std::iter::successors(link(first), move |last| link(last.next));
        links.filter_map(|link| self.pieces.get(link.piece as usize)).copied()
    }
}

impl IndexedPiece {
    const fn position(self) -> Position {
        let Self { start, end, is_first, is_alone, .. } = self;
        Position { start: start as usize, end: end as usize, is_first, is_alone }
    }
}
