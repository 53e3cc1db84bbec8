//! Reads the frames of HTTP/2 as they pass (RFC 9113, section 4.1), in either direction of a connection.
//!
//! It keeps only what [`Exchanges`](super::exchanges::Exchanges) needs: frame heads, and the numbers in SETTINGS,
//! WINDOW_UPDATE and RST_STREAM. It decodes no header block and refuses nothing; the h2 crate does that. What must
//! always hold: it finds the same frames however the bytes are split.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame head.
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

/// Bytes of one entry of a SETTINGS frame, the longest payload field that is read.
const SETTING: usize = 6;
const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// A frame, reduced to what is observed. A SETTINGS frame yields one item for each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A header block begins: a request, a response, or trailers. `ends`: the stream ends with it.
    Headers { stream: u32, ends: bool },
    /// Bytes of a body, padding included.
    Data { stream: u32, bytes: u32, ends: bool },
    /// The stream is reset.
    Reset { stream: u32, code: u32 },
    /// The window grows, of a stream or (stream 0) of the connection.
    WindowUpdate { stream: u32, increment: u32 },
    /// The initial window of every stream, in bytes.
    InitialWindow(u32),
    /// Anything else.
    Other,
}

/// Reads one direction of a connection.
#[derive(Debug)]
pub(super) struct FrameReader {
    /// Bytes of the preface that are still missing.
    preface: usize,
    head: [u8; FRAME_HEAD],
    head_length: usize,
    /// Bytes left of the current frame's payload.
    payload: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    /// The payload field that is being read.
    field: [u8; SETTING],
    field_length: usize,
    /// Whether a header block has begun and not ended: no frame may come between its fragments.
    in_header_block: bool,
}

impl FrameReader {
    /// Reads what a client sends, with the connection preface.
    pub(super) const fn for_client() -> Self {
        Self::new(PREFACE.len())
    }

    /// Reads what a server sends.
    pub(super) const fn for_server() -> Self {
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
            field: [0; SETTING],
            field_length: 0,
            in_header_block: false,
        }
    }

    /// Consumes bytes up to the next observation; all of them if there is none.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        loop {
            let skipped = match self.field_size() {
                _ if self.preface > 0 => &mut self.preface,
                0 => &mut self.payload,
                size => match self.read_field(size, bytes)? {
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
                return Some(self.begin_frame());
            }
        }
    }

    /// Whether the bytes so far end inside a frame, the preface, or a header block.
    pub(super) const fn is_inside(&self) -> bool {
        self.preface > 0 || self.head_length > 0 || self.payload > 0 || self.in_header_block
    }

    /// Bytes until the current frame ends, or its head, or the preface.
    pub(super) const fn bytes_left(&self) -> usize {
        match (self.preface, self.payload) {
            (0, 0) => FRAME_HEAD - self.head_length,
            (0, payload) => payload,
            (preface, _) => preface,
        }
    }

    /// Whether the bytes so far end inside a header block.
    pub(super) const fn is_in_header_block(&self) -> bool {
        self.in_header_block
    }

    /// Whether the bytes so far end inside the payload of a DATA frame.
    pub(super) const fn is_inside_body(&self) -> bool {
        self.payload > 0 && self.kind == DATA
    }

    /// The frame head is complete.
    fn begin_frame(&mut self) -> Frame {
        let head = self.head;
        let bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        (self.payload, self.kind, self.flags) = (bytes as usize, head[3], head[4]);
        self.stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & !(1 << 31);
        self.field_length = 0;
        let (stream, ends) = (self.stream, self.flags & END_STREAM != 0);
        match self.kind {
            HEADERS => {
                self.in_header_block = self.flags & END_HEADERS == 0;
                Frame::Headers { stream, ends }
            }
            CONTINUATION => {
                self.in_header_block &= self.flags & END_HEADERS == 0;
                Frame::Other
            }
            DATA => Frame::Data { stream, bytes, ends },
            _ => Frame::Other,
        }
    }

    /// The size of the fields in the current payload; 0 if it is skipped.
    const fn field_size(&self) -> usize {
        match self.kind {
            SETTINGS if self.payload > 0 && self.flags & ACK == 0 => SETTING,
            WINDOW_UPDATE | RST_STREAM if self.payload > 0 => 4,
            _ => 0,
        }
    }

    /// Reads a field of the payload. `None`: it is incomplete; `Some(None)`: it is not observed.
    fn read_field(&mut self, size: usize, bytes: &mut &[u8]) -> Option<Option<Frame>> {
        while self.field_length < size && self.payload > 0 {
            let (&first, rest) = bytes.split_first()?;
            self.field[self.field_length] = first;
            self.field_length += 1;
            self.payload -= 1;
            *bytes = rest;
        }
        let is_complete = self.field_length == size;
        self.field_length = 0;
        let field = self.field;
        Some(match self.kind {
            _ if !is_complete => None,
            WINDOW_UPDATE => {
                let increment =
                    u32::from_be_bytes([field[0], field[1], field[2], field[3]]) & !(1 << 31);
                Some(Frame::WindowUpdate { stream: self.stream, increment })
            }
            RST_STREAM => {
                let code = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
                Some(Frame::Reset { stream: self.stream, code })
            }
            _ if u16::from_be_bytes([field[0], field[1]]) == INITIAL_WINDOW_SIZE => {
                let size = u32::from_be_bytes([field[2], field[3], field[4], field[5]]);
                Some(Frame::InitialWindow(size))
            }
            _ => None,
        })
    }
}

