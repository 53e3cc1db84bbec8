//! What a source finds in a request: a value, nothing, or something that origins may read in different ways.

use std::borrow::Cow;

/// What a source found in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart<'r> {
    /// A value that is not empty.
    Present(Cow<'r, [u8]>),
    /// Nothing, or an empty value.
    Absent,
    /// More than one value where only one is allowed; the request is refused.
    Repeated,
    /// A value that origins may decode in different ways; the request is refused.
    Unreadable,
    /// A claim of a token whose signature was not checked ([`crate::tokens::SignatureCheck::Recall`]).
    Unchecked,
    /// A claim of a token whose keys have not been fetched, and on which the policy insists
    /// ([`super::OnKeysFailure::Deny`]).
    Unknowable,
    /// The request is read from a log that does not have the value.
    Unrecorded,
}

impl<'r> KeyPart<'r> {
    /// A value; an empty one is absent.
    pub(super) fn of(value: impl Into<Cow<'r, [u8]>>) -> Self {
        let value = value.into();
        if value.is_empty() { Self::Absent } else { Self::Present(value) }
    }

    /// The only value; several are [`KeyPart::Repeated`].
    pub(super) fn only<V: Into<Cow<'r, [u8]>>>(mut values: impl Iterator<Item = V>) -> Self {
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => Self::of(value),
            (Some(_), Some(_)) => Self::Repeated,
        }
    }
}
