//! The messages of a handover, over one Unix stream for each successor. `mod.rs` has the conversation.
//!
//! A line ends in a line feed. Everything else of the running process is a packet: kind, group, length (4 bytes,
//! little-endian) and payload. The codec knows no deadlines; its callers set them on the stream. What must always hold: any
//! other message ends the handover, and no message is read that is larger than its kind may be.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clock::{Nanos, TimeMark};
use crate::edge::ListeningSocket;
use crate::state::{FrameKind, GROUPS, MAX_PAYLOAD};

/// The version of the conversation. (Version 2 handed over sockets and keys, and no counts; in version 3 a successor could not tell
/// a directory that the running process does not use from one whose process has just ended.)
pub(super) const VERSION: u32 = 6;

/// The first line of a successor, with the latest version that it knows.
pub(super) const WAIT_PREFIX: &str = "tollgate ";
pub(super) const WAIT_SUFFIX: &str = " wait";

/// The longest first line.
pub(super) const MAX_WAIT_LINE: usize = 32;

const SOCKETS_PREFIX: &str = "sockets";

const TICKETS_PREFIX: &str = "tickets ";

const WORD_PREFIX: &str = "word ";

/// Sockets in one message, the link included; the kernel allows 253.
const MAX_SOCKETS: usize = 64;

/// Bytes of the longest message with sockets: [`MAX_SOCKETS`] addresses of at most 60 bytes, and the keys.
const MAX_MESSAGE: usize = 8 * 1024;

/// The largest greeting: names and numbers.
const MAX_HELLO: usize = 4 * 1024;

/// Bytes before a payload.
pub(super) const PACKET_HEAD: usize = 6;

/// Kinds of packets besides the frames of the state, whose numbers are smaller.
const HELLO: u8 = 200;
const COPIED: u8 = 201;
const LAST: u8 = 202;
const SERVING: u8 = 203;

/// A word that the other side repeats, so that its answer is one to this question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Word(u64);

/// What the running process says of itself.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Of the rest of the conversation.
    pub(super) version: u32,
    pub(super) secret: [u8; 16],
    pub(super) mark: TimeMark,
    /// Whether it has a state directory.
    pub(super) has_state: bool,
    /// By which its orderly end is known in the directory.
    pub(super) run_id: u64,
}

/// A packet of the running process.
pub(super) enum Packet {
    Hello(Box<Hello>),
    /// What it counts.
    Frame {
        kind: FrameKind,
        group: u8,
        payload: Vec<u8>,
    },
    /// Everything has been copied once.
    Copied(Word),
    /// It serves on, after the successor has looked at its state directory.
    Serving(Word),
    /// Everything has been sent, and nothing is counted since this instant (monotonic).
    Last {
        word: Word,
        since: Nanos,
    },
}

/// What the running process hands over in one message.
pub(super) struct SocketsMessage {
    pub(super) sockets: Vec<ListeningSocket>,
    /// The keys of session tickets, as `TicketKeys::export` writes them.
    pub(super) ticket_keys: Zeroizing<String>,
    /// The successor's end of the link, which outlives the conversation.
    pub(super) link: UnixStream,
    pub(super) word: Word,
}

impl Word {
    /// A word that nobody can guess.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }

    /// The line by which the successor answers.
    pub(super) fn answer(self, verb: &str) -> String {
        format!("{verb} {:016x}\n", self.0)
    }
}

/// The first line of a successor.
pub(super) fn wait_line() -> String {
    format!("{WAIT_PREFIX}{VERSION}{WAIT_SUFFIX}\n")
}

/// The version in the first line of a successor, without its line feed.
pub(super) fn version_of(line: &str) -> Option<u32> {
    line.strip_prefix(WAIT_PREFIX)?.strip_suffix(WAIT_SUFFIX)?.parse().ok()
}

/// Writes a frame as a packet. An error if the successor would not read it.
pub(super) fn write_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    group: u8,
    payload: &[u8],
) -> io::Result<()> {
    kind.check_payload(payload)?;
    write_packet(out, kind as u8, group, payload);
    Ok(())
}