/// The bytes of a RST_STREAM frame.
pub(super) fn rst_stream(stream: u32, code: u32) -> [u8; FRAME_HEAD + 4] {
    let mut frame = [0; FRAME_HEAD + 4];
    frame[2] = 4;
    frame[3] = RST_STREAM;
    frame[5..9].copy_from_slice(&stream.to_be_bytes());
    frame[9..].copy_from_slice(&code.to_be_bytes());
    frame
}

/// The bytes of a GOAWAY frame without an error: streams up to `last_stream` were accepted.
pub(in crate::edge) fn goaway(last_stream: u32) -> [u8; FRAME_HEAD + 8] {
    let mut frame = [0; FRAME_HEAD + 8];
    frame[2] = 8;
    frame[3] = GOAWAY;
    frame[9..13].copy_from_slice(&last_stream.to_be_bytes());
    frame
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

    fn all(reader: &mut FrameReader, mut bytes: &[u8]) -> Vec<Frame> {
        std::iter::from_fn(|| reader.next(&mut bytes))
            .filter(|frame| *frame != Frame::Other)
            .collect()
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_split() {
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
        bytes.extend(rst_stream(3, 8));
        let expected = [
            Frame::InitialWindow(65_536),
            Frame::WindowUpdate { stream: 0, increment: 256 },
            Frame::Headers { stream: 1, ends: false },
            Frame::Data { stream: 1, bytes: 4, ends: false },
            Frame::Data { stream: 1, bytes: 0, ends: true },
            Frame::Headers { stream: 3, ends: true },
            Frame::Reset { stream: 3, code: 8 },
        ];
        for split in 0..bytes.len() {
            let mut reader = FrameReader::for_client();
            let mut read = all(&mut reader, &bytes[..split]);
            read.extend(all(&mut reader, &bytes[split..]));
            assert_eq!(read, expected, "split at {split}");
            assert!(!reader.is_inside());
        }
    }

    #[test]
    fn a_header_block_is_open_until_its_last_fragment() {
        let mut reader = FrameReader::for_client();
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
        assert!(reader.is_inside_body());
    }

    /// The h2 crate refuses payloads of a wrong size; here the next frame must be found.
    #[test]
    fn the_reader_finds_the_end_of_payloads_of_a_wrong_size() {
        for (kind, size) in [(SETTINGS, 7), (WINDOW_UPDATE, 3), (WINDOW_UPDATE, 9), (RST_STREAM, 3)]
        {
            let mut reader = FrameReader::for_server();
            all(&mut reader, &frame(kind, 0, 0, &vec![0; size]));
            assert!(!reader.is_inside(), "{kind} of {size}");
        }
    }
}
