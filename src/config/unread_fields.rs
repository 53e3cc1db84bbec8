//! Costs and addresses that would be read from fields that no request has.

use super::model::Underscores;
use super::reader::Located;
use super::sections::field_names::refuse_odd_name;
use super::sections::limits::DefinedLimits;
use super::sections::routes::DefinedRoute;
use crate::policy::client::{AddressHeader, ClientRules};
use crate::policy::{Cost, RouteLimit};

/// Refuses fields that no request has, where an address or a cost is read from them.
pub(super) fn refuse_unread_fields(
    clients: &ClientRules,
    clients_at: Option<&Located<'_>>,
    limits: &DefinedLimits<'_>,
    routes: &[DefinedRoute<'_>],
    underscores: Underscores,
) {
    if let Some(AddressHeader::Single(name)) = &clients.address_header
        && let Some(at) =
            clients_at.and_then(|at| at.mapping()).and_then(|mut map| map.get("address_header"))
    {
        refuse_odd_name(&at, name.as_str(), false, underscores);
    }
    let refuse = |at: &Located<'_>, cost: &Cost| {
        if let Cost::Request { header, .. } = cost {
            refuse_odd_name(at, header.as_str(), false, underscores);
        }
    };
    for defined in limits.iter() {
        refuse(&defined.at, &defined.limit.cost);
    }
    for defined in routes {
        let own = |used: &&RouteLimit| used.cost != limits.get(used.limit).cost;
        defined.route.limits.iter().filter(own).for_each(|used| refuse(&defined.at, &used.cost));
    }
}
