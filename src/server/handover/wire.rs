//! What two processes say to each other, one message at a time, over a stream of their own.
//!
//! successor: `tollgate 1 wait`; running process: `sockets ADDRESS..` with the descriptors beside
//! it; successor: `accepting`; running process: `yours`, and accepts no more. Each ends in a line
//! feed. Anything else ends the conversation.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The first word of a successor; a later protocol has another number.
pub(super) const WAIT: &str = "tollgate 1 wait";

/// Its last.
pub(super) const ACCEPTING: &str = "accepting";

/// The running process's last.
pub(super) const YOURS: &str = "yours";

const SOCKETS: &str = "sockets";

/// Most sockets of one message; the kernel takes 253.
const MAX_SOCKETS: usize = 64;

/// The longest message: so many addresses of at most 60 bytes.
const MAX_MESSAGE: usize = 4 * 1024;

/// Says a word.
pub(super) fn say(stream: &mut UnixStream, word: &str) -> io::Result<()> {
    stream.write_all(format!("{word}\n").as_bytes())
}

/// Waits for a word, and for no other.
pub(super) fn expect(stream: &mut UnixStream, word: &str) -> io::Result<()> {
    let mut said = vec![0; word.len() + 1];
    stream.read_exact(&mut said)?;
    if said == format!("{word}\n").as_bytes() { Ok(()) } else { Err(unexpected()) }
}

/// Sends listening sockets.
pub(super) fn send_sockets(
    stream: &UnixStream,
    sockets: &[(SocketAddr, TcpListener)],
) -> io::Result<()> {
    let mut line = SOCKETS.to_owned();
    for (address, _) in sockets {
        line.push_str(&format!(" {address}"));
    }
    line.push('\n');
    let descriptors: Vec<_> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many sockets"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(line.as_bytes())], &mut beside, SendFlags::NOSIGNAL)?;
    // A message this short goes out whole or not at all.
    if sent == line.len() { Ok(()) } else { Err(unexpected()) }
}

/// Waits for listening sockets. Every descriptor that came is closed on an error.
pub(super) fn receive_sockets(stream: &UnixStream) -> io::Result<Vec<(SocketAddr, TcpListener)>> {
    let mut line = vec![0; MAX_MESSAGE];
    let mut space =
        vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut line)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    let line = std::str::from_utf8(&line[..received.bytes]).map_err(|_| unexpected())?;
    let addresses = line.strip_prefix(SOCKETS).and_then(|rest| rest.strip_suffix('\n'));
    let addresses: Result<Vec<SocketAddr>, _> =
        addresses.ok_or_else(unexpected)?.split_whitespace().map(str::parse).collect();
    let addresses = addresses.map_err(|_| unexpected())?;
    if addresses.len() != descriptors.len() {
        return Err(unexpected());
    }
    Ok(addresses.into_iter().zip(descriptors.into_iter().map(TcpListener::from)).collect())
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
        send_sockets(&one, &sockets).unwrap();
        let received = receive_sockets(&two).unwrap();
        assert_eq!(received.len(), 33);
        for ((address, _), (sent, _)) in received.iter().zip(&sockets) {
            assert_eq!(address, sent);
        }
        for (address, socket) in &received {
            assert_eq!(socket.local_addr().unwrap(), *address);
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for said in ["", "sockets 127.0.0.1:1\n", "sockets", "garbage\n", "sockets x\n"] {
            let (mut one, two) = UnixStream::pair().unwrap();
            one.write_all(said.as_bytes()).unwrap();
            drop(one);
            assert!(receive_sockets(&two).is_err(), "{said:?}");
        }
        let (mut one, mut two) = UnixStream::pair().unwrap();
        say(&mut one, "nonsense!").unwrap();
        assert!(expect(&mut two, ACCEPTING).is_err());
    }
}
