//! Frames of HTTP/2 as they pass (RFC 9113, section 4.1), in both directions of a connection.
//!
//! It reads frame by frame, however the bytes are cut, and keeps nothing of them but what
//! [`super::streams`] judges by: heads, and the numbers of SETTINGS and WINDOW_UPDATE. It decodes no header
//! block and refuses nothing: the HTTP/2 implementation behind it does.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const WINDOW_UPDATE: u8 = 0x8;
const CONTINUATION: u8 = 0x9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const ACK: u8 = 0x1;

/// One entry of a SETTINGS frame, the longest piece of a payload that is read.
const SETTING: usize = 6;
const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// A frame, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The head of a header block: a request, an answer, or trailers.
    Headers { stream: u32, ends: bool },
    /// So many bytes of a body, padding included.
    Data { stream: u32, bytes: u32, ends: bool },
    /// The stream is over.
    Reset { stream: u32, code: u32 },
    /// More may be sent: on a stream, or (stream 0) on the connection.
    Window { stream: u32, more: u32 },
    /// What every stream may be sent in the beginning.
    InitialWindow(u32),
    /// Anything else.
    Other,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; FRAME_HEAD],
    head_length: usize,
    /// Bytes left of the present frame's payload.
    payload: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    /// The part of a payload that is read so far.
    part: [u8; SETTING],
    part_length: usize,
    /// Whether a header block has begun and not ended: nothing may come between its parts.
    block: bool,
}

impl Reader {
    /// What a client sends.
    pub(crate) const fn of_client() -> Self {
        Self::new(PREFACE.len())
    }

    /// What a server sends.
    pub(crate) const fn of_server() -> Self {
        Self::new(0)
    }

    const fn new(preface: usize) -> Self {
        Self {
            preface,
            head: [0; FRAME_HEAD],
            head_length: 0,
            payload: 0,
            kind: 0,
            flags: 0,
            stream: 0,
            part: [0; SETTING],
            part_length: 0,
            block: false,
        }
    }

    /// Takes bytes up to what is next to be told, if that is among them.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        loop {
            let skipped = match self.part_size() {
                _ if self.preface > 0 => &mut self.preface,
                0 => &mut self.payload,
                size => match self.read_part(size, bytes)? {
                    Some(frame) => return Some(frame),
                    None => continue,
                },
            };
            let taken = bytes.len().min(*skipped);
            *skipped -= taken;
            *bytes = &bytes[taken..];
            let (&first, rest) = bytes.split_first()?;
            self.head[self.head_length] = first;
            self.head_length += 1;
            *bytes = rest;
            if self.head_length == FRAME_HEAD {
                self.head_length = 0;
                return Some(self.begin());
            }
        }
    }

    /// Whether the peer is in the midst of a frame, of the preface, or of a header block.
    pub(crate) const fn is_inside(&self) -> bool {
        self.preface > 0 || self.head_length > 0 || self.payload > 0 || self.block
    }

    /// Bytes up to where the present frame ends, or its head, or the preface.
    pub(crate) const fn left(&self) -> usize {
        match (self.preface, self.payload) {
            (0, 0) => FRAME_HEAD - self.head_length,
            (0, payload) => payload,
            (preface, _) => preface,
        }
    }

    /// Whether it is between the parts of a header block.
    pub(crate) const fn is_in_block(&self) -> bool {
        self.block
    }

    /// Whether it is in the midst of a body's bytes.
    pub(crate) const fn is_inside_data(&self) -> bool {
        self.payload > 0 && self.kind == DATA
    }

    /// A frame's head is whole.
    fn begin(&mut self) -> Frame {
        let head = self.head;
        let bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        (self.payload, self.kind, self.flags) = (bytes as usize, head[3], head[4]);
        self.stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & !(1 << 31);
        self.part_length = 0;
        let (stream, ends) = (self.stream, self.flags & END_STREAM != 0);
        match self.kind {
            HEADERS => {
                self.block = self.flags & END_HEADERS == 0;
                Frame::Headers { stream, ends }
            }
            CONTINUATION => {
                self.block &= self.flags & END_HEADERS == 0;
                Frame::Other
            }
            DATA => Frame::Data { stream, bytes, ends },
            _ => Frame::Other,
        }
    }

    /// How long the parts are that the present payload is read in; 0: it is skipped.
    const fn part_size(&self) -> usize {
        match self.kind {
            SETTINGS if self.payload > 0 && self.flags & ACK == 0 => SETTING,
            WINDOW_UPDATE | RST_STREAM if self.payload > 0 => 4,
            _ => 0,
        }
    }

    /// Reads a part of the payload. `None`: it is not whole; `Some(None)`: it says nothing of matter.
    fn read_part(&mut self, size: usize, bytes: &mut &[u8]) -> Option<Option<Frame>> {
        while self.part_length < size && self.payload > 0 {
            let (&first, rest) = bytes.split_first()?;
            self.part[self.part_length] = first;
            self.part_length += 1;
            self.payload -= 1;
            *bytes = rest;
        }
        let is_whole = self.part_length == size;
        self.part_length = 0;
        let part = self.part;
        Some(match self.kind {
            _ if !is_whole => None,
            WINDOW_UPDATE => {
                let more = u32::from_be_bytes([part[0], part[1], part[2], part[3]]) & !(1 << 31);
                Some(Frame::Window { stream: self.stream, more })
            }
            RST_STREAM => {
                let code = u32::from_be_bytes([part[0], part[1], part[2], part[3]]);
                Some(Frame::Reset { stream: self.stream, code })
            }
            _ if u16::from_be_bytes([part[0], part[1]]) == INITIAL_WINDOW_SIZE => {
                let size = u32::from_be_bytes([part[2], part[3], part[4], part[5]]);
                Some(Frame::InitialWindow(size))
            }
            _ => None,
        })
    }
}

