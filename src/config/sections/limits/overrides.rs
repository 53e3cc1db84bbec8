//! `overrides`: other rules for single keys, for the keys in a file, or for networks. The keys of an
//! override are stored in the form in which the sources of the limit find them in a request.

use std::path::Path;
use std::sync::Arc;

use super::algorithm::{Shape, quota_in};
use super::limit::LimitContext;
use super::terms::{add_quota, require_shape};
use crate::config::files::read_bounded;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::network;
use crate::limit::Quota;
use crate::policy::{KeySpec, KeyValues, Override, OverrideAction, OverrideTarget};

/// Largest number of keys in all overrides of a limit.
const MAX_OVERRIDE_KEYS: usize = 100_000;

/// Largest file of keys, in bytes.
const MAX_KEYS_FILE: u64 = 16 << 20;

/// `overrides`, in the order of the file. Other rates are added to `quotas`.
pub(super) fn overrides(
    at: &Located<'_>,
    shape: Option<&Shape<'_>>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
    quotas: &mut Vec<Quota>,
) -> Option<Vec<Override>> {
    let mut overrides = Vec::new();
    let mut keys = 0;
    for item in at.list() {
        let rule = override_rule(&item, shape, key?, context, quotas)?;
        if let OverrideTarget::Keys(targets) = &rule.target {
            keys += targets.len();
        }
        overrides.push(rule);
    }
    if keys > MAX_OVERRIDE_KEYS {
        let cure = "use plans, or a second limit, for so many keys";
        at.error_with(format!("{keys} keys, more than {MAX_OVERRIDE_KEYS}"), cure);
    }
    Some(overrides)
}

fn override_rule(
    at: &Located<'_>,
    shape: Option<&Shape<'_>>,
    key: &KeySpec,
    context: &LimitContext<'_>,
    quotas: &mut Vec<Quota>,
) -> Option<Override> {
    let mut map = at.mapping()?;
    let target_at = TargetKeys {
        key: map.get("key"),
        key_file: map.get("key_file"),
        network: map.get("network"),
        class: map.get("class"),
    };
    let action = action(at, &mut map, shape, quotas);
    map.finish();
    let target = target_at.read(at, key, context)?;
    Some(Override { target, action: action? })
}

fn action(
    at: &Located<'_>,
    map: &mut Mapping<'_>,
    shape: Option<&Shape<'_>>,
    quotas: &mut Vec<Quota>,
) -> Option<OverrideAction> {
    match (map.get("action"), map.get("rate")) {
        (Some(at), None) => {
            at.choice(&[("allow", OverrideAction::Allow), ("deny", OverrideAction::Deny)])
        }
        (None, Some(rate_at)) => {
            let Some(shape) = require_shape(&rate_at, shape) else {
                // Marks the key as known.
                map.get("burst");
                return None;
            };
            quota_in(map, shape).map(|quota| OverrideAction::Rate(add_quota(quotas, quota)))
        }
        _ => {
            let cure = "write either action: allow, action: deny, or a rate";
            at.error_with("an override has one effect", cure);
            None
        }
    }
}

/// The keys of the file that say which keys or clients an override concerns. Exactly one of them is
/// allowed.
struct TargetKeys<'n> {
    key: Option<Located<'n>>,
    key_file: Option<Located<'n>>,
    network: Option<Located<'n>>,
    class: Option<Located<'n>>,
}

impl TargetKeys<'_> {
    fn read(
        self,
        at: &Located<'_>,
        key: &KeySpec,
        context: &LimitContext<'_>,
    ) -> Option<OverrideTarget> {
        match (self.key, self.key_file, self.network, self.class) {
            (Some(at), None, None, None) => {
                let items = at.list_or_single();
                let texts: Option<Vec<&str>> = items.iter().map(Located::text).collect();
                let values = key_values(&texts?, key, context);
                let values = values.map_err(|error| at.error(error)).ok()?;
                Some(OverrideTarget::Keys(Arc::from([values])))
            }
            (None, Some(at), None, None) => {
                let keys = at.parse(|text| read_keys(&at.folder().join(text), key, context))?;
                Some(OverrideTarget::Keys(keys.into()))
            }
            (None, None, Some(at), None) => at.parse(network).map(OverrideTarget::Network),
            (None, None, None, Some(at)) => {
                context.sources.classes.find(&at, at.text()?).map(OverrideTarget::Class)
            }
            _ => {
                let cure = "write one of key, key_file, network and class";
                at.error_with("an override is for one kind of target", cure);
                None
            }
        }
    }
}

/// Reads one key per line. Tabs separate the values of several sources. Empty lines and lines that
/// begin with `#` are ignored, and so are blanks at the end of a line.
fn read_keys(
    file: &Path,
    key: &KeySpec,
    context: &LimitContext<'_>,
) -> Result<Vec<KeyValues>, String> {
    let bytes = read_bounded(file, MAX_KEYS_FILE)?;
    let wrong = |line: usize, error: &str| format!("{}:{line}: {error}", file.display());
    let text = String::from_utf8(bytes).map_err(|_| wrong(1, "is not UTF-8; save it as UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    // What nobody sees at the end of a line is no part of a key: blanks, and the line ends of another system.
    let lines = lines.map(|(number, line)| (number, line.trim_end_matches([' ', '\r'])));
    lines
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let texts: Vec<&str> = line.split('\t').collect();
            key_values(&texts, key, context).map_err(|error| wrong(number, &error))
        })
        .collect()
}

/// The values of a key as they were typed; sources read them as in a request when they are hashed.
fn key_values(
    texts: &[&str],
    key: &KeySpec,
    context: &LimitContext<'_>,
) -> Result<KeyValues, String> {
    key.typed_values(texts, context.ipv6_prefix).map_err(|error| error.to_string())
}
