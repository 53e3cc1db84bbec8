//! Frames of HTTP/2 as they pass (RFC 9113, section 4.1): what a client owes us, and how often it
//! takes back what it asked for. The framework's HTTP/2 has no deadline for any of it.

use hashbrown::HashSet;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const CONTINUATION: u8 = 0x9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Most request bodies that are watched; `h2_streams` is smaller.
const MAX_OPEN: usize = 10_000;

/// What a client owes us at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// Nothing: it may be idle.
    Nothing,
    /// The rest of a preface, of a header block, or of a small frame.
    Head,
    /// Parts of a request's body.
    Body,
}

/// Where one direction of a connection stands.
#[derive(Debug)]
struct Place {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; FRAME_HEAD],
    head_length: usize,
    /// Bytes left of the present frame's payload.
    payload: usize,
    kind: u8,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Place {
    const fn new(preface: usize) -> Self {
        Self { preface, head: [0; FRAME_HEAD], head_length: 0, payload: 0, kind: 0 }
    }

    /// Takes bytes up to the end of the next frame's head, if it is among them.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        loop {
            let skipped = if self.preface > 0 { &mut self.preface } else { &mut self.payload };
            let taken = bytes.len().min(*skipped);
            *skipped -= taken;
            *bytes = &bytes[taken..];
            let (&first, rest) = bytes.split_first()?;
            self.head[self.head_length] = first;
            self.head_length += 1;
            *bytes = rest;
            if self.head_length == FRAME_HEAD {
                self.head_length = 0;
                let head = self.head;
                self.payload = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                self.kind = head[3];
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                return Some(Frame { kind: head[3], flags: head[4], stream: stream & !(1 << 31) });
            }
        }
    }

    /// Whether the peer is in the midst of something.
    const fn is_inside(&self) -> bool {
        self.preface > 0 || self.head_length > 0 || self.payload > 0
    }
}

/// Both directions of one connection.
#[derive(Debug)]
pub(super) struct Frames {
    inbound: Place,
    outbound: Place,
    /// In a header block that has not ended.
    block: bool,
    /// Streams whose request has not ended and whose answer has not begun.
    open: HashSet<u32>,
    /// Frames RST_STREAM since somebody looked.
    resets: u32,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            inbound: Place::new(PREFACE.len()),
            outbound: Place::new(0),
            block: false,
            open: HashSet::new(),
            resets: 0,
        }
    }

    /// Bytes came from the client. Says whether what it was in the midst of has ended among them.
    pub(super) fn came(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some(frame) = self.inbound.next(&mut bytes) {
            // The parts of a block are one thing, however many there are.
            ended |= !self.block;
            let ends = frame.flags & END_STREAM != 0;
            match frame.kind {
                HEADERS => {
                    self.block = frame.flags & END_HEADERS == 0;
                    if !ends && self.open.len() < MAX_OPEN {
                        self.open.insert(frame.stream);
                    }
                }
                CONTINUATION => self.block &= frame.flags & END_HEADERS == 0,
                RST_STREAM => {
                    self.resets = self.resets.saturating_add(1);
                    self.open.remove(&frame.stream);
                }
                _ => {}
            }
            if ends && matches!(frame.kind, DATA | HEADERS) {
                self.open.remove(&frame.stream);
            }
        }
        ended || !self.block && !self.inbound.is_inside()
    }

    /// Bytes go to the client.
    pub(super) fn went(&mut self, mut bytes: &[u8]) {
        while let Some(frame) = self.outbound.next(&mut bytes) {
            if matches!(frame.kind, HEADERS | RST_STREAM) {
                self.open.remove(&frame.stream);
            }
        }
    }

    /// What we wait for.
    pub(super) fn owed(&self) -> Owed {
        if self.inbound.payload > 0 && self.inbound.kind == DATA {
            Owed::Body
        } else if self.inbound.is_inside() || self.block {
            Owed::Head
        } else if self.open.is_empty() {
            Owed::Nothing
        } else {
            Owed::Body
        }
    }

    /// Takes back what was counted.
    pub(super) fn take_resets(&mut self) -> u32 {
        std::mem::take(&mut self.resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn begun() -> Frames {
        let mut frames = Frames::new();
        assert_eq!(frames.owed(), Owed::Head, "the preface");
        frames.came(PREFACE);
        frames.came(&frame(4, 0, 0, &[0; 6]));
        assert_eq!(frames.owed(), Owed::Nothing);
        frames
    }

    #[test]
    fn a_header_block_is_owed_until_it_ends() {
        let mut frames = begun();
        frames.came(&frame(HEADERS, END_STREAM, 1, b"abc"));
        assert_eq!(frames.owed(), Owed::Head);
        frames.came(&frame(CONTINUATION, 0, 1, b""));
        assert_eq!(frames.owed(), Owed::Head);
        frames.came(&frame(CONTINUATION, END_HEADERS, 1, b"d"));
        assert_eq!(frames.owed(), Owed::Nothing);
    }

    #[test]
    fn a_body_is_owed_until_it_ends_or_is_answered() {
        for end in [DATA, RST_STREAM] {
            let mut frames = begun();
            frames.came(&frame(HEADERS, END_HEADERS, 1, b"abc"));
            assert_eq!(frames.owed(), Owed::Body);
            frames.came(&frame(end, END_STREAM, 1, &[0; 4]));
            assert_eq!(frames.owed(), Owed::Nothing);
        }
        let mut frames = begun();
        frames.came(&frame(HEADERS, END_HEADERS, 1, b"abc"));
        frames.went(&frame(HEADERS, END_HEADERS, 1, b"ok"));
        assert_eq!(frames.owed(), Owed::Nothing);
    }

    #[test]
    fn pieces_say_what_the_whole_says() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(4, 0, 0, &[0; 6]));
        bytes.extend(frame(HEADERS, END_HEADERS, 1, b"abc"));
        bytes.extend(frame(DATA, 0, 1, b"0123"));
        bytes.extend(frame(RST_STREAM, 0, 1, &[0; 4]));
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 3, b"abc"));
        for cut in 0..bytes.len() {
            let mut frames = Frames::new();
            frames.came(&bytes[..cut]);
            assert!(cut < 33 || frames.owed() != Owed::Head || frames.inbound.is_inside());
            frames.came(&bytes[cut..]);
            assert_eq!((frames.owed(), frames.take_resets()), (Owed::Nothing, 1), "cut at {cut}");
        }
    }
}
