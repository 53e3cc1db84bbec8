//! Reads a configuration file and produces a [`Config`] and its warnings, and reads files of policy
//! tests.
//!
//! ```text
//! text, included texts -> source (a tree with locations) -> sections (typed values) -> Config, warnings
//! ```
//!
//! One pass finds all mistakes of a file. Each mistake has a location and, where possible, a cure.
//! This room does not know what a configuration is used for at run time. A [`Config`] exists only if its file has
//! no mistake.

#[cfg(feature = "bin")]
mod admin_endpoint;
mod environment;
mod error;
mod error_list;
mod expected_keys;
mod files;
mod fingerprint;
mod guesses;
mod host_memory;
mod include;
mod json_text;
mod load;
mod model;
mod reader;
mod scalars;
mod sections;
mod source;
mod source_map;
mod suggestions;
mod syntax;
mod test_cases;
mod test_keys;
mod test_nodes;
mod unread_fields;
mod version;
mod warnings;

#[cfg(feature = "bin")]
pub use admin_endpoint::{AdminEndpoint, admin_endpoint};
pub use error::{ConfigError, ConfigErrors, Location, Warning};
pub(crate) use include::INCLUDED_SECTIONS;
pub use load::{ConfigUse, LoadedConfig, load, load_for, read_text, read_text_for};
pub use model::*;
#[cfg(feature = "bin")]
pub(crate) use scalars::client_name;
#[cfg(feature = "bin")]
pub(crate) use scalars::{positive_duration as read_duration, rate as read_rate};
pub use source_map::SourceMap;
pub use test_cases::{
    AnswerEnding, Expectation, ExpectedField, ExpectedRequest, OriginAnswer, TestCase, TestRequest,
    TestStep, load_cases, read_cases,
};
pub use test_keys::TestKeySet;
pub(crate) use version::{ConfigVersion, VersionWatch};
pub use warnings::Code as WarningCode;
