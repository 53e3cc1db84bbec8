//! Warnings about `responses.body`: a file that looks like a page, and is sent as it is.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::model::{PageValue, RefusalBody, Responses};
use crate::config::reader::Located;

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    if let Some(at) = &input.responses_at {
        add_placeholders(at, input.default_responses, list);
    }
    for route in input.routes {
        let responses_at = route.at.mapping().and_then(|mut map| map.get("responses"));
        if let Some(at) = responses_at {
            add_placeholders(&at, &route.responses, list);
        }
    }
}

/// Warns of the placeholders of pages in the files of `body`, if the key is written here.
fn add_placeholders(at: &Located<'_>, responses: &Responses, list: &mut WarningList<'_>) {
    let Some(at) = at.mapping().and_then(|mut map| map.get("body")) else {
        return;
    };
    for (at, body) in at.list_or_single().iter().zip(&responses.bodies) {
        let RefusalBody::File { content, .. } = body else {
            continue;
        };
        let has = |name: &str| {
            [format!("{{{{{name}}}}}"), format!("{{{{ {name} }}}}")]
                .iter()
                .any(|text| memchr::memmem::find(content, text.as_bytes()).is_some())
        };
        let mut names = PageValue::NAMES.into_iter().map(|(name, _)| name);
        if let Some(name) = names.find(|name| has(name)) {
            let message = format!("a body is sent as it is, with the text {{{{{name}}}}}");
            let cure = "write the file in responses.pages, for the status 429; placeholders stand for values there";
            list.add(Code::PlaceholderInBody, at, message, cure);
        }
    }
}
