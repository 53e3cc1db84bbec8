//! Says what is wrong with a text that is not YAML, in words for an operator.
//!
//! A YAML parser names the token that it missed, often a line after the mistake. This module looks at the lines around
//! for the mistakes that people make, and points there. It never decides whether a text is YAML.

use super::error::{ConfigError, Location};

/// How many lines before the reported one may hold the mistake.
const MAX_LINES_BACK: usize = 2;

/// What to write instead of an environment variable.
pub(super) const VARIABLE_CURE: &str = "write the value itself; a secret is read from a file (a key that ends in \
                                        _file), and an address, a server or a url may be env:NAME";

/// The error for a text that a YAML parser refused at a location, with what the parser says.
pub(super) fn syntax_error(text: &str, cause: &str, at: Location) -> ConfigError {
    let lines: Vec<&str> = text.lines().collect();
    let found = tab_in_indentation(&lines, at)
        .or_else(|| tab_after_colon(&lines, cause, at))
        .or_else(|| other_comment(&lines, at))
        .or_else(|| unknown_escape(cause, at))
        .or_else(|| bare_pattern(&lines, at))
        .or_else(|| unclosed_quote(&lines, cause))
        .or_else(|| variable(&lines, at))
        .or_else(|| ipv6_address(&lines, at))
        .or_else(|| special_character(&lines, cause, at))
        .or_else(|| colon_without_blank(&lines, cause, at))
        .or_else(|| second_colon(&lines, cause, at))
        .or_else(|| unclosed_bracket(&lines, cause, at))
        .or_else(|| line_without_colon(&lines, cause, at))
        .or_else(|| indentation(cause, at));
    let (location, message, cure) = found.unwrap_or_else(|| {
        let cure =
            "check the indentation, and quote values that hold : or begin with a special character";
        (at, format!("not YAML: {cause}"), cure.to_owned())
    });
    ConfigError {
        file: None,
        location: Some(location),
        path: String::new(),
        message,
        cure: Some(cure),
    }
}

/// Where the mistake is, what it is, and what to write instead.
type Diagnosis = (Location, String, String);

/// The reported line and those before it that may hold the mistake, the nearest first, with their numbers.
fn lines_before<'t>(lines: &[&'t str], at: Location) -> impl Iterator<Item = (usize, &'t str)> {
    let last = at.line.min(lines.len());
    let numbered: Vec<(usize, &str)> = (1..=last).map(|line| (line, lines[line - 1])).collect();
    numbered
        .into_iter()
        .rev()
        .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        .take(MAX_LINES_BACK + 1)
}

fn tab_in_indentation(lines: &[&str], at: Location) -> Option<Diagnosis> {
    // A text goes on in the next line unless that is indented like a key.
    let at = Location { line: at.line + 1, ..at };
    lines_before(lines, at).find_map(|(number, line)| {
        let indentation = &line[..line.len() - line.trim_start().len()];
        let column = 1 + indentation.find('\t')?;
        let location = Location { line: number, column };
        Some((location, "a tab in the indentation".to_owned(), "indent with blanks".to_owned()))
    })
}

fn tab_after_colon(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    let line = lines.get(at.line.checked_sub(1)?).filter(|_| cause.contains("whitespace"))?;
    let before = line.find(":\t")?;
    let location = Location { line: at.line, column: 2 + line[..before].chars().count() };
    let message = "a tab behind a colon".to_owned();
    Some((location, message, "write a blank instead".to_owned()))
}

fn other_comment(lines: &[&str], at: Location) -> Option<Diagnosis> {
    let is_comment =
        |line: &&str| ["//", "/*"].iter().any(|begin| line.trim_start().starts_with(begin));
    let index = lines.iter().take(at.line).position(is_comment)?;
    let line = lines[index];
    let column = 1 + line.chars().count() - line.trim_start().chars().count();
    let location = Location { line: index + 1, column };
    let message = "a comment of another language".to_owned();
    Some((location, message, "begin comments with #".to_owned()))
}

fn unknown_escape(cause: &str, at: Location) -> Option<Diagnosis> {
    let is_escape = cause.contains("escape") && cause.contains("quoted");
    is_escape.then(|| {
        let message = "in double quotes a backslash begins an escape".to_owned();
        (at, message, "write \\\\ for a backslash, or put the text into single quotes".to_owned())
    })
}

