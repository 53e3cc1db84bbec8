//! Carries counts between the nodes of a case, as the script `fleet.lua` does between nodes with one store.
//!
//! It never fails, and all nodes live from the beginning of the case to its end. So it has one history, and no node is
//! dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::{Clock, ManualClock, Nanos};
use crate::engine::FleetChannel;
use crate::store::redis::{FleetCursor, FleetNews, FleetQuestion, ReceivedChunk, StoreFailure};

/// The chunks of the nodes of a case.
#[derive(Debug)]
pub(super) struct CaseChannel {
    clock: Arc<ManualClock>,
    nodes: u32,
    kept: Mutex<KeptChunks>,
}

#[derive(Debug, Default)]
struct KeptChunks {
    /// The number of the latest write.
    sequence: u64,
    /// By node and number.
    chunks: BTreeMap<(u64, u16), KeptChunk>,
}

#[derive(Debug)]
struct KeptChunk {
    /// The number of its write.
    sequence: u64,
    text: String,
    /// When it cannot be read any more.
    ends: Nanos,
}

impl CaseChannel {
    pub(super) fn new(clock: Arc<ManualClock>, nodes: u32) -> Self {
        Self { clock, nodes, kept: Mutex::default() }
    }

    /// How many chunks were written.
    pub(super) fn writes(&self) -> u64 {
        self.kept.lock().sequence
    }
}

impl FleetChannel for CaseChannel {
    fn is_up(&self) -> bool {
        true
    }

    async fn exchange(&self, question: FleetQuestion<'_>) -> Result<FleetNews, StoreFailure> {
        let now = self.clock.now().wall;
        let mut kept = self.kept.lock();
        kept.chunks.retain(|_, chunk| chunk.ends > now);
        for chunk in question.chunks {
            kept.sequence += 1;
            let written = KeptChunk {
                sequence: kept.sequence,
                text: chunk.text.clone(),
                ends: now.saturating_add(chunk.lifetime),
            };
            kept.chunks.insert((question.node, chunk.number), written);
        }
        let known = question.cursor.sequence();
        let unread = kept.chunks.iter().filter(|((node, _), chunk)| {
            *node != question.node && chunk.sequence > known && !chunk.text.is_empty()
        });
        let mut unread: Vec<_> = unread.collect();
        unread.sort_by_key(|(_, chunk)| chunk.sequence);
        let chunks = unread.into_iter().map(|((node, number), chunk)| ReceivedChunk {
            node: *node,
            number: *number,
            text: chunk.text.clone(),
        });
        Ok(FleetNews {
            at: now,
            cursor: FleetCursor::behind(kept.sequence),
            has_more: false,
            nodes: self.nodes,
            is_new_history: false,
            chunks: chunks.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::store::redis::FleetChunk;

    fn exchange(
        channel: &CaseChannel,
        node: u64,
        cursor: &mut FleetCursor,
        chunks: &[(u16, &str)],
    ) -> Vec<(u64, u16, String)> {
        let chunks: Vec<FleetChunk> = chunks
            .iter()
            .map(|(number, text)| FleetChunk {
                number: *number,
                text: (*text).to_owned(),
                lifetime: Nanos::from_secs(10),
            })
            .collect();
        let question = FleetQuestion {
            node,
            cursor,
            chunks: &chunks,
            liveness: Nanos::SECOND,
            max_bytes: 1_000,
            leaves: false,
            timeout: Duration::from_secs(1),
        };
        let news = channel.exchange(question).now_or_never().unwrap().unwrap();
        assert_eq!(news.nodes, 2);
        *cursor = news.cursor;
        news.chunks.into_iter().map(|chunk| (chunk.node, chunk.number, chunk.text)).collect()
    }

    #[test]
    fn a_node_reads_once_what_others_wrote_last() {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_000)));
        let channel = CaseChannel::new(Arc::clone(&clock), 2);
        let (mut first, mut second) = (FleetCursor::default(), FleetCursor::default());
        let none: [(u64, u16, String); 0] = [];
        assert_eq!(exchange(&channel, 1, &mut first, &[(7, "a"), (3, "b")]), none);
        let text = |node, number, text: &str| (node, number, text.to_owned());
        let both = [text(1, 7, "a"), text(1, 3, "b")];
        assert_eq!(exchange(&channel, 2, &mut second, &[(7, "c")]), both);
        assert_eq!(exchange(&channel, 2, &mut second, &[]), none);
        assert_eq!(exchange(&channel, 1, &mut first, &[(7, "d")]), [text(2, 7, "c")]);
        assert_eq!(exchange(&channel, 2, &mut second, &[]), [text(1, 7, "d")]);
        assert_eq!(channel.writes(), 4);
        // A node that begins anew reads everything that has not ended.
        let again = [text(1, 3, "b"), text(1, 7, "d")];
        assert_eq!(exchange(&channel, 2, &mut FleetCursor::default(), &[]), again);
        clock.advance(Nanos::from_secs(10));
        assert_eq!(exchange(&channel, 2, &mut FleetCursor::default(), &[]), none);
    }
}
