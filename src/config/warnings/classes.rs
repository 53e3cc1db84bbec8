//! Warnings about classes that no request can be in.

use std::sync::Arc;

use hashbrown::HashSet;

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use super::reachability::SampleSearch;
use crate::policy::Class;

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let empty = empty_classes(input);
    for (class, entry) in input.classes.all().iter().zip(input.classes_at) {
        if empty.contains(&*class.name) {
            let name = &class.name;
            let message =
                format!("no request is in class {name:?}: its conditions exclude each other");
            list.add(Code::EmptyClass, &entry.at, message, "correct the conditions, or remove it");
        }
    }
}

/// The names of the classes that no request can be in.
pub(super) fn empty_classes<'i>(input: &WarningInput<'i>) -> HashSet<&'i str> {
    let search = SampleSearch::new(&[], input.listener_names);
    let is_empty = |class: &&Arc<Class>| search.has_requests(&class.matches) == Some(false);
    input.classes.all().iter().filter(is_empty).map(|class| &*class.name).collect()
}
