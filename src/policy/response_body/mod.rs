//! The cost that the body of a response names: a number at a JSON pointer, in a document or in the last event of an event
//! stream that has it.
//!
//! The body passes; nothing of it is kept. The memory of a response is some 150 bytes for each pointer, whatever the body
//! is. It does not know what happens to the bytes, or what a cost means to a limit. What must always hold: the same
//! bytes give the same result however they are cut.

mod event_stream;
mod json_number;
mod json_pointer;
mod json_scanner;

use smallvec::SmallVec;

use event_stream::{EventStream, StreamItem};
pub use json_pointer::{JsonPointer, MAX_POINTER_BYTES, MAX_POINTER_TOKENS};
use json_scanner::JsonScanner;

/// The byte order mark, which a body may begin with.
const BYTE_ORDER_MARK: &[u8; 3] = b"\xef\xbb\xbf";

/// Reads the numbers at some pointers while a body passes.
#[derive(Debug)]
pub struct BodyScan {
    /// How many bytes of the byte order mark the body has begun with; `None` after the beginning.
    mark: Option<usize>,
    /// `None`: the body is one document.
    events: Option<EventStream>,
    scans: SmallVec<[PointerScan; 1]>,
}

/// The scan for one pointer.
#[derive(Clone, Copy, Debug, Default)]
struct PointerScan {
    document: JsonScanner,
    /// The number of the last event that has it.
    last_event: Option<u32>,
}

/// What a body says about one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyNumber {
    /// The body ended, and this is the number.
    Final(u32),
    /// The body ended before its end, or is not valid; it had this number.
    SoFar(u32),
    /// It ended, and the number is not in it.
    Absent,
    /// It is not JSON.
    Invalid,
    /// It ended before its end.
    Incomplete,
}

impl BodyScan {
    /// Before the first byte of a body. `is_event_stream`: whether it is an event stream; otherwise it is one document.
    pub fn new(pointer_count: usize, is_event_stream: bool) -> Self {
        Self {
            mark: Some(0),
            events: is_event_stream.then(EventStream::default),
            scans: (0..pointer_count).map(|_| PointerScan::default()).collect(),
        }
    }

    /// Reads the next bytes. `pointers` are the same at every call, as many as the scan was made for.
    pub fn push<'p, P>(&mut self, pointers: P, mut bytes: &[u8])
    where
        P: Iterator<Item = &'p JsonPointer> + Clone,
    {
        while let Some(equal) = self.mark {
            let Some((byte, rest)) = bytes.split_first() else {
                return;
            };
            if *byte == BYTE_ORDER_MARK[equal] {
                self.mark = Some(equal + 1).filter(|equal| *equal < BYTE_ORDER_MARK.len());
                bytes = rest;
            } else {
                self.mark = None;
                self.push_text(pointers.clone(), &BYTE_ORDER_MARK[..equal]);
            }
        }
        self.push_text(pointers, bytes);
    }

    /// What the body says about the number at each pointer, in their order. `is_complete`: whether the body has come to
    /// its end. Then an event also counts that no empty line ends.
    pub fn finish<'p, P>(mut self, pointers: P, is_complete: bool) -> SmallVec<[BodyNumber; 1]>
    where
        P: Iterator<Item = &'p JsonPointer> + Clone,
    {
        let is_stream = self.events.is_some();
        if let Some(events) = self.events.as_mut().filter(|_| is_complete) {
            let scans = &mut self.scans;
            events.finish(|item| take_item(scans, pointers.clone(), item));
        }
        if self.mark == Some(0) && is_complete {
            // The response has no body.
            return self.scans.iter().map(|_| BodyNumber::Absent).collect();
        }
        self.scans.iter().map(|scan| scan.number(is_stream, is_complete)).collect()
    }

    fn push_text<'p, P>(&mut self, pointers: P, bytes: &[u8])
    where
        P: Iterator<Item = &'p JsonPointer> + Clone,
    {
        let scans = &mut self.scans;
        match &mut self.events {
            None => take_item(scans, pointers, StreamItem::Text(bytes)),
            Some(events) => events.push(bytes, |item| take_item(scans, pointers.clone(), item)),
        }
    }
}

fn take_item<'p>(
    scans: &mut [PointerScan],
    pointers: impl Iterator<Item = &'p JsonPointer>,
    item: StreamItem<'_>,
) {
    for (scan, pointer) in scans.iter_mut().zip(pointers) {
        match item {
            StreamItem::Text(bytes) => scan.document.push(pointer, bytes),
            StreamItem::End => {
                let document = std::mem::take(&mut scan.document);
                let number = document.found().filter(|_| document.is_complete());
                scan.last_event = number.or(scan.last_event);
            }
        }
    }
}

impl PointerScan {
    fn number(&self, is_stream: bool, is_complete: bool) -> BodyNumber {
        let is_valid = is_stream || self.document.is_complete();
        let found = self.document.found().or(self.last_event);
        match (found, is_complete) {
            (Some(number), true) if is_valid => BodyNumber::Final(number),
            (Some(number), _) => BodyNumber::SoFar(number),
            (None, true) if is_valid => BodyNumber::Absent,
            (None, true) => BodyNumber::Invalid,
            (None, false) if self.document.is_invalid() && !is_stream => BodyNumber::Invalid,
            (None, false) => BodyNumber::Incomplete,
        }
    }
}

#[cfg(test)]
mod tests;
