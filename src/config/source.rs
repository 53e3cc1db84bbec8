//! Parses YAML text into a tree whose nodes know their locations.
//!
//! Scalars keep their text as typed; the reader of each key decides what a text means. Features
//! that hide what a file says (tags, anchors, several documents) are refused, and size and depth
//! are bounded. A second parser, `serde_yaml`, must agree about the structure, so that an editor or
//! a linter sees the same configuration.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::error::{ConfigError, Location};
use super::json_text::YamlText;
use super::syntax::syntax_error;

/// Largest file, in bytes. A policy of ten thousand routes is about this long.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Deepest nesting. The configuration itself needs seven levels.
const MAX_DEPTH: usize = 32;

/// A file of a configuration: 0 is the file itself, the others are those that it includes.
pub(super) type FileIndex = usize;

/// What the error about an anchor says.
const ANCHOR: &str = "an anchor";

/// A value in the file and its location.
#[derive(Debug)]
pub(super) struct SourceNode {
    /// The file that it is in.
    pub(super) file: FileIndex,
    pub(super) location: Location,
    pub(super) content: SourceContent,
}

/// What a value consists of.
#[derive(Debug)]
pub(super) enum SourceContent {
    Scalar {
        text: String,
        /// Whether it is not quoted: a plain `null` is nothing, and `"null"` is a text.
        plain: bool,
    },
    List(Vec<SourceNode>),
    /// The names differ from each other.
    Mapping(Vec<SourceEntry>),
}

/// A name in a mapping and its value.
#[derive(Debug)]
pub(super) struct SourceEntry {
    /// Location of the name.
    pub(super) location: Location,
    pub(super) name: String,
    pub(super) value: SourceNode,
}

impl SourceNode {
    /// Whether the value is left empty.
    pub(super) fn is_nothing(&self) -> bool {
        match &self.content {
            SourceContent::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null")
            }
            SourceContent::Scalar { .. } | SourceContent::List(_) | SourceContent::Mapping(_) => {
                false
            }
        }
    }

    /// What the value is, in the words of an error.
    pub(super) fn describe(&self) -> &'static str {
        match &self.content {
            _ if self.is_nothing() => "nothing",
            SourceContent::Scalar { .. } => "a value",
            SourceContent::List(_) => "a list",
            SourceContent::Mapping(_) => "a mapping",
        }
    }
}

/// Parses a file. A syntax error ends the parsing; all other errors are collected.
///
/// `begin`: what to write into an empty file.
pub(super) fn parse(
    text: &str,
    file: FileIndex,
    begin: &str,
) -> Result<SourceNode, Vec<ConfigError>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file has more than {MAX_BYTES} bytes");
        let cure = "move a part of it into files that it includes: include: [limits.d/*.yaml]";
        return Err(vec![error(Location::START, message, Some(cure))]);
    }
    // Editors of some systems begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = control_character(text) {
        let cure = "remove it, or write it as an escape in double quotes";
        return Err(vec![error(at, "a control character".to_owned(), Some(cure))]);
    }
    let yaml = YamlText::new(text);
    let parser = Parser::new_from_str(&yaml.text);
    let mut reader = TreeReader { yaml: &yaml, file, parser, errors: Vec::new() };
    let tree = reader.document(begin).map_err(|error| vec![error])?;
    if !reader.errors.is_empty() {
        return Err(reader.errors);
    }
    check_with_second_parser(&yaml, &tree).map_err(|error| vec![error])?;
    Ok(tree)
}

/// The first character that no line of text has.
fn control_character(text: &str) -> Option<Location> {
    let is_control = |c: char| c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r');
    let before = &text[..text.find(is_control)?];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = 1 + memchr::memchr_iter(b'\n', before.as_bytes()).count();
    Some(Location { line, column: 1 + before[line_start..].chars().count() })
}

struct TreeReader<'t> {
    yaml: &'t YamlText<'t>,
    file: FileIndex,
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    errors: Vec<ConfigError>,
}

