//! `responses.pages`: files of the operator as bodies of the answers that the proxy itself gives. Each file is read and
//! parsed here, so that a page with a mistake is refused before it is needed.

use std::path::Path;

use http::HeaderValue;

use crate::config::files::read_bounded;
use crate::config::model::{
    Page, PageEscape, PageItem, PageValue, Pages, RefusalBody, Responses, StatusClass,
};
use crate::config::reader::{Located, NamedValue, did_you_mean};

use super::json_page;

/// Largest body of an answer, in bytes. It is sent with every such answer.
const MAX_BODY: u64 = 64 * 1024;

/// Media types of pages by the end of the file's name.
const MEDIA_TYPES: [(&str, &str); 5] = [
    (".html", "text/html; charset=utf-8"),
    (".htm", "text/html; charset=utf-8"),
    (".txt", "text/plain; charset=utf-8"),
    (".json", "application/json"),
    (".xml", "application/xml"),
];

/// The type of the answers that tollgate words itself.
const PROBLEM_JSON: &str = "application/problem+json";

/// The longest name of a placeholder that an error repeats, in characters.
const MAX_SHOWN_NAME: usize = 40;

/// `pages`: a file, or a list of files of different types, for each status or class.
pub(super) fn pages(at: &Located<'_>, folder: &Path) -> Pages {
    let mut pages = Vec::new();
    for NamedValue { name, at } in at.named_values() {
        let Some(class) = status_class(name) else {
            at.error_with(
                format!("{name:?} is not a status of an answer of this proxy"),
                "write a status from 400 to 599, or 4xx or 5xx",
            );
            continue;
        };
        let items = at.list_or_single();
        if items.is_empty() {
            at.error_with("no page", "write a file, for example sorry.html");
        }
        let mut found: Vec<Page> = Vec::new();
        for item in items {
            let Some(page) = page(&item, folder) else {
                continue;
            };
            let is_same = |other: &Page| {
                essence(&other.media_type).eq_ignore_ascii_case(essence(&page.media_type))
            };
            if found.iter().any(is_same) {
                let message = format!("two pages of the type {}", essence(&page.media_type));
                item.error_with(message, "remove one of them");
            }
            found.push(page);
        }
        pages.push((class, found));
    }
    Pages::new(pages)
}

/// Refuses a page for 429 that `body` hides: both are offered to the client, and the first of a type wins.
pub(super) fn refuse_unsent(at: &Located<'_>, responses: &Responses) {
    let types = responses.bodies.iter().filter_map(|body| match body {
        RefusalBody::File { media_type, .. } => Some(essence(media_type)),
        RefusalBody::Problem | RefusalBody::Grpc => None,
    });
    let types: Vec<&str> = types.collect();
    let mut pages = responses.pages.of(429).iter().map(|page| essence(&page.media_type));
    let is_listed = |page: &&str| types.iter().any(|listed| listed.eq_ignore_ascii_case(page));
    if let Some(hidden) = pages.find(is_listed) {
        at.error_with(
            format!("responses.body has a {hidden} body for 429, so the page for it is never sent"),
            "leave that body out, or the page",
        );
    }
}

/// `429`, `4xx` or `5xx`.
fn status_class(name: &str) -> Option<StatusClass> {
    match name {
        "4xx" => Some(StatusClass::Class(4)),
        "5xx" => Some(StatusClass::Class(5)),
        _ => {
            let status = name.parse().ok().filter(|status| (400..600).contains(status))?;
            Some(StatusClass::Status(status))
        }
    }
}

/// `sorry.html`, or `{ file: sorry, type: text/html }`.
fn page(at: &Located<'_>, folder: &Path) -> Option<Page> {
    let (file_at, media_type) = if at.is_mapping() {
        let mut map = at.mapping()?;
        let file = map.require("file", "write { file: sorry.html, type: text/html }");
        let type_at = map.require("type", "write type: text/html");
        map.finish();
        let (file, type_at) = (file?, type_at?);
        let media_type = type_at.parse(media_type_text)?;
        if essence(&media_type).eq_ignore_ascii_case(PROBLEM_JSON) {
            type_at.error_with(
                "a page of this type is never sent: every answer has a problem document of its own",
                "write application/json, or leave the page out",
            );
            return None;
        }
        (file, media_type)
    } else {
        let text = at.text()?;
        let Some((_, media_type)) = MEDIA_TYPES.iter().find(|(end, _)| text.ends_with(end)) else {
            at.error_with(
                format!("the type of {text:?} is unknown"),
                "write { file: sorry, type: text/html }",
            );
            return None;
        };
        (at.clone(), (*media_type).to_owned())
    };
    let name = file_at.text()?;
    let content = file_at.parse(|text| body_content(&folder.join(text)))?;
    let Ok(content) = String::from_utf8(content) else {
        file_at.error_with(format!("{name} is not UTF-8"), "save it as UTF-8");
        return None;
    };
    match items(&content) {
        Ok(items) => {
            if json_page::is_json(essence(&media_type))
                && let Err(why) = json_page::check(&items)
            {
                let cure = "put each placeholder in quotes: it may be empty or a text";
                file_at.error_with(format!("{name} is no JSON {why}"), cure);
            }
            Some(Page { items, escape: escape(&media_type), media_type })
        }
        Err(PageError { line, message }) => {
            let known = PageValue::NAMES.map(|(name, _)| name);
            let cure = did_you_mean(message.name(), &known)
                .unwrap_or_else(|| format!("known here: {}", known.join(", ")));
            file_at.error_with(format!("{name}, line {line}: {message}"), cure);
            None
        }
    }
}

