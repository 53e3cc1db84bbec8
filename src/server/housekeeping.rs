//! What goes on beside the requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::ops::{Orders, Reloader};

/// Between two rounds of the engine's housekeeping.
const TICK: Duration = Duration::from_millis(100);

/// Turns sketches, sweeps cells, reloads when told to.
pub(super) struct Housekeeping {
    pub(super) reloader: Reloader,
    pub(super) orders: Arc<Orders>,
}

impl Housekeeping {
    pub(super) async fn go_on(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let live = self.reloader.live.load_full();
                    self.reloader.engine.tick(&live.generation);
                }
                () = self.orders.reload.notified() => {
                    self.reloader.reload().await;
                }
            }
        }
    }
}
