//! A class as a key part: the name of the first class that the request is in.

use std::sync::Arc;

use super::part::KeyPart;
use crate::policy::{Class, Facts, Unreadable};

pub(super) fn part<'r>(classes: &[Arc<Class>], facts: &Facts<'r>) -> KeyPart<'r> {
    for class in classes {
        match class.holds(facts) {
            Ok(true) => return KeyPart::of(class.name.as_bytes().to_vec()),
            Ok(false) => {}
            Err(Unreadable) => return KeyPart::Unreadable,
        }
    }
    KeyPart::Absent
}
