//! The JSON Schema (draft 7) of a configuration and of the files that it includes, for `tollgate schema`.

use serde_json::{Map, Value};

use crate::config::INCLUDED_SECTIONS;

/// The schema of a configuration, with descriptions and defaults. A test compares its keys with those that the
/// configuration reader knows.
pub const SCHEMA: &str = include_str!("schema.json");

/// The one key of an included file that is no section.
const VERSION: &str = "version";

/// The schema of an included file: that of a configuration with fewer sections, none of which is required.
pub(super) fn of_included_files() -> String {
    let mut schema: Map<String, Value> =
        serde_json::from_str(SCHEMA).expect("the schema is an object; a test reads it");
    schema.remove("required");
    schema.remove("anyOf");
    schema.insert("title".to_owned(), "file that a tollgate configuration includes".into());
    schema.insert(
        "description".to_owned(),
        "Limits, routes, origins and classes of a configuration that names this file in include."
            .into(),
    );
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| name == VERSION || INCLUDED_SECTIONS.contains(&name.as_str()));
    }
    format!("{:#}\n", Value::Object(schema))
}
