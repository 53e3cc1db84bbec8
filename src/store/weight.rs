//! How much of `max_keys` a cell takes: 1, and 1 more for every [`CELL_BYTES`] that it holds on the heap.
//! So `max_keys` bounds memory, whatever the cells hold.

use super::table::CELL_BYTES;
use crate::limit::Cell;

/// The weight of a cell.
pub(super) fn weight(cell: &Cell) -> usize {
    weight_of(cell.heap_bytes())
}

/// The weight of a cell with `heap_bytes` on the heap.
pub(super) const fn weight_of(heap_bytes: usize) -> usize {
    1 + heap_bytes.div_ceil(CELL_BYTES)
}
