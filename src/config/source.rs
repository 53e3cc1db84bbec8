//! Text to a tree that knows where everything stands, within bounds.
//!
//! Scalars keep their text as typed: what they mean is decided by whoever reads them. What makes a
//! file mean more than it says (tags, anchors, several documents) is refused. A second reader,
//! the one most tools are built on, must agree about the structure.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span};

use crate::config::error::{ConfigError, Location};

/// The largest file: a policy of ten thousand routes is about this long.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting; the configuration itself needs seven.
const MAX_DEPTH: usize = 32;

/// A value with its location.
#[derive(Debug)]
pub(super) struct SourceNode {
    pub(super) location: Location,
    pub(super) kind: SourceContent,
}

#[derive(Debug)]
pub(super) enum SourceContent {
    Scalar {
        text: String,
        /// Not quoted: `null` is nothing, `"null"` is a text.
        plain: bool,
    },
    List(Vec<SourceNode>),
    Map(Vec<(SourceKey, SourceNode)>),
}

#[derive(Debug)]
pub(super) struct SourceKey {
    pub(super) location: Location,
    pub(super) text: String,
}

impl SourceNode {
    /// Whether nothing is written here.
    pub(super) fn is_nothing(&self) -> bool {
        match &self.kind {
            SourceContent::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null")
            }
            SourceContent::Scalar { .. } | SourceContent::List(_) | SourceContent::Map(_) => false,
        }
    }

    /// In words.
    pub(super) fn describe(&self) -> &'static str {
        match &self.kind {
            _ if self.is_nothing() => "nothing",
            SourceContent::Scalar { .. } => "a value",
            SourceContent::List(_) => "a list",
            SourceContent::Map(_) => "a mapping",
        }
    }
}

/// Reads a whole file. Syntax errors end the reading; all others are collected.
pub(super) fn parse(text: &str) -> Result<SourceNode, Vec<ConfigError>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file has more than {MAX_BYTES} bytes");
        return Err(vec![error(Location { line: 1, column: 1 }, message, None)]);
    }
    let mut reader = TreeReader { parser: Parser::new_from_str(text), errors: Vec::new() };
    let tree = reader.document().map_err(|error| vec![error])?;
    if !reader.errors.is_empty() {
        return Err(reader.errors);
    }
    second_opinion(text, &tree).map_err(|error| vec![error])?;
    Ok(tree)
}

struct TreeReader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    errors: Vec<ConfigError>,
}

impl<'t> TreeReader<'t> {
    fn document(&mut self) -> Result<SourceNode, ConfigError> {
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
                        let first = Location { line: 1, column: 1 };
                        error(first, "the file is empty".to_owned(), Some("begin with version: 1"))
                    });
                }
                _ if tree.is_some() => {
                    let message = "a second document begins here".to_owned();
                    return Err(error(
                        location(span.start),
                        message,
                        Some("one file is one document"),
                    ));
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
        let at = location(span.start);
        if depth > MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(error(at, message, None));
        }
        let kind = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_extras(at, anchor, tag.is_some());
                SourceContent::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                }
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_extras(at, anchor, tag.is_some());
                let mut items = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::SequenceEnd {
                        break SourceContent::List(items);
                    }
                    items.push(self.node(event, span, depth + 1)?);
                }
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_extras(at, anchor, tag.is_some());
                self.map(depth)?
            }
            Event::Alias(_) => {
                let cure = "quote it if a * is meant; otherwise write the value out";
                self.errors.push(error(at, "an alias".to_owned(), Some(cure)));
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
        Ok(SourceNode { location: at, kind })
    }

    fn map(&mut self, depth: usize) -> Result<SourceContent, ConfigError> {
        let mut entries: Vec<(SourceKey, SourceNode)> = Vec::new();
        let mut names = hashbrown::HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(SourceContent::Map(entries));
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let SourceContent::Scalar { text, .. } = key.kind else {
                let message = format!("{} stands where a name is expected", key.describe());
                self.errors.push(error(key.location, message, Some("quote it if it is a text")));
                continue;
            };
            if let Some(first) = names.insert(text.clone(), key.location) {
                let message = format!("{text:?} stands twice");
                let cure = format!("it is already on line {}", first.line);
                self.errors.push(error(key.location, message, Some(&cure)));
                continue;
            }
            entries.push((SourceKey { location: key.location, text }, value));
        }
    }

    fn refuse_extras(&mut self, at: Location, anchor: usize, tagged: bool) {
        if anchor != 0 {
            let cure = "write the value out where it is needed";
            self.errors.push(error(at, "an anchor".to_owned(), Some(cure)));
        }
        if tagged {
            let cure = "leave it out, or quote the value if a ! is meant";
            self.errors.push(error(at, "a tag".to_owned(), Some(cure)));
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), ConfigError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(scan)) => Err(syntax(&scan)),
            None => Err(error(Location::default(), "the file ends in the middle".to_owned(), None)),
        }
    }
}

/// ErrorList of the scanner, with a cure where YAML's own rules trip people.
fn syntax(scan: &ScanError) -> ConfigError {
    let info = scan.info();
    let trips = info.contains("alias") || info.contains("anchor") || info.contains("directive");
    let cure = if trips {
        "quote it: a value that begins with * & % or @ needs quotes"
    } else {
        "check the indentation, and quote values that hold : or begin with a special character"
    };
    error(location(*scan.marker()), format!("not YAML: {info}"), Some(cure))
}

/// Reads the text with `serde_yaml` too. Where the two differ, an editor, a linter or the next
/// reader would see another policy than the one in force.
fn second_opinion(text: &str, tree: &SourceNode) -> Result<(), ConfigError> {
    let other: serde_yaml::Value = serde_yaml::from_str(text).map_err(|refused| {
        let at = refused.location().map_or(Location { line: 1, column: 1 }, |location| Location {
            line: location.line(),
            column: location.column(),
        });
        error(at, format!("not YAML: {refused}"), None)
    })?;
    match difference(tree, &other) {
        None => Ok(()),
        Some(at) => {
            let message = "YAML readers disagree about this value".to_owned();
            Err(error(at, message, Some("quote it")))
        }
    }
}

/// The first place where the two readings differ.
fn difference(node: &SourceNode, other: &serde_yaml::Value) -> Option<Location> {
    use serde_yaml::Value;
    let differs = Some(node.location);
    match (&node.kind, other) {
        (SourceContent::Map(entries), Value::Mapping(others)) => {
            if entries.len() != others.len() {
                return differs;
            }
            let pairs = entries.iter().zip(others);
            pairs.into_iter().find_map(|((key, value), (other_key, other_value))| {
                let same = other_key.as_str().is_none_or(|text| text == key.text);
                if same { difference(value, other_value) } else { Some(key.location) }
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

fn location(marker: Marker) -> Location {
    Location { line: marker.line(), column: marker.col() + 1 }
}

fn error(location: Location, message: String, cure: Option<&str>) -> ConfigError {
    ConfigError {
        location: Some(location),
        path: String::new(),
        message,
        cure: cure.map(str::to_owned),
    }
}
