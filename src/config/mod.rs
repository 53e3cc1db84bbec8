//! Reads a configuration file and produces a [`Config`] and its warnings, and reads files of policy
//! tests.
//!
//! ```text
//! text -> source (a tree with locations) -> sections (typed values) -> Config, warnings
//! ```
//!
//! One pass finds all mistakes of a file. Each mistake has a location and, where possible, a cure.
//! This room does not know what a configuration is used for at run time. A [`Config`] exists only if its file has
//! no mistake.

mod error;
mod files;
mod host_memory;
mod load;
mod model;
mod reader;
mod scalars;
mod sections;
mod source;
mod test_cases;
mod warnings;

pub use error::{ConfigError, ConfigErrors, Location, Warning};
pub use load::{ConfigUse, LoadedConfig, load, load_for, read_text, read_text_for};
pub use model::*;
#[cfg(feature = "bin")]
pub(crate) use scalars::client_name;
pub use test_cases::{
    AnswerEnding, Expectation, ExpectedField, OriginAnswer, TestCase, TestRequest, TestStep,
    load_cases, read_cases,
};
