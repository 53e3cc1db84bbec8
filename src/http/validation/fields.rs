//! Fields that an origin may read as other fields than tollgate does, or that change the request for it.

use hashbrown::HashSet;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::bytes;
use super::reject_reason::RejectReason;
use super::uncommon_fields::UncommonFields;
use super::uncommon_fields::{METHOD_OVERRIDES, WRITTEN_HERE, is_claim};
use crate::config::{Config, FieldEdits, MethodOverride, Underscores};
use crate::policy::Route;
use crate::policy::client::AddressHeader;

/// Fields to which HTTP gives a meaning for identity, target or framing.
const HTTP_FIELDS: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that decide in which form a body comes. Where a cost is read from bodies, they are replaced for the origin, and a
/// client could otherwise hide the cost.
const OF_RESPONSE_BODIES: [&str; 3] = ["accept-encoding", "if-range", "range"];

/// The rules for fields with odd names and for fields that name another method.
#[derive(Clone, Debug)]
pub struct FieldRules {
    underscores: Underscores,
    method_override: MethodOverride,
    /// Names with a meaning for the policy or for HTTP, in [`plain`] form.
    significant: HashSet<Box<[u8]>>,
}

impl FieldRules {
    /// The rules of a configuration.
    pub fn of(config: &Config) -> Self {
        let named = config.policy.header_names();
        let address = match &config.clients.address_header {
            Some(AddressHeader::Single(name)) => Some(name.clone()),
            Some(AddressHeader::XForwardedFor | AddressHeader::Forwarded) | None => None,
        };
        let edits = config.edits.iter().flat_map(|edits| edits.of_request());
        let edited: Vec<&HeaderName> = edits.flat_map(FieldEdits::names).collect();
        let named =
            named.iter().chain(&address).chain(edited).map(|name| plain(name.as_str().as_bytes()));
        let reads_bodies = config.policy.routes.iter().any(Route::reads_body);
        let of_bodies: &[&str] = if reads_bodies { &OF_RESPONSE_BODIES } else { &[] };
        let fixed =
            HTTP_FIELDS.iter().chain(&WRITTEN_HERE).chain(&METHOD_OVERRIDES).chain(of_bodies);
        Self {
            underscores: config.bounds.underscores,
            method_override: config.bounds.method_override,
            significant: named.chain(fixed.map(|name| name.as_bytes().into())).collect(),
        }
    }

    /// Checks the fields of a request.
    ///
    /// # Errors
    /// The reason to refuse it.
    pub fn check(
        &self,
        uncommon: UncommonFields,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), RejectReason> {
        if uncommon.has(UncommonFields::ODD_NAME)
            && self.underscores == Underscores::RejectAmbiguous
            && headers.keys().any(|name| self.is_ambiguous(name))
        {
            return Err(RejectReason::AmbiguousField);
        }
        if uncommon.has(UncommonFields::METHOD_OVERRIDE)
            && self.method_override == MethodOverride::Reject
            && METHOD_OVERRIDES.iter().any(|name| names_another(headers, name, method))
        {
            return Err(RejectReason::MethodOverride);
        }
        Ok(())
    }

    /// The fields that are not forwarded.
    pub fn dropped(
        &self,
        uncommon: UncommonFields,
        peer_trusted: bool,
        method: &Method,
        headers: &HeaderMap,
    ) -> Vec<HeaderName> {
        let strips = self.method_override == MethodOverride::Strip;
        let is_dropped = |name: &&HeaderName| {
            let text = name.as_str();
            (uncommon.has(UncommonFields::CLAIM) && !peer_trusted && is_claim(text.as_bytes()))
                || (uncommon.has(UncommonFields::ODD_NAME)
                    && self.underscores == Underscores::Drop
                    && self.is_ambiguous(name))
                || (uncommon.has(UncommonFields::METHOD_OVERRIDE)
                    && strips
                    && METHOD_OVERRIDES.contains(&text)
                    && names_another(headers, text, method))
        };
        headers.keys().filter(is_dropped).cloned().collect()
    }

    /// Whether an odd name would be significant if its marks were `-`.
    fn is_ambiguous(&self, name: &HeaderName) -> bool {
        let name = name.as_str().as_bytes();
        if name.iter().all(|byte| bytes::is_usual_in_name(*byte)) {
            return false;
        }
        let plain = plain(name);
        self.significant.contains(&plain) || is_claim(&plain)
    }
}

/// A name as CGI gateways see it: in lower case, with `-` for every byte that is no letter or digit. (They write
/// `_`. It matters only that the mark is always the same.)
fn plain(name: &[u8]) -> Box<[u8]> {
    let usual =
        |byte: &u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    name.iter().map(usual).collect()
}

/// Whether any line of a field names another method than the request's.
fn names_another(headers: &HeaderMap, name: &str, method: &Method) -> bool {
    let is_other = |line: &HeaderValue| {
        !line.as_bytes().trim_ascii().eq_ignore_ascii_case(method.as_str().as_bytes())
    };
    headers.get_all(name).iter().any(is_other)
}
