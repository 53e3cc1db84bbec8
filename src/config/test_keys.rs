//! `jwks` in a file of policy tests: the keys that stand for those at a URL, since tests ask no network.

use std::path::Path;
use std::sync::Arc;

use super::files::{MAX_NAMED_FILE, read_bounded};
use super::reader::{Mapping, NamedValue};

/// The keys at a URL, for a test.
#[derive(Clone, Debug)]
pub struct TestKeySet {
    /// The URL, as the policy writes it.
    pub url: String,
    /// The set as JSON; `None`: it has not been fetched.
    pub json: Option<Arc<[u8]>>,
}

/// `jwks: { URL: FILE }`, or `none` instead of a file. `inherited`: those of the file, which a case can replace.
pub(super) fn test_keys(
    map: &mut Mapping<'_>,
    inherited: &[TestKeySet],
    folder: &Path,
) -> Vec<TestKeySet> {
    let entries = map.get("jwks").map(|at| at.named_values()).unwrap_or_default();
    let own = entries.into_iter().filter_map(|NamedValue { name, at }| {
        let json = match at.is_text("none") {
            true => None,
            false => Some(at.parse(|file| read_bounded(&folder.join(file), MAX_NAMED_FILE))?),
        };
        Some(TestKeySet { url: name.to_owned(), json: json.map(Arc::from) })
    });
    let mut all: Vec<TestKeySet> = own.collect();
    for set in inherited {
        if all.iter().all(|own| own.url != set.url) {
            all.push(set.clone());
        }
    }
    all
}
