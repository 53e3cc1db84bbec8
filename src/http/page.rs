//! Writes a page of the operator with the values of one answer.
//!
//! What must always hold: a value is escaped for the type of the page, and none of them is a text of the request, except
//! for an identifier that a trusted peer sent, whose form was checked.

use bytes::Bytes;

use super::lines::number;
use crate::config::{Page, PageEscape, PageItem, PageValue};

/// The values of one answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageValues<'a> {
    pub(super) status: u16,
    pub(super) retry_after: Option<u64>,
    pub(super) request_id: &'a str,
    pub(super) limit: &'a str,
}

/// The body, which is shared where the page has no placeholder.
pub(super) fn write(page: &Page, values: PageValues<'_>) -> Bytes {
    if let [PageItem::Text(text)] = page.items.as_slice() {
        return text.clone();
    }
    let mut body = Vec::with_capacity(1024);
    for item in &page.items {
        match item {
            PageItem::Text(text) => body.extend_from_slice(text),
            PageItem::Value(PageValue::Status) => number(&mut body, values.status.into()),
            PageItem::Value(PageValue::RetryAfter) => {
                if let Some(seconds) = values.retry_after {
                    number(&mut body, seconds);
                }
            }
            PageItem::Value(PageValue::RequestId) => {
                escaped(&mut body, values.request_id, page.escape);
            }
            PageItem::Value(PageValue::Limit) => escaped(&mut body, values.limit, page.escape),
        }
    }
    body.into()
}

fn escaped(out: &mut Vec<u8>, text: &str, escape: PageEscape) {
    for byte in text.bytes() {
        let replaced: &[u8] = match (escape, byte) {
            (PageEscape::Markup, b'&') => b"&amp;",
            (PageEscape::Markup, b'<') => b"&lt;",
            (PageEscape::Markup, b'>') => b"&gt;",
            (PageEscape::Markup, b'"') => b"&quot;",
            (PageEscape::Markup, b'\'') => b"&#39;",
            (PageEscape::Json, b'"') => b"\\\"",
            (PageEscape::Json, b'\\') => b"\\\\",
            // Line ends and other control bytes would need an escape of their own. No value has any.
            (PageEscape::Json, 0..=0x1f) => b"",
            _ => &[byte],
        };
        out.extend_from_slice(replaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_for_the_type_of_the_page() {
        let written = |escape, request_id| {
            let items = vec![
                PageItem::Text("<p>".into()),
                PageItem::Value(PageValue::Status),
                PageItem::Text(" ".into()),
                PageItem::Value(PageValue::RetryAfter),
                PageItem::Value(PageValue::Limit),
                PageItem::Value(PageValue::RequestId),
            ];
            let page = Page { items, media_type: "text/html".to_owned(), escape };
            let values = PageValues { status: 429, retry_after: Some(7), request_id, limit: "a" };
            String::from_utf8(write(&page, values).to_vec()).unwrap()
        };
        let hostile = "<b a='\"&\\\n>";
        assert_eq!(
            written(PageEscape::Markup, "<b a='\"&>"),
            "<p>429 7a&lt;b a=&#39;&quot;&amp;&gt;"
        );
        assert_eq!(written(PageEscape::Json, hostile), r#"<p>429 7a<b a='\"&\\>"#);
        assert_eq!(written(PageEscape::None, "<"), "<p>429 7a<");
    }
}
