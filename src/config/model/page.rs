//! Pages of the operator: the bodies of answers of the proxy itself, with placeholders for what differs between answers.
//!
//! A page is parsed when the configuration is loaded. It knows nothing of a request; whoever writes it passes the values.

use bytes::Bytes;

/// The pages of each status or class of statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(Vec<(StatusClass, Vec<Page>)>);

/// A status, or all statuses of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusClass {
    /// One status, such as 503.
    Status(u16),
    /// All statuses with this first digit, such as `5xx`.
    Class(u16),
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its text, cut at its placeholders; at least one item.
    pub items: Vec<PageItem>,
    /// Its media type, with a charset where it has one.
    pub media_type: String,
    /// How values are escaped in it.
    pub escape: PageEscape,
}

/// An item of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageItem {
    /// Text that is sent as it is.
    Text(Bytes),
    /// A value of the answer.
    Value(PageValue),
}

/// What a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageValue {
    /// `{{status}}`
    Status,
    /// `{{retry_after}}`: whole seconds; nothing without `Retry-After`.
    RetryAfter,
    /// `{{request_id}}`
    RequestId,
    /// `{{limit}}`: the name of the first visible limit that refuses; nothing otherwise.
    Limit,
}

/// How values are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEscape {
    /// As HTML and XML need it.
    Markup,
    /// As a text of JSON needs it.
    Json,
    /// Not at all.
    None,
}

impl Pages {
    /// The pages of statuses and classes.
    pub fn new(pages: Vec<(StatusClass, Vec<Page>)>) -> Self {
        Self(pages)
    }

    /// The pages of a status: its own, or else those of its class.
    pub fn of(&self, status: u16) -> &[Page] {
        let find = |wanted| self.0.iter().find(|(class, _)| *class == wanted);
        let found =
            find(StatusClass::Status(status)).or_else(|| find(StatusClass::Class(status / 100)));
        found.map_or(&[], |(_, pages)| pages)
    }
}

impl PageValue {
    /// Every placeholder with its name.
    pub const NAMES: [(&str, Self); 4] = [
        ("status", Self::Status),
        ("retry_after", Self::RetryAfter),
        ("request_id", Self::RequestId),
        ("limit", Self::Limit),
    ];
}
