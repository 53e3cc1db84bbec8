//! The parts of a key as people read them, for operators who ask for it.

use crate::policy::key::KeyPart;
use crate::policy::{Facts, Route, Source};

/// What a source finds in a request, as text. A value that is no text is shown with replacement characters.
pub(super) fn shown(source: &Source, facts: &Facts<'_>, route: &Route) -> String {
    if *source == Source::ClientIp {
        return facts.client.prefix().to_string();
    }
    match source.part(facts, route) {
        KeyPart::Present(value) => match (source, <[u8; 8]>::try_from(&*value)) {
            (Source::Shard { .. }, Ok(bucket)) => format!("bucket {}", u64::from_be_bytes(bucket)),
            _ => String::from_utf8_lossy(&value).into_owned(),
        },
        KeyPart::Absent
        | KeyPart::Repeated
        | KeyPart::Unreadable
        | KeyPart::Unchecked
        | KeyPart::Unknowable
        | KeyPart::Unrecorded => "-".to_owned(),
    }
}
