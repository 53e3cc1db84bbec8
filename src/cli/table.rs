//! Tables of text for a terminal: columns as wide as their widest value.
//!
//! Values come from a running process and may have any characters; those that a terminal would obey are shown escaped.

use serde_json::Value;

use crate::http::is_no_text;

/// Characters of a value that are shown: a reason has at most 500.
const MAX_VALUE: usize = 600;

/// Rows of equally many values.
pub(super) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()] }
    }

    pub(super) fn row(&mut self, values: &[String]) {
        self.rows.push(values.to_vec());
    }

    /// The table, or a sentence if it has no rows.
    pub(super) fn or(self, nothing: &str) -> String {
        if self.rows.len() == 1 {
            return format!("{nothing}\n");
        }
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let widths = self.rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths).map(|(value, width)| format!("{value:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        self.rows.iter().map(line).collect()
    }
}

/// A value as text; empty for null.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown(text),
        other => shown(&other.to_string()),
    }
}

/// Text of unknown origin, as it may be shown.
pub(super) fn shown(plain: &str) -> String {
    let shown = plain.chars().take(MAX_VALUE);
    let mut text: String = shown
        .flat_map(|c| if is_no_text(c) { c.escape_default().collect() } else { vec![c] })
        .collect();
    if plain.chars().nth(MAX_VALUE).is_some() {
        text.push_str("..");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_value() {
        let mut table = TextTable::new(&["a", "b"]);
        table.row(&[text(&json!("long\u{1b}[2J")), text(&json!(7))]);
        table.row(&["x".to_owned(), String::new()]);
        assert_eq!(
            table.or("none"),
            "a                b\nlong\\u{1b}[2J    7\nx\n"
                .replace("    7", "  7")
                .replace("a                b", "a              b")
        );
        assert_eq!(TextTable::new(&["a"]).or("none"), "none\n");
    }
}