/// The bytes of a RST_STREAM.
pub(crate) fn reset(stream: u32, code: u32) -> [u8; FRAME_HEAD + 4] {
    let mut frame = [0; FRAME_HEAD + 4];
    frame[2] = 4;
    frame[3] = RST_STREAM;
    frame[5..9].copy_from_slice(&stream.to_be_bytes());
    frame[9..].copy_from_slice(&code.to_be_bytes());
    frame
}

/// The bytes of a GOAWAY without an error: streams up to `last` were taken.
pub(crate) fn goaway(last: u32) -> [u8; FRAME_HEAD + 8] {
    let mut frame = [0; FRAME_HEAD + 8];
    frame[2] = 8;
    frame[3] = GOAWAY;
    frame[9..13].copy_from_slice(&last.to_be_bytes());
    frame
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn all(reader: &mut Reader, mut bytes: &[u8]) -> Vec<Frame> {
        std::iter::from_fn(|| reader.next(&mut bytes)).filter(|one| *one != Frame::Other).collect()
    }

    #[test]
    fn frames_are_read_however_the_bytes_are_cut() {
        let mut bytes = PREFACE.to_vec();
        let settings = [0, 3, 0, 0, 0, 9, 0, 4, 0, 1, 0, 0];
        bytes.extend(frame(SETTINGS, 0, 0, &settings));
        bytes.extend(frame(SETTINGS, ACK, 0, &[]));
        bytes.extend(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]));
        bytes.extend(frame(HEADERS, END_HEADERS, 1, b"abc"));
        bytes.extend(frame(DATA, 0, 1, b"0123"));
        bytes.extend(frame(DATA, END_STREAM, 1, b""));
        bytes.extend(frame(6, 0, 0, &[0; 8]));
        bytes.extend(frame(HEADERS, END_STREAM, 3, b"abc"));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 3, b"d"));
        bytes.extend(reset(3, 8));
        let expected = [
            Frame::InitialWindow(65_536),
            Frame::Window { stream: 0, more: 256 },
            Frame::Headers { stream: 1, ends: false },
            Frame::Data { stream: 1, bytes: 4, ends: false },
            Frame::Data { stream: 1, bytes: 0, ends: true },
            Frame::Headers { stream: 3, ends: true },
            Frame::Reset { stream: 3, code: 8 },
        ];
        for cut in 0..bytes.len() {
            let mut reader = Reader::of_client();
            let mut read = all(&mut reader, &bytes[..cut]);
            read.extend(all(&mut reader, &bytes[cut..]));
            assert_eq!(read, expected, "cut at {cut}");
            assert!(!reader.is_inside());
        }
    }

    #[test]
    fn a_header_block_is_one_thing() {
        let mut reader = Reader::of_client();
        assert!(reader.is_inside(), "the preface");
        all(&mut reader, PREFACE);
        assert!(!reader.is_inside());
        all(&mut reader, &frame(HEADERS, END_STREAM, 1, b"abc"));
        assert!(reader.is_inside());
        all(&mut reader, &frame(CONTINUATION, 0, 1, b""));
        assert!(reader.is_inside());
        all(&mut reader, &frame(CONTINUATION, END_HEADERS, 1, b"d"));
        assert!(!reader.is_inside());
        all(&mut reader, &frame(DATA, 0, 1, b"0123")[..11]);
        assert!(reader.is_inside_data());
    }

    /// A payload of the wrong size is the business of who reads it; here it only has to end.
    #[test]
    fn payloads_of_a_wrong_size_end() {
        for (kind, size) in [(SETTINGS, 7), (WINDOW_UPDATE, 3), (WINDOW_UPDATE, 9), (RST_STREAM, 3)]
        {
            let mut reader = Reader::of_server();
            all(&mut reader, &frame(kind, 0, 0, &vec![0; size]));
            assert!(!reader.is_inside(), "{kind} of {size}");
        }
    }
}