impl<'t> TreeReader<'t> {
    fn document(&mut self, begin: &str) -> Result<SourceNode, ConfigError> {
        let mut tree = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart
                | Event::DocumentStart(_)
                | Event::DocumentEnd
                | Event::Nothing => {}
                Event::StreamEnd => {
                    return tree.ok_or_else(|| {
                        error(Location::START, "the file is empty".to_owned(), Some(begin))
                    });
                }
                _ if tree.is_some() => {
                    let message = "a second document begins here".to_owned();
                    let cure = "write one document per file";
                    return Err(error(self.location(span.start), message, Some(cure)));
                }
                event => tree = Some(self.node(event, span, 0)?),
            }
        }
    }

    fn node(
        &mut self,
        event: Event<'t>,
        span: Span,
        depth: usize,
    ) -> Result<SourceNode, ConfigError> {
        let at = self.location(span.start);
        if depth > MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            let cure = "write fewer lists and mappings inside each other";
            return Err(error(at, message, Some(cure)));
        }
        let content = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_anchor_and_tag(at, anchor, tag.is_some());
                SourceContent::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                }
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_anchor_and_tag(at, anchor, tag.is_some());
                self.list(depth)?
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_anchor_and_tag(at, anchor, tag.is_some());
                self.mapping(depth)?
            }
            Event::Alias(_) => {
                let cure = "quote it if the * is part of the text; otherwise write the value out";
                // An anchor and its alias are one mistake.
                if self.errors.iter().all(|error| error.message != ANCHOR) {
                    self.errors.push(error(at, "an alias".to_owned(), Some(cure)));
                }
                SourceContent::Scalar { text: String::new(), plain: true }
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => {
                return Err(error(at, "the file ends in the middle".to_owned(), None));
            }
        };
        Ok(SourceNode { file: self.file, location: at, content })
    }

    fn list(&mut self, depth: usize) -> Result<SourceContent, ConfigError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(SourceContent::List(items));
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<SourceContent, ConfigError> {
        let mut entries: Vec<SourceEntry> = Vec::new();
        let mut locations = hashbrown::HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(SourceContent::Mapping(entries));
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let SourceContent::Scalar { text: name, .. } = key.content else {
                let message = format!("expected a name, found {}", key.describe());
                let cure = "quote it if it is a text; a template ({{ }}) is not filled in here";
                self.errors.push(error(key.location, message, Some(cure)));
                continue;
            };
            if let Some(first) = locations.insert(name.clone(), key.location) {
                let message = format!("{name:?} is written twice");
                let cure = format!("it is already on line {}", first.line);
                self.errors.push(error(key.location, message, Some(&cure)));
                continue;
            }
            entries.push(SourceEntry { location: key.location, name, value });
        }
    }

    /// `anchor` is 0 if the node has none.
    fn refuse_anchor_and_tag(&mut self, at: Location, anchor: usize, has_tag: bool) {
        if anchor != 0 {
            let cure = "write the value out where it is needed";
            self.errors.push(error(at, ANCHOR.to_owned(), Some(cure)));
        }
        if has_tag {
            let cure = "leave it out, or quote the value if the ! is part of the text";
            self.errors.push(error(at, "a tag".to_owned(), Some(cure)));
        }
    }

    fn location(&self, marker: Marker) -> Location {
        self.yaml.typed(Location { line: marker.line(), column: marker.col() + 1 })
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), ConfigError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(scan)) => {
                let at = self.location(*scan.marker());
                Err(syntax_error(&self.yaml.text, scan.info(), at))
            }
            None => Err(error(Location::default(), "the file ends in the middle".to_owned(), None)),
        }
    }
}

/// Parses the text with `serde_yaml` too. If the results differ, an editor or a linter would see
/// another policy than the one in force.
fn check_with_second_parser(yaml: &YamlText<'_>, tree: &SourceNode) -> Result<(), ConfigError> {
    let other: serde_yaml::Value = serde_yaml::from_str(&yaml.text).map_err(|refused| {
        let at = refused.location().map_or(Location::START, |location| Location {
            line: location.line(),
            column: location.column(),
        });
        syntax_error(&yaml.text, &refused.to_string(), yaml.typed(at))
    })?;
    match difference(tree, &other) {
        None => Ok(()),
        Some(at) => {
            let message = "YAML parsers disagree about this value".to_owned();
            Err(error(at, message, Some("quote it")))
        }
    }
}

/// The first location at which the two results differ.
fn difference(node: &SourceNode, other: &serde_yaml::Value) -> Option<Location> {
    use serde_yaml::Value;
    let differs = Some(node.location);
    match (&node.content, other) {
        (SourceContent::Mapping(entries), Value::Mapping(others)) => {
            if entries.len() != others.len() {
                return differs;
            }
            entries.iter().zip(others).find_map(|(entry, (other_name, other_value))| {
                let is_same_name = other_name.as_str().is_none_or(|text| text == entry.name);
                if is_same_name {
                    difference(&entry.value, other_value)
                } else {
                    Some(entry.location)
                }
            })
        }
        (SourceContent::List(items), Value::Sequence(others)) => {
            if items.len() != others.len() {
                return differs;
            }
            items.iter().zip(others).find_map(|(item, other)| difference(item, other))
        }
        (SourceContent::Scalar { text, .. }, Value::String(other)) if text == other => None,
        (
            SourceContent::Scalar { plain: true, .. },
            Value::Null | Value::Bool(_) | Value::Number(_),
        ) => None,
        _ => differs,
    }
}

fn error(location: Location, message: String, cure: Option<&str>) -> ConfigError {
    ConfigError {
        location: Some(location),
        file: None,
        path: String::new(),
        message,
        cure: cure.map(str::to_owned),
    }
}
