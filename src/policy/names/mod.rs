//! The names of query parameters and cookies, as origins read them.

mod name_index;
mod pieces;
pub(super) mod spelling;

pub(super) use name_index::{NameIndex, each_of_all};
pub(super) use pieces::{NameAndValue, Piece, Syntax};