/// Writes the head of a packet and its payload.
fn write_packet(out: &mut Vec<u8>, kind: u8, group: u8, payload: &[u8]) {
    out.extend_from_slice(&[kind, group]);
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(payload);
}

/// A packet that is not a frame, as bytes.
pub(super) fn packet_bytes(packet: &Packet) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (kind, payload) = match packet {
        Packet::Hello(hello) => (HELLO, postcard::to_stdvec(hello)),
        Packet::Copied(word) => (COPIED, postcard::to_stdvec(word)),
        Packet::Serving(word) => (SERVING, postcard::to_stdvec(word)),
        Packet::Last { word, since } => (LAST, postcard::to_stdvec(&(word, since))),
        Packet::Frame { kind, group, payload } => {
            return write_frame(&mut bytes, *kind, *group, payload).map(|()| bytes);
        }
    };
    let payload = payload.map_err(io::Error::other)?;
    if payload.len() > MAX_HELLO {
        return Err(io::Error::other("a greeting that is too long to be read"));
    }
    write_packet(&mut bytes, kind, 0, &payload);
    Ok(bytes)
}

/// Reads a packet.
pub(super) fn read_packet(stream: &mut impl Read) -> io::Result<Packet> {
    let mut head = [0; PACKET_HEAD];
    stream.read_exact(&mut head)?;
    let [kind, group, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    let frame = FrameKind::of_number(kind);
    let max = if frame.is_some() { MAX_PAYLOAD } else { MAX_HELLO };
    if length > max || group >= GROUPS {
        return Err(unexpected());
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    fn read<'p, T: Deserialize<'p>>(payload: &'p [u8]) -> io::Result<T> {
        postcard::from_bytes(payload).map_err(|_| unexpected())
    }
    match (frame, kind) {
        (Some(kind), _) => Ok(Packet::Frame { kind, group, payload }),
        (None, HELLO) => read(&payload).map(|hello| Packet::Hello(Box::new(hello))),
        (None, COPIED) => read(&payload).map(Packet::Copied),
        (None, SERVING) => read(&payload).map(Packet::Serving),
        (None, LAST) => read(&payload).map(|(word, since)| Packet::Last { word, since }),
        (None, _) => Err(unexpected()),
    }
}

/// Sends sockets and keys.
pub(super) fn send_sockets(stream: &UnixStream, message: &SocketsMessage) -> io::Result<()> {
    // Allocated at full size: a buffer that grows leaves copies of the keys in freed memory.
    let mut lines = Zeroizing::new(String::with_capacity(MAX_MESSAGE));
    lines.push_str(SOCKETS_PREFIX);
    for listening in &message.sockets {
        lines.push_str(&format!(" {}", listening.address));
    }
    lines.push('\n');
    lines.push_str(TICKETS_PREFIX);
    lines.push_str(&message.ticket_keys);
    lines.push('\n');
    lines.push_str(&format!("{WORD_PREFIX}{}\n", message.word.0));
    let descriptors = message.sockets.iter().map(|listening| listening.socket.as_fd());
    let descriptors: Vec<_> = descriptors.chain(std::iter::once(message.link.as_fd())).collect();
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many sockets"));
    }
    let bytes = [IoSlice::new(lines.as_bytes())];
    let sent = sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    // The kernel sends such a short message completely or not at all.
    if sent == lines.len() { Ok(()) } else { Err(unexpected()) }
}

/// Receives sockets and keys. On an error every received descriptor is closed.
pub(super) fn receive_sockets(stream: &UnixStream) -> io::Result<SocketsMessage> {
    let mut bytes = Zeroizing::new(vec![0; MAX_MESSAGE]);
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        let reason = "the running process has ended the conversation; its log says why";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
    }
    let text = std::str::from_utf8(&bytes[..received.bytes]).map_err(|_| unexpected())?;
    let text = text.strip_suffix('\n').ok_or_else(unexpected)?;
    let [addresses, keys, word] = split_lines(text).ok_or_else(unexpected)?;
    let addresses = addresses.strip_prefix(SOCKETS_PREFIX).ok_or_else(unexpected)?;
    let keys = keys.strip_prefix(TICKETS_PREFIX).ok_or_else(unexpected)?;
    let word = word.strip_prefix(WORD_PREFIX).and_then(|word| word.parse().ok());
    let word = Word(word.ok_or_else(unexpected)?);
    let addresses: Result<Vec<SocketAddr>, _> =
        addresses.split_whitespace().map(str::parse).collect();
    let addresses = addresses.map_err(|_| unexpected())?;
    let link = UnixStream::from(descriptors.pop().ok_or_else(unexpected)?);
    if addresses.len() != descriptors.len() {
        return Err(unexpected());
    }
    let sockets = addresses.into_iter().zip(descriptors).map(|(address, descriptor)| {
        ListeningSocket { address, socket: TcpListener::from(descriptor) }
    });
    let ticket_keys = Zeroizing::new(keys.to_owned());
    Ok(SocketsMessage { sockets: sockets.collect(), ticket_keys, link, word })
}

