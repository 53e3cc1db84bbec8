//! `classes`: conditions with a name. Routes, overrides, plans and keys refer to them by that name.

use std::sync::Arc;

pub(crate) use super::class_list::Classes;
use super::request_match::{MatchContext, request_match};
use crate::config::model::Underscores;
use crate::config::reader::Mapping;
use crate::config::scalars::{NAME_CURE, is_name};
use crate::policy::Class;

/// The largest number of classes.
const MAX_CLASSES: usize = 10_000;

/// `classes`.
pub(crate) fn classes(
    root: &mut Mapping<'_>,
    listeners: &[Arc<str>],
    underscores: Underscores,
) -> Classes {
    let Some(at) = root.get("classes") else {
        return Classes::default();
    };
    let entries = at.named_values();
    if entries.len() > MAX_CLASSES {
        let message = format!("{} classes, more than {MAX_CLASSES}", entries.len());
        at.error_with(message, "write several values into one class");
    }
    let context = MatchContext { classes: None, listeners, underscores };
    let read = entries.iter().map(|entry| {
        if !is_name(entry.name) {
            entry.at.error_with(format!("{:?} is not a name", entry.name), NAME_CURE);
        }
        let matches = request_match(&entry.at, &context);
        if entry.at.is_empty_mapping() {
            let cure = "write for example { client: 203.0.113.0/24 }";
            entry.at.error_with("a class without a condition would contain every request", cure);
        }
        Arc::new(Class { name: entry.name.into(), matches })
    });
    Classes(read.collect())
}