/// A regular expression without quotes: its brackets, braces and stars mean something else to YAML.
fn bare_pattern(lines: &[&str], at: Location) -> Option<Diagnosis> {
    let line = lines.get(at.line.checked_sub(1)?)?;
    let before = line.find("regex: ")? + "regex: ".len();
    let pattern = line[before..].trim_start();
    let column = 1 + line.chars().count() - pattern.chars().count();
    if pattern.starts_with(['"', '\'']) || at.column < column {
        return None;
    }
    let location = Location { line: at.line, column };
    let message = "a pattern without quotes means something else in YAML".to_owned();
    Some((location, message, "put it between single quotes: regex: 'PATTERN'".to_owned()))
}

/// `[::]:8080` begins like a list to YAML, and `::1` like a mapping.
fn ipv6_address(lines: &[&str], at: Location) -> Option<Diagnosis> {
    let line = lines.get(at.line.checked_sub(1)?)?;
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | '{' | '}' | '"' | '\'');
    let address = line
        .split(is_end)
        .map(|word| word.strip_prefix('[').filter(|rest| !rest.contains(']')).unwrap_or(word))
        .find(|word| {
            let bare = word.trim_start_matches('[').split([']', '/']).next().unwrap_or(word);
            bare.parse::<std::net::Ipv6Addr>().is_ok()
        })?;
    let address = if address.contains('[') { address } else { address.trim_end_matches(']') };
    let before = line.find(address)?;
    if line[..before].ends_with(['"', '\'']) {
        return None;
    }
    let location = Location { line: at.line, column: 1 + line[..before].chars().count() };
    let message = "an IPv6 address means something else in YAML".to_owned();
    Some((location, message, format!("quote it: \"{address}\"")))
}

/// A quote that is not closed is reported at the end of the file. It begins on the last line with an odd number of them.
fn unclosed_quote(lines: &[&str], cause: &str) -> Option<Diagnosis> {
    let is_quote = cause.contains("quoted scalar") && !cause.contains("escape");
    if !is_quote {
        return None;
    }
    let odd = |line: &str, quote: char| line.matches(quote).count() % 2 == 1;
    let (index, line) = lines
        .iter()
        .enumerate()
        .find(|(_, line)| odd(line, '"') || odd(line, '\'') && !line.contains('"'))?;
    let quote = if odd(line, '"') { '"' } else { '\'' };
    let column = 1 + line.chars().position(|c| c == quote)?;
    let location = Location { line: index + 1, column };
    let message = "a quote that is not closed".to_owned();
    Some((location, message, format!("write {quote} at the end of the text")))
}

/// `${NAME}` between braces is a mapping to YAML.
fn variable(lines: &[&str], at: Location) -> Option<Diagnosis> {
    let line = lines.get(at.line.checked_sub(1)?)?;
    let before = line.find("${")?;
    let name = line[before..].split_inclusive('}').next()?;
    let column = 1 + line[..before].chars().count();
    let location = Location { line: at.line, column };
    let message = format!("environment variables such as {name} are not expanded");
    Some((location, message, VARIABLE_CURE.to_owned()))
}

fn special_character(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    const CHARACTERS: [char; 6] = ['*', '&', '%', '@', '`', '!'];
    let is_special =
        ["alias", "anchor", "directive", "unexpected character", "tag", "cannot start any token"]
            .iter()
            .any(|word| cause.contains(word));
    if !is_special {
        return None;
    }
    let line = lines.get(at.line.checked_sub(1)?)?;
    let begins_value = |(index, c): &(usize, char)| {
        CHARACTERS.contains(c)
            && line
                .chars()
                .take(*index)
                .filter(|c| !c.is_whitespace())
                .last()
                .is_none_or(|before| matches!(before, ':' | '[' | '{' | ',' | '-'))
    };
    let characters: Vec<(usize, char)> = line.chars().enumerate().collect();
    let (index, special) = *characters.iter().find(|found| begins_value(found))?;
    let value: String = line.chars().skip(index).collect();
    let value = value.split([',', ']', '}', ' ']).next().unwrap_or_default();
    let location = Location { line: at.line, column: index + 1 };
    let message = format!("a value that begins with {special} means something else in YAML");
    let cure = match special {
        '*' => format!("quote it: \"{value}\", or write the value out if it is an alias"),
        _ => format!("quote it: \"{value}\""),
    };
    Some((location, message, cure))
}

/// `rate:60/1m` is one text to YAML.
fn colon_without_blank(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    let is_possible = ["simple key", "mapping values", "expected key", "expected ':'"];
    if !is_possible.iter().any(|words| cause.contains(words)) {
        return None;
    }
    lines_before(lines, at).find_map(|(number, line)| {
        let trimmed = line.trim_start();
        let begin = trimmed.strip_prefix("- ").unwrap_or(trimmed).trim_start();
        let cure = blank_after_colon(begin)?;
        let column = 1 + line.chars().count() - begin.chars().count();
        let location = Location { line: number, column };
        Some((location, "a colon without a blank behind it".to_owned(), cure))
    })
}