/// Writes all bytes.
pub(super) fn send(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

fn split_lines(text: &str) -> Option<[&str; 3]> {
    let mut lines = text.split('\n');
    let three = [lines.next()?, lines.next()?, lines.next()?];
    lines.next().is_none().then_some(three)
}

pub(super) fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it says something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_arrive_with_their_addresses() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let bind = |_| {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            ListeningSocket { address: socket.local_addr().unwrap(), socket }
        };
        let sockets: Vec<_> = (0..33).map(bind).collect();
        let addresses: Vec<_> = sockets.iter().map(|listening| listening.address).collect();
        let ticket_keys = Zeroizing::new("a b".to_owned());
        let (ours, link) = UnixStream::pair().unwrap();
        let message = SocketsMessage { sockets, ticket_keys, link, word: Word(7) };
        send_sockets(&sender, &message).unwrap();
        let mut received = receive_sockets(&receiver).unwrap();
        (&ours).write_all(b"x").unwrap();
        let mut arrived = [0];
        received.link.read_exact(&mut arrived).unwrap();
        assert_eq!(&arrived, b"x");
        assert_eq!((received.ticket_keys.as_str(), received.word), ("a b", Word(7)));
        let arrived: Vec<_> = received.sockets.iter().map(|listening| listening.address).collect();
        assert_eq!(arrived, addresses);
        for ListeningSocket { address, socket } in &received.sockets {
            assert_eq!(socket.local_addr().unwrap(), *address);
        }
    }

    #[test]
    fn any_other_message_is_an_error() {
        for message in [
            "",
            "sockets 127.0.0.1:1\n",
            "sockets 127.0.0.1:1\ntickets a\nword 1\n",
            "sockets",
            "sockets\n",
            "sockets\na\n",
            "sockets\ntickets a\n",
            "sockets\ntickets a\nword\n",
            "sockets\ntickets a\nword 1\nmore\n",
            "garbage\n",
            "sockets x\ntickets a\nword 1\n",
        ] {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            sender.write_all(message.as_bytes()).unwrap();
            drop(sender);
            assert!(receive_sockets(&receiver).is_err(), "{message:?}");
        }
    }

    #[test]
    fn packets_are_read_as_they_were_written_and_no_others() {
        let packet = Packet::Last { word: Word(3), since: Nanos::from_secs(9) };
        let bytes = packet_bytes(&packet).unwrap();
        let read = read_packet(&mut bytes.as_slice());
        assert!(
            matches!(read, Ok(Packet::Last { word: Word(3), since }) if since.get() == 9_000_000_000)
        );
        for cut in 0..bytes.len() {
            assert!(read_packet(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        for (kind, length) in [(0, 0_u32), (99, 1), (HELLO, 5_000), (1, u32::MAX), (COPIED, 0)] {
            let mut bytes = vec![kind, 0];
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.resize(6_000, 0xff);
            assert!(read_packet(&mut bytes.as_slice()).is_err(), "{kind}");
        }
        assert_eq!(version_of("tollgate 3 wait"), Some(3));
        assert_eq!((version_of("tollgate -1 wait"), version_of("wait")), (None, None));
    }
}
