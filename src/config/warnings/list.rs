//! Collects the warnings of all subjects.

use std::sync::Arc;

use super::codes::{Code, SilencedCodes};
use super::{clients, limits, routes};
use crate::config::error::Warning;
use crate::config::model::StoreConfig;
use crate::config::reader::Located;
use crate::config::sections::limits::DefinedLimits;
use crate::config::sections::routes::DefinedRoute;
use crate::policy::client::ClientRules;

/// The parts of a configuration that warnings are about.
pub(crate) struct WarningInput<'i> {
    pub(crate) file: &'i str,
    pub(crate) limits: &'i DefinedLimits<'i>,
    pub(crate) routes: &'i [DefinedRoute<'i>],
    /// The name of each listener.
    pub(crate) listeners: &'i [Option<Arc<str>>],
    /// Whether no listener asks its clients for a certificate, though there are listeners.
    pub(crate) asks_no_client: bool,
    pub(crate) clients: &'i ClientRules,
    pub(crate) clients_at: Option<Located<'i>>,
    pub(crate) store: &'i StoreConfig,
    pub(crate) store_at: Option<Located<'i>>,
}

/// Every warning that is not silenced, in the order of the file.
pub(crate) fn warnings(input: &WarningInput<'_>, silenced: &SilencedCodes) -> Vec<Warning> {
    let mut list = WarningList { file: input.file, silenced, warnings: Vec::new() };
    routes::add_warnings(input, &mut list);
    clients::add_warnings(input, &mut list);
    limits::add_warnings(input, &mut list);
    list.warnings.sort_by_key(|warning| warning.location);
    list.warnings
}

/// The warnings so far.
pub(super) struct WarningList<'s> {
    file: &'s str,
    silenced: &'s SilencedCodes,
    warnings: Vec<Warning>,
}

impl WarningList<'_> {
    /// Adds a warning unless its code is silenced.
    pub(super) fn add(&mut self, code: Code, at: &Located<'_>, message: String, cure: &str) {
        if self.silenced.contains(code) {
            return;
        }
        self.warnings.push(Warning {
            code: code.name(),
            file: self.file.to_owned(),
            location: at.location,
            path: at.path.clone(),
            message,
            cure: cure.to_owned(),
        });
    }
}
