//! Greedy admission of equal pieces, the computation behind the bounds.
//!
//! A *piece* is a request of the smallest or the largest cost, or a single unit of a request. Under a bucket, a log or a
//! fixed window, greedy admission in the order of time admits the largest number of equal pieces that any choice could.
//! (The k-th piece that greedy admission admits is never later than the k-th of another choice, by induction: at that
//! time greedy admission has no more spent.)

use std::collections::VecDeque;

/// What limits the number of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// A bucket: spans in nanoseconds.
    Bucket {
        /// What can be spent at once.
        capacity: u64,
        /// What a piece spends.
        piece: u64,
    },
    /// Pieces in any window of this length, of which one end is excluded.
    Log {
        /// Nanoseconds.
        window: u64,
        /// The largest number.
        pieces: u64,
    },
    /// Pieces in a window aligned to the epoch; their instants are its beginning.
    Window {
        /// The largest number.
        pieces: u64,
    },
    /// As many pieces as a bucket holds, and then none until it is certainly full again.
    Groups {
        /// The largest number at once.
        pieces: u64,
        /// From the last piece of a group to the first of the next.
        pause: u64,
    },
    /// None.
    Nothing,
}

/// What was admitted for one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Admitted {
    /// The bucket: when it is full again. The window: its beginning. Groups: the last piece.
    at: u64,
    /// Pieces that count: of the log, the window or the group.
    count: u64,
    log: PieceLog,
}

/// Pieces by their instants, oldest first.
#[derive(Clone, Debug, Default)]
struct PieceLog(VecDeque<PiecesAt>);

#[derive(Clone, Copy, Debug)]
struct PiecesAt {
    at: u64,
    count: u64,
}

impl Room {
    /// Admits as many of these pieces as fit at an instant, and returns their number. Instants do not descend.
    pub(super) fn admit(&self, admitted: &mut Admitted, at: u64, pieces: u64) -> u64 {
        match *self {
            Self::Bucket { capacity, piece } => {
                let spent = admitted.at.saturating_sub(at);
                let fits = (capacity.saturating_sub(spent) / piece.max(1)).min(pieces);
                if fits > 0 {
                    let span = piece.saturating_mul(fits);
                    admitted.at = admitted.at.max(at).saturating_add(span);
                }
                fits
            }
            Self::Log { window, pieces: max } => {
                let log = &mut admitted.log;
                admitted.count = admitted.count.saturating_sub(log.take_expired(window, at));
                let fits = max.saturating_sub(admitted.count).min(pieces);
                admitted.count = admitted.count.saturating_add(fits);
                log.add(at, fits);
                fits
            }
            Self::Window { pieces: max } => {
                if admitted.at != at {
                    (admitted.at, admitted.count) = (at, 0);
                }
                let fits = max.saturating_sub(admitted.count).min(pieces);
                admitted.count = admitted.count.saturating_add(fits);
                fits
            }
            Self::Groups { pieces: max, pause } => {
                if admitted.at.saturating_add(pause) <= at {
                    admitted.count = 0;
                }
                let fits = max.saturating_sub(admitted.count).min(pieces);
                if fits > 0 {
                    admitted.at = at;
                    admitted.count = admitted.count.saturating_add(fits);
                }
                fits
            }
            Self::Nothing => 0,
        }
    }
}

impl PieceLog {
    /// Takes out the pieces that have left the window, and returns their number.
    fn take_expired(&mut self, window: u64, at: u64) -> u64 {
        let mut expired = 0u64;
        while let Some(oldest) = self.0.front()
            && oldest.at.saturating_add(window) <= at
        {
            expired = expired.saturating_add(oldest.count);
            self.0.pop_front();
        }
        expired
    }

    fn add(&mut self, at: u64, count: u64) {
        match self.0.back_mut() {
            _ if count == 0 => {}
            Some(last) if last.at == at => last.count = last.count.saturating_add(count),
            _ => self.0.push_back(PiecesAt { at, count }),
        }
    }
}

impl Admitted {
    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.log.0.capacity() * size_of::<PiecesAt>()
    }
}
