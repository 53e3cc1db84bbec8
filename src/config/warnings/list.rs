//! Collects the warnings of all subjects.

use std::sync::Arc;

use super::codes::{Code, SilencedCodes};
use super::{bodies, classes, clients, costs, fleet, limits, listeners, patterns, routes, tokens};
use crate::config::error::Warning;
use crate::config::model::{Admin, Listener, Origin, Responses, StoreConfig};
use crate::config::reader::{Located, NamedValue};
use crate::config::sections::classes::Classes;
use crate::config::sections::limits::DefinedLimits;
use crate::config::sections::routes::DefinedRoute;
use crate::config::source::FileIndex;
use crate::policy::FleetTerms;
use crate::policy::client::ClientRules;

/// The parts of a configuration that warnings are about.
pub(crate) struct WarningInput<'i> {
    /// The patterns of `include` that match no file.
    pub(crate) empty_includes: Vec<&'i Located<'i>>,
    pub(crate) limits: &'i DefinedLimits<'i>,
    pub(crate) classes: &'i Classes,
    /// The entry of each class.
    pub(crate) classes_at: &'i [NamedValue<'i>],
    pub(crate) routes: &'i [DefinedRoute<'i>],
    /// The name of each listener.
    pub(crate) listener_names: &'i [Option<Arc<str>>],
    pub(crate) listeners: &'i [Listener],
    pub(crate) listeners_at: Option<Located<'i>>,
    pub(crate) origins: &'i [Origin],
    pub(crate) origins_at: Option<Located<'i>>,
    pub(crate) admin: Option<&'i Admin>,
    pub(crate) clients: &'i ClientRules,
    pub(crate) clients_at: Option<Located<'i>>,
    pub(crate) default_responses: &'i Responses,
    pub(crate) responses_at: Option<Located<'i>>,
    pub(crate) store: &'i StoreConfig,
    pub(crate) store_at: Option<Located<'i>>,
    pub(crate) fleet: FleetTerms,
    pub(crate) fleet_at: Option<Located<'i>>,
}

/// Every warning that is not silenced, in the order of the file.
pub(crate) fn warnings(input: &WarningInput<'_>, silenced: &SilencedCodes) -> Vec<Warning> {
    let mut list = WarningList { silenced, warnings: Vec::new() };
    for at in &input.empty_includes {
        let message = "this pattern matches no file".to_owned();
        let cure = "correct it, or add a file; without one it changes nothing";
        list.add(Code::EmptyInclude, at, message, cure);
    }
    routes::add_warnings(input, &mut list);
    classes::add_warnings(input, &mut list);
    patterns::add_warnings(input, &mut list);
    listeners::add_warnings(input, &mut list);
    clients::add_warnings(input, &mut list);
    limits::add_warnings(input, &mut list);
    fleet::add_warnings(input, &mut list);
    costs::add_warnings(input, &mut list);
    tokens::add_warnings(input, &mut list);
    bodies::add_warnings(input, &mut list);
    list.warnings.sort_by_key(|(file, warning)| (*file, warning.location));
    list.warnings.into_iter().map(|(_, warning)| warning).collect()
}

/// The warnings so far.
pub(super) struct WarningList<'s> {
    silenced: &'s SilencedCodes,
    /// Each with the file that it is in.
    warnings: Vec<(FileIndex, Warning)>,
}

impl WarningList<'_> {
    /// Adds a warning unless its code is silenced.
    pub(super) fn add(&mut self, code: Code, at: &Located<'_>, message: String, cure: &str) {
        if self.silenced.contains(code) {
            return;
        }
        let warning = Warning {
            code: code.name(),
            file: at.file_name().to_owned(),
            location: at.location,
            path: at.path.clone(),
            message,
            cure: cure.to_owned(),
        };
        self.warnings.push((at.file_index(), warning));
    }
}
