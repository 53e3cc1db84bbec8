//! Splits an event stream (`text/event-stream`, HTML standard, section 9.2.6) into the texts of its events.
//!
//! Only `data` fields matter. Lines end with CR LF, LF or CR; the data lines of one event are joined by a line feed; an
//! empty line ends the event. It keeps no text: each run of bytes goes on at once. It does not know what the events hold.

/// The field whose lines make up an event's text.
const TEXT_FIELD: &[u8] = b"data";

/// The state between two chunks of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventStream {
    line: LineState,
    /// Whether the last byte was a CR, which an LF may follow.
    is_after_cr: bool,
    /// Whether the event has a data line.
    has_text: bool,
}

/// Where in a line the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// In the name of a field: how many bytes of [`TEXT_FIELD`] it equals.
    Field(usize),
    /// After the colon, where one space is ignored.
    AfterColon,
    /// In the value of a data line.
    Value,
    /// In another line, or a comment.
    Ignored,
}

/// What a stream consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamItem<'b> {
    /// The next bytes of an event's text.
    Text(&'b [u8]),
    /// The end of an event that has a text.
    End,
}

impl Default for EventStream {
    fn default() -> Self {
        Self { line: LineState::Field(0), is_after_cr: false, has_text: false }
    }
}

impl EventStream {
    /// Reads the next bytes of the stream.
    pub(super) fn push<'b>(&mut self, mut bytes: &'b [u8], mut visit: impl FnMut(StreamItem<'b>)) {
        while let Some((byte, rest)) = bytes.split_first() {
            let is_second_of_line_end = std::mem::take(&mut self.is_after_cr) && *byte == b'\n';
            match (self.line, byte) {
                _ if is_second_of_line_end => {}
                (_, b'\r' | b'\n') => {
                    self.end_line(&mut visit);
                    self.is_after_cr = *byte == b'\r';
                }
                (LineState::Value | LineState::Ignored, _) => {
                    let end = memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    let (run, rest) = bytes.split_at(end);
                    if self.line == LineState::Value {
                        visit(StreamItem::Text(run));
                    }
                    bytes = rest;
                    continue;
                }
                (LineState::AfterColon, b' ') => self.line = LineState::Value,
                (LineState::AfterColon, _) => {
                    self.line = LineState::Value;
                    continue;
                }
                (LineState::Field(equal), b':') if equal == TEXT_FIELD.len() => {
                    self.begin_text_line(&mut visit);
                    self.line = LineState::AfterColon;
                }
                (LineState::Field(equal), byte) => {
                    self.line = match TEXT_FIELD.get(equal) == Some(byte) {
                        true => LineState::Field(equal + 1),
                        false => LineState::Ignored,
                    };
                }
            }
            bytes = rest;
        }
    }

    /// Ends the last event at the end of the stream, although no empty line followed it.
    pub(super) fn finish(&mut self, mut visit: impl FnMut(StreamItem<'static>)) {
        self.end_line(&mut visit);
        if std::mem::take(&mut self.has_text) {
            visit(StreamItem::End);
        }
    }

    /// A second data line of an event follows a line feed.
    fn begin_text_line<'b>(&mut self, visit: &mut impl FnMut(StreamItem<'b>)) {
        if std::mem::replace(&mut self.has_text, true) {
            visit(StreamItem::Text(b"\n"));
        }
    }

    fn end_line<'b>(&mut self, visit: &mut impl FnMut(StreamItem<'b>)) {
        match std::mem::replace(&mut self.line, LineState::Field(0)) {
            LineState::Field(0) => {
                if std::mem::take(&mut self.has_text) {
                    visit(StreamItem::End);
                }
            }
            // A field without a colon has an empty value.
            LineState::Field(equal) if equal == TEXT_FIELD.len() => self.begin_text_line(visit),
            LineState::Field(_) | LineState::AfterColon | LineState::Value | LineState::Ignored => {
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of the events, cut into chunks of `size` bytes.
    fn events(stream: &str, size: usize) -> Vec<String> {
        let (mut events, mut text) = (Vec::new(), Vec::new());
        let mut visit = |item: StreamItem<'_>| match item {
            StreamItem::Text(bytes) => text.extend_from_slice(bytes),
            StreamItem::End => {
                events.push(String::from_utf8(std::mem::take(&mut text)).unwrap());
            }
        };
        let mut reader = EventStream::default();
        for chunk in stream.as_bytes().chunks(size) {
            reader.push(chunk, &mut visit);
        }
        reader.finish(&mut visit);
        events
    }

    #[test]
    fn events_are_found_whatever_ends_a_line_and_wherever_it_is_cut() {
        let rows: [(&str, &[&str]); 9] = [
            ("data: a\n\ndata: b\n\n", &["a", "b"]),
            ("data: a\ndata: b\n\n", &["a\nb"]),
            ("data:a\ndata:  b\n\n", &["a\n b"]),
            (": ping\nevent: x\nid: 1\ndata: a\nretry: 5\n\n", &["a"]),
            ("\n\n: only a comment\n\nevent: x\n\n", &[]),
            ("data\ndata\n\n", &["\n"]),
            ("datas: a\n\ndat: b\n\n data: c\n\nDATA: d\n\n", &[]),
            ("data: a", &["a"]),
            ("data: a\n\n\n\ndata", &["a", ""]),
        ];
        for (stream, expected) in rows {
            for end in ["\n", "\r\n", "\r"] {
                let stream = stream.replace('\n', end);
                for size in 1..=stream.len() {
                    assert_eq!(events(&stream, size), expected, "{stream:?} by {size}");
                }
            }
        }
    }
}
