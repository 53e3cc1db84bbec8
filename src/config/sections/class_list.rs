//! The classes of a file, found by name.

use std::sync::Arc;

use crate::config::reader::{Located, did_you_mean};
use crate::policy::Class;

/// The classes of a file, in its order.
#[derive(Default)]
pub(crate) struct Classes(pub(super) Vec<Arc<Class>>);

impl Classes {
    /// The class of a name. An unknown name is recorded as a mistake.
    pub(crate) fn find(&self, at: &Located<'_>, name: &str) -> Option<Arc<Class>> {
        let found = self.0.iter().find(|class| *class.name == *name).cloned();
        if found.is_none() {
            let names: Vec<&str> = self.0.iter().map(|class| &*class.name).collect();
            let cure =
                did_you_mean(name, &names).unwrap_or_else(|| "define it under classes".to_owned());
            at.error_with(format!("unknown class {name:?}"), cure);
        }
        found
    }

    /// Every class.
    pub(crate) fn all(&self) -> &[Arc<Class>] {
        &self.0
    }
}
