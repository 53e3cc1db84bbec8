//! The configuration as plain values, one file for each subject. All names are resolved and all
//! bounds are checked. Nothing here knows YAML, or where in a file a value was written.

mod access_log;
mod bounds;
mod config;
mod field_edits;
mod listeners;
mod log_template;
mod origins;
mod page;
mod responses;
mod store;

pub use access_log::{AccessLog, HiddenFields, LogAddress, LogFormat, LogKey, LogPath, LogTarget};
pub(super) use bounds::handshake_bucket;
pub use bounds::{Bounds, MethodOverride, Underscores};
pub use config::Config;
pub use field_edits::{FieldEdits, HeaderEdits, RouteEdits};
pub use listeners::{Admin, Certificate, Listener};
pub(super) use log_template::TemplateError;
pub use log_template::{LogField, LogTemplate, TemplateItem};
pub use origins::{Balance, HealthCheck, Origin, OriginServer, OriginTimeouts, OriginTls};
pub use page::{Page, PageEscape, PageItem, PageValue, Pages, StatusClass};
pub use responses::{Cors, RefusalBody, Responses};
pub use store::{
    ClientIdentity, RedisEndpoint, RedisServers, RedisStore, RedisTls, RedisUrl, StateSettings,
    StoreConfig,
};
