//! The numbers by which cells in the confirm table tell whose they are.
//!
//! A number is one byte, for which a set of cells has room in its cache lines. It is given anew when its limit is gone, as late
//! as possible: cells of that limit may still be in a table. What always holds: while at most 256 sketches are in use in this
//! process, no two have the same number.

use std::sync::Arc;

use parking_lot::Mutex;

/// How many numbers there are.
const COUNT: usize = 1 << u8::BITS;

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { users: [0; COUNT], next: 0 });

/// A number that is in use.
#[derive(Clone, Debug)]
pub(super) struct LimitNumber {
    /// Read by each charge.
    number: u8,
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held(u8);

struct Numbers {
    /// How many limits use each number.
    users: [u32; COUNT],
    /// Where the search for the next number begins.
    next: u8,
}

impl LimitNumber {
    /// A number that no other limit uses, or if all are used, one that the fewest use.
    pub(super) fn take() -> Self {
        let number = NUMBERS.lock().take();
        Self { number, _held: Arc::new(Held(number)) }
    }

    pub(super) const fn get(&self) -> u8 {
        self.number
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        NUMBERS.lock().give_back(self.0);
    }
}

impl Numbers {
    fn take(&mut self) -> u8 {
        let from_next = (0..=u8::MAX).map(|step| self.next.wrapping_add(step));
        let number = from_next.min_by_key(|number| self.users[usize::from(*number)]).unwrap_or(0);
        self.users[usize::from(number)] += 1;
        self.next = number.wrapping_add(1);
        number
    }

    fn give_back(&mut self, number: u8) {
        let users = &mut self.users[usize::from(number)];
        *users = users.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_anew_as_late_as_possible_and_shared_only_if_all_are_used() {
        let mut numbers = Numbers { users: [0; COUNT], next: 0 };
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [0, 1, 2]);
        numbers.give_back(1);
        let rest: Vec<u8> = (3..=u8::MAX).map(|_| numbers.take()).collect();
        assert_eq!(rest, (3..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(numbers.take(), 1, "the only one that is free");
        assert_eq!(numbers.take(), 2, "all are used once");
        numbers.give_back(2);
        numbers.give_back(2);
        assert_eq!(numbers.take(), 2);
    }
}
