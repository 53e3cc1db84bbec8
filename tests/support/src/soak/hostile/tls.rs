//! Hostile before HTTP.

use std::io;

use tokio::io::AsyncWriteExt;

use super::Aim;
use super::http1::until_closed;
use crate::frames::{agree, connect};

/// The first bytes of a ClientHello: the rest does not come.
pub(super) async fn half_handshake(aim: Aim) -> io::Result<()> {
    let mut stream = connect(aim.source, aim.tls, None).await?;
    stream.write_all(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03").await?;
    until_closed(&mut stream).await
}

/// A whole handshake, and away.
pub(super) async fn handshakes(aim: Aim) -> io::Result<()> {
    agree(connect(aim.source, aim.tls, None).await?).await.map(drop)
}
