//! `limits`.

mod algorithm;
mod limit;
mod terms;

pub(crate) use limit::*;
pub(crate) use terms::LimitContext;
