//! What carries the exchange of a fleet: the shared store, or a stand-in for it when a whole fleet runs in one process.

use crate::store::redis::{FleetNews, FleetQuestion, SharedStore, StoreFailure};

/// Carries chunks of counts between nodes.
pub trait FleetChannel: Sync {
    /// Whether it can be asked now.
    fn is_up(&self) -> bool;

    /// Says that a node lives, takes its chunks, and gives it those of other nodes.
    fn exchange(
        &self,
        question: FleetQuestion<'_>,
    ) -> impl Future<Output = Result<FleetNews, StoreFailure>> + Send;
}

impl FleetChannel for SharedStore {
    fn is_up(&self) -> bool {
        self.carries_fleet()
    }

    async fn exchange(&self, question: FleetQuestion<'_>) -> Result<FleetNews, StoreFailure> {
        self.exchange_fleet(question).await
    }
}
