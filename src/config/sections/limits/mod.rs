//! `limits`: each limit is read by itself, then the references between limits are checked. This
//! module does not know which routes use a limit.

mod algorithm;
mod count;
mod defined;
mod limit;
mod missing_key;
mod overrides;
mod scope;
mod terms;

pub(crate) use defined::DefinedLimits;
pub(crate) use limit::{LimitContext, limits};
