//! Indices into the lists of a policy, and lists that have one item for each limit or each route.
//!
//! An index is valid for one policy only: across reloads, limits are found by name. What must always hold: a list made
//! for a policy has exactly the length and the order of that policy, because its constructors visit every item and can
//! skip none.

use std::marker::PhantomData;
use std::ops::Index;

/// The index of a limit in [`super::Policy::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitIndex(pub usize);

/// The index of a route in [`super::Policy::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteIndex(pub usize);

/// An index into a list of a policy.
pub trait PolicyIndex: Copy {
    /// The index at a position of the list.
    fn at(position: usize) -> Self;
    /// The position in the list.
    fn position(self) -> usize;
}

impl PolicyIndex for LimitIndex {
    fn at(position: usize) -> Self {
        Self(position)
    }

    fn position(self) -> usize {
        self.0
    }
}

impl PolicyIndex for RouteIndex {
    fn at(position: usize) -> Self {
        Self(position)
    }

    fn position(self) -> usize {
        self.0
    }
}

/// One item for each limit of a policy.
pub type PerLimit<T> = Aligned<LimitIndex, T>;

/// One item for each route of a policy.
pub type PerRoute<T> = Aligned<RouteIndex, T>;

/// One item for each element of a policy's list, in the order of that list.
#[derive(Clone, Debug)]
pub struct Aligned<I, T> {
    items: Vec<T>,
    index: PhantomData<I>,
}

impl<I: PolicyIndex, T> Aligned<I, T> {
    /// Makes one item for each element of a list of a policy.
    pub fn of<E>(list: &[E], mut item: impl FnMut(I, &E) -> T) -> Self {
        let items =
            list.iter().enumerate().map(|(position, element)| item(I::at(position), element));
        Self { items: items.collect(), index: PhantomData }
    }

    /// Splits the elements of a list from what was read together with each.
    pub fn split<E>(pairs: impl IntoIterator<Item = (E, T)>) -> (Vec<E>, Self) {
        let (list, items) = pairs.into_iter().unzip();
        (list, Self { items, index: PhantomData })
    }

    /// Makes another item of each, in the same order.
    pub fn map<U>(self, item: impl FnMut(T) -> U) -> Aligned<I, U> {
        Aligned { items: self.items.into_iter().map(item).collect(), index: PhantomData }
    }

    /// The item with this index; `None` for an index of another, longer policy.
    pub fn get(&self, index: I) -> Option<&T> {
        self.items.get(index.position())
    }

    /// All items in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// All items with their indices, in order.
    pub fn indexed(&self) -> impl Iterator<Item = (I, &T)> {
        self.items.iter().enumerate().map(|(position, item)| (I::at(position), item))
    }
}

impl<I: PolicyIndex, T> Index<I> for Aligned<I, T> {
    type Output = T;

    fn index(&self, index: I) -> &T {
        &self.items[index.position()]
    }
}
