//! Bytes of a response that the stream writes instead of the framework, over HTTP/1.
//!
//! A field in the framework's map costs three allocations; lines that the stream appends to the head cost none. A
//! request queues either such lines or a complete response; the stream writes them once. It does not know what the
//! bytes say. What must always hold: lines are written only into the final head of the request they were queued for.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// What is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum OutputKind {
    Nothing,
    /// Lines for the head of the origin's response.
    HeadLines,
    /// A complete response.
    Response,
}

/// At most one queued output.
#[derive(Debug, Default)]
pub(super) struct PendingOutput {
    /// An [`OutputKind`]. Request and stream are polled by one task at a time, so relaxed order is enough.
    kind: AtomicU8,
    bytes: Mutex<Vec<u8>>,
}

impl PendingOutput {
    /// Drops what is queued.
    pub(super) fn clear(&self) {
        self.set_kind(OutputKind::Nothing);
    }

    /// Queues lines for the head of the final response.
    pub(super) fn queue_head_lines(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.queue(OutputKind::HeadLines, write);
    }

    /// Queues a complete response.
    pub(super) fn queue_response(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.queue(OutputKind::Response, write);
    }

    /// Writes a head with the queued lines appended. Returns `false` and writes nothing if no lines are queued or the
    /// bytes are not a final head.
    pub(super) fn write_head(&self, head: &[u8], out: &mut Vec<u8>) -> bool {
        let is_queued = self.is(OutputKind::HeadLines);
        let Some(lines) = head.strip_suffix(b"\r\n").filter(|_| is_queued && is_final_head(head))
        else {
            return false;
        };
        out.extend_from_slice(lines);
        out.extend_from_slice(&self.bytes.lock());
        out.extend_from_slice(b"\r\n");
        self.clear();
        true
    }

    /// Writes the queued response, if there is one.
    pub(super) fn write_response(&self, out: &mut Vec<u8>) {
        if self.is(OutputKind::Response) {
            out.extend_from_slice(&self.bytes.lock());
            self.clear();
        }
    }

    fn queue(&self, kind: OutputKind, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes.lock();
        bytes.clear();
        write(&mut bytes);
        self.set_kind(kind);
    }

    fn is(&self, kind: OutputKind) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as u8
    }

    fn set_kind(&self, kind: OutputKind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
    }
}

/// Whether these bytes are a complete head of HTTP/1 after which no other head follows. Other heads follow `100` and
/// every further informational response but `101`.
fn is_final_head(bytes: &[u8]) -> bool {
    let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let is_final = status.is_some_and(|status| status == b"101" || status[0] != b'1');
    is_final && bytes.ends_with(b"\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_into_the_final_head_of_their_request() {
        let pending = PendingOutput::default();
        let written = |bytes: &[u8]| {
            let mut out = Vec::new();
            pending.write_head(bytes, &mut out).then(|| String::from_utf8(out).unwrap())
        };
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "nothing is queued");
        pending.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        assert_eq!(written(b"HTTP/1.1 103 Early Hints\r\n\r\n"), None);
        assert_eq!(written(b"HTTP/1.1 200 OK\r\nC: d\r\n"), None, "half a head");
        let head = written(b"HTTP/1.1 200 OK\r\nC: d\r\n\r\n");
        assert_eq!(head.as_deref(), Some("HTTP/1.1 200 OK\r\nC: d\r\nA: b\r\n\r\n"));
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "written once");
        pending.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        let switching = written(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
        assert!(switching.is_some_and(|head| head.contains("A: b")));
        pending.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        pending.clear();
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "lines of the previous request");
    }

    #[test]
    fn a_response_is_written_once_and_is_no_line() {
        let pending = PendingOutput::default();
        let written = || {
            let mut out = Vec::new();
            pending.write_response(&mut out);
            String::from_utf8(out).unwrap()
        };
        pending.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        assert_eq!(written(), "", "lines wait for their head");
        pending
            .queue_response(|out| out.extend_from_slice(b"HTTP/1.1 429 Too Many Requests\r\n\r\n"));
        let mut out = Vec::new();
        assert!(!pending.write_head(b"HTTP/1.1 200 OK\r\n\r\n", &mut out) && out.is_empty());
        assert_eq!(written(), "HTTP/1.1 429 Too Many Requests\r\n\r\n");
        assert_eq!(written(), "");
        pending.queue_response(|out| out.extend_from_slice(b"x"));
        pending.clear();
        assert_eq!(written(), "", "replaced by another response");
    }
}
