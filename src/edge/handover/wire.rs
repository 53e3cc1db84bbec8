//! What two processes say to each other, one message at a time, over a stream of their own.
//!
//! successor: `tollgate 2 wait`; running process: `sockets ADDRESS..` with the descriptors beside
//! it, and in the same message `tickets KEY..`, the keys of session tickets; successor: `accepting`;
//! running process: `yours`, and accepts no more. Each line ends in a line feed. Anything else ends
//! the conversation. (The first protocol had no keys.)

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

/// The first word of a successor; a later protocol has another number.
pub(crate) const WAIT: &str = "tollgate 2 wait";

/// Its last.
pub(crate) const ACCEPTING: &str = "accepting";

/// The running process's last.
pub(crate) const YOURS: &str = "yours";

const SOCKETS: &str = "sockets";

const TICKETS: &str = "tickets ";

/// Most sockets of one message; the kernel takes 253.
const MAX_SOCKETS: usize = 64;

/// The longest message: so many addresses of at most 60 bytes, and the keys.
const MAX_MESSAGE: usize = 8 * 1024;

/// What is handed over in one message.
pub(crate) struct Handed {
    pub(crate) sockets: Vec<(SocketAddr, TcpListener)>,
    /// The keys of session tickets, in the words of `TicketKeys::export`.
    pub(crate) ticket_keys: Zeroizing<String>,
}

/// Says a word.
pub(crate) fn say(stream: &mut UnixStream, word: &str) -> io::Result<()> {
    stream.write_all(format!("{word}\n").as_bytes())
}

/// Waits for a word, and for no other.
pub(crate) fn expect(stream: &mut UnixStream, word: &str) -> io::Result<()> {
    let mut said = vec![0; word.len() + 1];
    stream.read_exact(&mut said)?;
    if said == format!("{word}\n").as_bytes() { Ok(()) } else { Err(unexpected()) }
}

/// Hands everything over.
pub(crate) fn hand(stream: &UnixStream, handed: &Handed) -> io::Result<()> {
    let sockets = &handed.sockets;
    // Large enough from the start: a buffer that grows leaves keys behind.
    let mut lines = Zeroizing::new(String::with_capacity(MAX_MESSAGE));
    lines.push_str(SOCKETS);
    for (address, _) in sockets {
        lines.push_str(&format!(" {address}"));
    }
    lines.push('\n');
    lines.push_str(TICKETS);
    lines.push_str(&handed.ticket_keys);
    lines.push('\n');
    let descriptors: Vec<_> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many sockets"));
    }
    let bytes = [IoSlice::new(lines.as_bytes())];
    let sent = sendmsg(stream, &bytes, &mut beside, SendFlags::NOSIGNAL)?;
    // A message this short goes out whole or not at all.
    if sent == lines.len() { Ok(()) } else { Err(unexpected()) }
}

/// Waits for what is handed over. Every descriptor that came is closed on an error.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<Handed> {
    let mut bytes = Zeroizing::new(vec![0; MAX_MESSAGE]);
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    let lines = std::str::from_utf8(&bytes[..received.bytes]).map_err(|_| unexpected())?;
    let lines = lines.strip_suffix('\n').and_then(|lines| lines.split_once('\n'));
    let (addresses, keys) = lines.ok_or_else(unexpected)?;
    let addresses = addresses.strip_prefix(SOCKETS).ok_or_else(unexpected)?;
    let keys = keys.strip_prefix(TICKETS).ok_or_else(unexpected)?;
    let addresses: Result<Vec<SocketAddr>, _> =
        addresses.split_whitespace().map(str::parse).collect();
    let addresses = addresses.map_err(|_| unexpected())?;
    if addresses.len() != descriptors.len() {
        return Err(unexpected());
    }
    let sockets = addresses.into_iter().zip(descriptors.into_iter().map(TcpListener::from));
    Ok(Handed { sockets: sockets.collect(), ticket_keys: Zeroizing::new(keys.to_owned()) })
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it says something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_arrive_by_their_addresses() {
        let (one, two) = UnixStream::pair().unwrap();
        let sockets: Vec<_> = (0..33)
            .map(|_| {
                let socket = TcpListener::bind("127.0.0.1:0").unwrap();
                (socket.local_addr().unwrap(), socket)
            })
            .collect();
        let addresses: Vec<_> = sockets.iter().map(|(address, _)| *address).collect();
        let ticket_keys = Zeroizing::new("a b".to_owned());
        hand(&one, &Handed { sockets, ticket_keys }).unwrap();
        let received = receive(&two).unwrap();
        assert_eq!(*received.ticket_keys, "a b");
        let arrived: Vec<_> = received.sockets.iter().map(|(address, _)| *address).collect();
        assert_eq!(arrived, addresses);
        for (address, socket) in &received.sockets {
            assert_eq!(socket.local_addr().unwrap(), *address);
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for said in [
            "",
            "sockets 127.0.0.1:1\n",
            "sockets 127.0.0.1:1\ntickets a\n",
            "sockets",
            "sockets\n",
            "sockets\na\n",
            "garbage\n",
            "sockets x\ntickets a\n",
        ] {
            let (mut one, two) = UnixStream::pair().unwrap();
            one.write_all(said.as_bytes()).unwrap();
            drop(one);
            assert!(receive(&two).is_err(), "{said:?}");
        }
        let (mut one, mut two) = UnixStream::pair().unwrap();
        say(&mut one, "nonsense!").unwrap();
        assert!(expect(&mut two, ACCEPTING).is_err());
    }
}
