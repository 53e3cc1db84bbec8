//! The pieces of a query or of a `Cookie` line, as origins split them.

use crate::policy::unreadable::Unreadable;

/// Text between separators.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) struct Piece<'r> {
    pub(in crate::policy) name: &'r [u8],
    pub(in crate::policy) value: &'r [u8],
    /// Whether it begins where every origin begins a parameter or a cookie.
    pub(in crate::policy) is_first: bool,
    /// Whether it also ends where every origin ends it.
    pub(in crate::policy) is_alone: bool,
}

/// How a text is split.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) struct Syntax {
    /// Where every origin splits it.
    pub(in crate::policy) separator: u8,
    /// Where some origins split it too.
    pub(in crate::policy) other_separator: u8,
    /// The name and the value of a piece; none if no origin reads it.
    pub(in crate::policy) split: fn(&[u8]) -> Result<Option<NameAndValue<'_>>, Unreadable>,
}

/// A name and a value, both raw.
pub(in crate::policy) type NameAndValue<'r> = (&'r [u8], &'r [u8]);

/// A piece before its name is read. Two neighbours are one byte apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_first: bool,
    pub(super) is_alone: bool,
}

impl Syntax {
    /// The position of every piece, in order.
    pub(super) fn positions(self, text: &[u8]) -> impl Iterator<Item = Position> {
        let pairs = text.split(move |byte| *byte == self.separator);
        let pieces = pairs.flat_map(move |pair| {
            let pieces = pair.split(move |byte| *byte == self.other_separator).enumerate();
            pieces.map(|(index, piece)| (piece.len(), index == 0, piece.len() == pair.len()))
        });
        let mut next = 0;
        pieces.map(move |(len, is_first, is_alone)| {
            let start = next;
            next += len + 1;
            Position { start, end: start + len, is_first, is_alone }
        })
    }

    /// The piece at a position of this text.
    ///
    /// # Errors
    /// Origins split the text in different ways.
    pub(super) fn piece(self, text: &[u8], at: Position) -> Result<Option<Piece<'_>>, Unreadable> {
        let piece = text.get(at.start..at.end).unwrap_or_default();
        let split = (self.split)(piece)?;
        let Position { is_first, is_alone, .. } = at;
        Ok(split.map(|(name, value)| Piece { name, value, is_first, is_alone }))
    }
}