/// The content of a body, at most [`MAX_BODY`]. An empty file is what an interrupted copy leaves behind.
pub(super) fn body_content(file: &Path) -> Result<Vec<u8>, String> {
    let content = read_bounded(file, MAX_BODY)?;
    if content.is_empty() { Err(format!("{}: is empty", file.display())) } else { Ok(content) }
}

/// A mistake in a page.
struct PageError {
    line: usize,
    message: Mistake,
}

#[derive(Debug, thiserror::Error)]
enum Mistake {
    #[error("{{{{ without }}}} on its line")]
    Open,
    #[error("unknown placeholder {{{{{0}}}}}")]
    Unknown(String),
}

impl Mistake {
    /// The name that stands in the page.
    fn name(&self) -> &str {
        match self {
            Self::Open => "",
            Self::Unknown(name) => name,
        }
    }
}

/// Cuts a page at its placeholders.
fn items(content: &str) -> Result<Vec<PageItem>, PageError> {
    let text = |text: &str| PageItem::Text(text.as_bytes().to_vec().into());
    let (mut items, mut rest) = (Vec::new(), content);
    while let Some((before, after)) = rest.split_once("{{") {
        let line = content[..content.len() - after.len()].lines().count();
        let error = |message| PageError { line, message };
        let closed = after.split_once("}}").filter(|(name, _)| !name.contains('\n'));
        let (name, after) = closed.ok_or_else(|| error(Mistake::Open))?;
        let name = name.trim();
        let Some((_, value)) = PageValue::NAMES.into_iter().find(|(known, _)| *known == name)
        else {
            let shown = name.chars().take(MAX_SHOWN_NAME).collect();
            return Err(error(Mistake::Unknown(shown)));
        };
        if !before.is_empty() {
            items.push(text(before));
        }
        items.push(PageItem::Value(value));
        rest = after;
    }
    if !rest.is_empty() || items.is_empty() {
        items.push(text(rest));
    }
    Ok(items)
}

/// `type/subtype`, with parameters perhaps, as a field value can hold it. A range such as `text/*` is none.
pub(super) fn media_type_text(text: &str) -> Result<String, String> {
    let in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
    let is_token = |token: &str| !token.is_empty() && token.bytes().all(in_token);
    let parts = essence(text).split_once('/');
    let is_type = parts.is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    let has_blanks = text.trim_ascii() != text;
    if is_type && !has_blanks && HeaderValue::try_from(text).is_ok() {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a media type; write for example text/html"))
    }
}

fn escape(media_type: &str) -> PageEscape {
    let essence = essence(media_type).to_ascii_lowercase();
    if essence == "text/html" || essence.ends_with("xml") {
        PageEscape::Markup
    } else if essence.ends_with("json") {
        PageEscape::Json
    } else {
        PageEscape::None
    }
}

/// A media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or("").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_is_two_tokens_with_parameters() {
        for text in ["text/html", "text/html; charset=utf-8", "application/vnd.api+json;v=\"1\""] {
            assert_eq!(media_type_text(text).as_deref(), Ok(text));
        }
        for text in [
            "", "html", "/html", "text/", "a b/c d", "text/*", "*/*", "a/b/c", " a/b", "a/(b)",
            "a/b\n",
        ] {
            assert!(media_type_text(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_page_is_cut_at_its_placeholders() {
        let text = |text: &'static str| PageItem::Text(text.into());
        let cut = |content| items(content).map_err(|error| (error.line, error.message.to_string()));
        assert_eq!(cut("plain { x }"), Ok(vec![text("plain { x }")]));
        assert_eq!(cut(""), Ok(vec![text("")]));
        assert_eq!(
            cut("a{{status}}{{ limit }} b"),
            Ok(vec![
                text("a"),
                PageItem::Value(PageValue::Status),
                PageItem::Value(PageValue::Limit),
                text(" b"),
            ])
        );
        let refused = |line, message: &str| Err((line, message.to_owned()));
        assert_eq!(cut("a\n{{reqest_id}}"), refused(2, "unknown placeholder {{reqest_id}}"));
        assert_eq!(cut("a\n\n  {{status\n}}"), refused(3, "{{ without }} on its line"));
        assert_eq!(cut("{{"), refused(1, "{{ without }} on its line"));
    }
}
