//! A slow model of policies, and random cases that compare the engine with it.

mod reference;
mod run;

pub use run::run;
