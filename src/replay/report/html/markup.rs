//! Writes HTML. Every text passes [`escaped`]; what is written as it is are constants of this folder.

use super::super::format::shown;

/// Characters of a text. The longest texts are paths and sentences.
const MAX_TEXT: usize = 1_000;

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) enum HtmlColumn {
    /// A text that is not broken: a name, a key, a time.
    Text(&'static str),
    /// A text that may be broken into lines.
    Long(&'static str),
    /// A number.
    Number(&'static str),
}

impl HtmlColumn {
    const fn title(self) -> &'static str {
        match self {
            Self::Text(title) | Self::Long(title) | Self::Number(title) => title,
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Text(_) => "",
            Self::Long(_) => " class=\"long\"",
            Self::Number(_) => " class=\"number\"",
        }
    }
}

/// A text as content or as the value of an attribute in quotes. Control characters and those that change the direction
/// of text are shown as escapes.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in shown(text, MAX_TEXT).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// An element with a text. `tag` may have attributes.
pub(super) fn element(out: &mut String, tag: &str, text: &str) {
    let name = tag.split(' ').next().unwrap_or_default();
    out.push_str(&format!("<{tag}>{}</{name}>\n", escaped(text)));
}

/// Terms and what is to say of them.
pub(super) fn facts(out: &mut String, facts: &[(&str, String)]) {
    if facts.is_empty() {
        return;
    }
    out.push_str("<dl>\n");
    for (name, value) in facts {
        out.push_str(&format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value)));
    }
    out.push_str("</dl>\n");
}

/// A table in a box that scrolls. The first cell of a row names it. Nothing without rows.
pub(super) fn table(out: &mut String, caption: &str, columns: &[HtmlColumn], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let caption = escaped(caption);
    out.push_str(&format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table>\n\
         <caption><span>{caption}</span></caption>\n<thead><tr>"
    ));
    for column in columns {
        let (class, title) = (column.class(), escaped(column.title()));
        out.push_str(&format!("<th scope=\"col\"{class}>{title}</th>"));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (index, (cell, column)) in row.iter().zip(columns).enumerate() {
            let (class, cell) = (column.class(), escaped(cell));
            match index {
                0 => out.push_str(&format!("<th scope=\"row\"{class}>{cell}</th>")),
                _ => out.push_str(&format!("<td{class}>{cell}</td>")),
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Lines as they are, as a configuration has them.
pub(super) fn lines(out: &mut String, text: &str) {
    let lines: Vec<String> = text.lines().map(escaped).collect();
    out.push_str(&format!("<pre tabindex=\"0\">{}\n</pre>\n", lines.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escaped("<a href=\"x\" o='y'>&\u{1b}\u{202e}\u{fc}"),
            "&lt;a href=&quot;x&quot; o=&#39;y&#39;&gt;&amp;\\u{1b}\\u{202e}\u{fc}"
        );
        let mut out = String::new();
        element(&mut out, "p class=\"x\"", "</p>");
        lines(&mut out, "a: 1\n<b>\u{7f}");
        assert_eq!(
            out,
            "<p class=\"x\">&lt;/p&gt;</p>\n<pre tabindex=\"0\">a: 1\n&lt;b&gt;\\u{7f}\n</pre>\n"
        );
    }
}
