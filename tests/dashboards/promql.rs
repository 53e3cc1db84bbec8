//! Finds the names in an expression of PromQL: metrics, label matchers, labels of groups, and numbers.
//!
//! It does not know functions or precedence; promtool does. What must always hold: a word is taken for a metric unless
//! its position says that it is something else, so that no name escapes the comparison with `/metrics`.

use std::ops::Range;

/// Words before a list of labels in parentheses.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Words that stand alone and name nothing.
const KEYWORDS: [&str; 8] = ["and", "or", "unless", "atan2", "bool", "offset", "inf", "nan"];

#[derive(Debug, Default)]
pub(crate) struct Expression {
    pub(crate) selectors: Vec<Selector>,
    /// Labels of `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub(crate) grouped_by: Vec<String>,
    /// Where numbers are in the text; durations are none.
    pub(crate) numbers: Vec<Range<usize>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<Matcher>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    pub(crate) label: String,
    /// Whether the value is a regular expression (`=~`, `!~`).
    pub(crate) is_pattern: bool,
    pub(crate) value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number(Range<usize>),
    Duration,
    Symbol(char),
}

impl Expression {
    /// Reads an expression. Panics on what this reader does not know.
    pub(crate) fn read(text: &str) -> Self {
        let tokens = tokens(text);
        let is_open = |at: usize, symbol| tokens.get(at) == Some(&Token::Symbol(symbol));
        let is_grouped = |at: usize| {
            let word = tokens.get(at).and_then(word_of);
            word.is_some_and(|word| word == "by" || word == "without")
        };
        let (mut found, mut at) = (Self::default(), 0);
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                Token::Number(range) => found.numbers.push(range.clone()),
                Token::Symbol('{') => panic!("a selector without a metric in {text}"),
                Token::Word(word) if BEFORE_LABELS.contains(&word.as_str()) => {
                    if is_open(at, '(') {
                        let end = end_of_list(&tokens, at, ')', text);
                        found.grouped_by.extend(tokens[at + 1..end].iter().filter_map(word_of));
                        at = end + 1;
                    }
                }
                // A function or an aggregation: `rate(`, `sum by (`. Or `and (`.
                Token::Word(_) if is_open(at, '(') || is_grouped(at) => {}
                Token::Word(word) if KEYWORDS.contains(&word.to_ascii_lowercase().as_str()) => {}
                Token::Word(word) => {
                    let mut selector = Selector { metric: word.clone(), matchers: Vec::new() };
                    if is_open(at, '{') {
                        let end = end_of_list(&tokens, at, '}', text);
                        selector.matchers = matchers(&tokens[at + 1..end], text);
                        at = end + 1;
                    }
                    found.selectors.push(selector);
                }
                Token::Text(_) | Token::Duration | Token::Symbol(_) => {}
            }
        }
        found
    }
}

fn word_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) => Some(word.clone()),
        _ => None,
    }
}

fn end_of_list(tokens: &[Token], open: usize, close: char, text: &str) -> usize {
    let after = tokens[open..].iter().position(|token| *token == Token::Symbol(close));
    open + after.unwrap_or_else(|| panic!("no {close} in {text}"))
}

/// The matchers between the braces of a selector.
fn matchers(tokens: &[Token], text: &str) -> Vec<Matcher> {
    let lists = tokens.split(|token| *token == Token::Symbol(','));
    let matcher = |tokens: &[Token]| match tokens {
        [Token::Word(label), operator @ .., Token::Text(value)] if !operator.is_empty() => {
            Matcher {
                label: label.clone(),
                is_pattern: operator.last() == Some(&Token::Symbol('~')),
                value: value.clone(),
            }
        }
        _ => panic!("no matcher: {tokens:?} in {text}"),
    };
    lists.filter(|tokens| !tokens.is_empty()).map(matcher).collect()
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let start = at;
        let run = |is_part: fn(char) -> bool| {
            let rest = &text[start..];
            start + rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())
        };
        at += first.len_utf8();
        match first {
            ' ' | '\n' => {}
            '"' | '\'' => {
                let end = at + text[at..].find(first).expect("a text ends");
                assert!(!text[at..end].contains('\\'), "escapes are not read: {text}");
                tokens.push(Token::Text(text[at..end].to_owned()));
                at = end + 1;
            }
            '0'..='9' => {
                at = run(|c| c.is_ascii_alphanumeric() || c == '.');
                let is_number = text[start..at].parse::<f64>().is_ok();
                tokens.push(if is_number { Token::Number(start..at) } else { Token::Duration });
            }
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                at = run(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
                tokens.push(Token::Word(text[start..at].to_owned()));
            }
            symbol if "(){}[],+-*/%^=!<>~@".contains(symbol) => tokens.push(Token::Symbol(symbol)),
            other => panic!("{other:?} is not read: {text}"),
        }
    }
    tokens
}

#[test]
fn names_are_found_wherever_they_stand() {
    let text = "histogram_quantile(0.9, sum by (le, tier) (rate(a_bucket{x=~\"b|c\", y!='d'}[5m] offset 1h)))
        / on (z) group_left () (b > 0) or c and absent(d{}) unless 2 * E:f";
    let read = Expression::read(text);
    let names: Vec<&str> = read.selectors.iter().map(|found| found.metric.as_str()).collect();
    assert_eq!(names, ["a_bucket", "b", "c", "d", "E:f"]);
    let matcher = |label: &str, is_pattern, value: &str| Matcher {
        label: label.to_owned(),
        is_pattern,
        value: value.to_owned(),
    };
    assert_eq!(read.selectors[0].matchers, [matcher("x", true, "b|c"), matcher("y", false, "d")]);
    assert_eq!(read.grouped_by, ["le", "tier", "z"]);
    let numbers: Vec<&str> = read.numbers.into_iter().map(|range| &text[range]).collect();
    assert_eq!(numbers, ["0.9", "0", "2"]);
}