/// What to write for `key:value`. `None` if the text is something else.
pub(super) fn blank_after_colon(text: &str) -> Option<String> {
    let (key, value) = text.split_once(':')?;
    let is_key = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
        && key.as_bytes()[0].is_ascii_lowercase();
    let is_value = !value.is_empty() && !value.starts_with([' ', '\t', '/', ':']);
    (is_key && is_value).then(|| format!("write {key}: {value}", value = value.trim_end()))
}

/// `key: header: x` and `title: a: b`.
fn second_colon(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    if !cause.contains("mapping values") {
        return None;
    }
    let line = lines.get(at.line.checked_sub(1)?)?;
    let trimmed = line.trim_start();
    let begin = trimmed.strip_prefix("- ").unwrap_or(trimmed);
    let (key, value) = begin.split_once(": ")?;
    if !value.contains(": ") && !value.trim_end().ends_with(':') {
        return None;
    }
    let (key, value) = (key.trim(), value.trim());
    let column = 1 + line.chars().count() - value.chars().count();
    let location = Location { line: at.line, column };
    let cure = match value.split_once(": ") {
        Some((word @ ("header" | "cookie" | "query" | "path_segment" | "class"), name))
            if key == "key" =>
        {
            format!("write key: {word}:{}, without a blank", name.trim())
        }
        _ => format!("quote the value: {key}: {value:?}, or begin a new line"),
    };
    Some((location, "a second colon in one line".to_owned(), cure))
}

/// A bracket that is not closed is reported where the parser cannot go on, often lines later.
fn unclosed_bracket(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    let is_flow = ["flow", "unexpected eof", "misplaced bracket"];
    if !is_flow.iter().any(|word| cause.contains(word)) {
        return None;
    }
    let mut open: Vec<(char, Location)> = Vec::new();
    let end = at.line.min(lines.len());
    for (index, line) in lines[..end].iter().enumerate() {
        let mut quote = None;
        let mut before = ' ';
        for (column, c) in line.chars().enumerate() {
            let location = Location { line: index + 1, column: column + 1 };
            if location >= at {
                break;
            }
            match (quote, c) {
                (Some(begin), c) if c == begin => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(c),
                (None, '#') if before.is_whitespace() => break,
                (None, '[' | '{') => open.push((c, location)),
                (None, ']' | '}') => drop(open.pop()),
                (None, _) => {}
            }
            before = c;
        }
    }
    let (bracket, location) = open.pop()?;
    let closing = if bracket == '[' { ']' } else { '}' };
    // In JSON everything is inside one bracket, and the comma is what is forgotten.
    let is_json = location == Location::START && !cause.contains("eof");
    let (location, message) = match location.line == at.line || is_json {
        true => (at, format!("before this a comma or {closing} is missing")),
        false => (location, format!("after this {bracket} a comma or {closing} is missing")),
    };
    let cure = format!("separate the entries by commas, and close the bracket by {closing}");
    Some((location, message, cure))
}

fn line_without_colon(lines: &[&str], cause: &str, at: Location) -> Option<Diagnosis> {
    let words = ["simple key", "expected key", "expected ':'", "mapping values"];
    if !words.iter().any(|word| cause.contains(word)) {
        return None;
    }
    lines_before(lines, at).find_map(|(number, line)| {
        let trimmed = line.trim().trim_start_matches("- ");
        let (trimmed, value) = trimmed.split_once(' ').unwrap_or((trimmed, "VALUE"));
        if line.contains(':') {
            return None;
        }
        let is_word = trimmed.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let column = 1 + line.chars().count() - line.trim_start().chars().count();
        let location = Location { line: number, column };
        let found =
            (location, "a key without a colon".to_owned(), format!("write {trimmed}: {value}"));
        is_word.then_some(found)
    })
}

/// A line that is indented otherwise than its neighbours.
fn indentation(cause: &str, at: Location) -> Option<Diagnosis> {
    let words = ["expected key", "'-' indicator", "mapping values", "simple key", "indentation"];
    if !words.iter().any(|word| cause.contains(word)) {
        return None;
    }
    let message = "this line fits to nothing before it".to_owned();
    let cure = "indent it like its neighbours, and write `key: value`, or `- value` in a list";
    Some((at, message, cure.to_owned()))
}
