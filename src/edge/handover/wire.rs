//! The messages of a handover, over one Unix stream per successor.
//!
//! ```text
//! successor:       tollgate 2 wait
//! running process: sockets ADDRESS..   with one descriptor for each address attached
//!                  tickets KEY..       in the same message: the keys of session tickets
//! successor:       accepting
//! running process: yours               and accepts no more
//! ```
//!
//! Each line ends in a line feed. (Protocol 1 had no keys.) The codec knows no deadlines; its callers set them on the
//! stream. What must always hold: any other message ends the handover.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

use crate::edge::listener::ListeningSocket;

/// The first line of a successor. A later protocol has another number.
pub(super) const WAIT: &str = "tollgate 2 wait";

/// The last line of a successor.
pub(super) const ACCEPTING: &str = "accepting";

/// The last line of the running process.
pub(super) const YOURS: &str = "yours";

const SOCKETS_PREFIX: &str = "sockets";

const TICKETS_PREFIX: &str = "tickets ";

/// Sockets in one message; the kernel allows 253.
const MAX_SOCKETS: usize = 64;

/// Bytes of the longest message: [`MAX_SOCKETS`] addresses of at most 60 bytes, and the keys.
const MAX_MESSAGE: usize = 8 * 1024;

/// What the running process hands over in one message.
pub(super) struct HandoverMessage {
    pub(super) sockets: Vec<ListeningSocket>,
    /// The keys of session tickets, as `TicketKeys::export` writes them.
    pub(super) ticket_keys: Zeroizing<String>,
}

/// Sends one line.
pub(super) fn send_line(stream: &mut UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// Reads one line; an error if it is another one.
pub(super) fn expect_line(stream: &mut UnixStream, line: &str) -> io::Result<()> {
    let mut received = vec![0; line.len() + 1];
    stream.read_exact(&mut received)?;
    if received == format!("{line}\n").as_bytes() { Ok(()) } else { Err(unexpected()) }
}

/// Sends sockets and keys.
pub(super) fn send_message(stream: &UnixStream, message: &HandoverMessage) -> io::Result<()> {
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
    let descriptors: Vec<_> =
        message.sockets.iter().map(|listening| listening.socket.as_fd()).collect();
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
pub(super) fn receive_message(stream: &UnixStream) -> io::Result<HandoverMessage> {
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
    let lines = std::str::from_utf8(&bytes[..received.bytes]).map_err(|_| unexpected())?;
    let lines = lines.strip_suffix('\n').and_then(|lines| lines.split_once('\n'));
    let (addresses, keys) = lines.ok_or_else(unexpected)?;
    let addresses = addresses.strip_prefix(SOCKETS_PREFIX).ok_or_else(unexpected)?;
    let keys = keys.strip_prefix(TICKETS_PREFIX).ok_or_else(unexpected)?;
    let addresses: Result<Vec<SocketAddr>, _> =
        addresses.split_whitespace().map(str::parse).collect();
    let addresses = addresses.map_err(|_| unexpected())?;
    if addresses.len() != descriptors.len() {
        return Err(unexpected());
    }
    let sockets = addresses.into_iter().zip(descriptors).map(|(address, descriptor)| {
        ListeningSocket { address, socket: TcpListener::from(descriptor) }
    });
    Ok(HandoverMessage { sockets: sockets.collect(), ticket_keys: Zeroizing::new(keys.to_owned()) })
}

fn unexpected() -> io::Error {
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
        send_message(&sender, &HandoverMessage { sockets, ticket_keys }).unwrap();
        let received = receive_message(&receiver).unwrap();
        assert_eq!(*received.ticket_keys, "a b");
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
            "sockets 127.0.0.1:1\ntickets a\n",
            "sockets",
            "sockets\n",
            "sockets\na\n",
            "garbage\n",
            "sockets x\ntickets a\n",
        ] {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            sender.write_all(message.as_bytes()).unwrap();
            drop(sender);
            assert!(receive_message(&receiver).is_err(), "{message:?}");
        }
        let (mut sender, mut receiver) = UnixStream::pair().unwrap();
        send_line(&mut sender, "nonsense!").unwrap();
        assert!(expect_line(&mut receiver, ACCEPTING).is_err());
    }
}
