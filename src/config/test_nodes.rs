//! `node` in a step of a policy test: the node that gets the request.

use super::reader::Located;
use super::scalars::{NAME_CURE, is_name};

/// The most nodes of one case.
const MAX_NODES: usize = 16;

/// The node of a step that names none.
const DEFAULT_NODE: &str = "a";

/// The nodes that the steps of a case name, in the order of the steps.
#[derive(Default)]
pub(super) struct NodeNames(pub(super) Vec<String>);

impl NodeNames {
    /// The index of a step's node. `named`: what the step says of it.
    pub(super) fn index(
        &mut self,
        step: &Located<'_>,
        named: Option<&Located<'_>>,
    ) -> Option<usize> {
        let name = match named {
            Some(at) => at.text()?,
            None => DEFAULT_NODE,
        };
        let at = named.unwrap_or(step);
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), NAME_CURE);
            return None;
        }
        if let Some(known) = self.0.iter().position(|known| known == name) {
            return Some(known);
        }
        self.0.push(name.to_owned());
        // One error is enough for all names that follow.
        if self.0.len() == MAX_NODES + 1 {
            let message = format!("with {name:?} this case has more than {MAX_NODES} nodes");
            at.error_with(message, format!("use at most {MAX_NODES} names"));
        }
        Some(self.0.len() - 1)
    }
}
