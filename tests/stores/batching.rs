//! The batcher over a store on virtual time: which charges share a call, which reply is whose, what
//! a deadline means, and what becomes of charges that were not sent.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Nanos};
use tollgate::store::redis::{Answered, Charge, Failure, Remote};

use crate::virtual_store::{VirtualStore, charge, key, quota};

const MS: Duration = Duration::from_millis(1);

type Settled = Result<Answered, Failure>;

/// Settles a charge within so long, in a task of its own. Returns how long it took, too.
fn settle(
    store: &Arc<VirtualStore>,
    remote: &Arc<Remote>,
    charge: Charge,
    within: Duration,
) -> tokio::task::JoinHandle<(Settled, Duration)> {
    let (clock, remote) = (Arc::clone(&store.clock), Arc::clone(remote));
    tokio::spawn(async move {
        let now = clock.now().mono;
        let settled = remote.settle(charge, 1, now.saturating_add(within.into()), now).await;
        (settled, clock.now().mono.saturating_sub(now).into())
    })
}

/// One cell under two quotas, as with a plan for half of the requests, while more calls are away
/// than go out at once: each request gets its own verdict, and the cell says what was admitted.
#[tokio::test(start_paused = true)]
async fn one_cell_under_two_quotas_gets_every_reply_right() {
    let (store, remote) = VirtualStore::start(5 * MS, Duration::from_secs(10));
    let (user, plans) = (quota(1_000), [quota(3_000), quota(5_000)]);
    let mut admitted = 0;
    for round in 0..8 {
        let tasks: Vec<_> = (0..256u64)
            .map(|n| {
                let plan = &plans[((n + round) % 2) as usize];
                let org = charge(&[(1_000 + n, &user), (1, plan)]);
                (plan.quota().limit(), settle(&store, &remote, org, Duration::from_secs(10)))
            })
            .collect();
        for (limit, task) in tasks {
            let (settled, _) = task.await.unwrap();
            let answered = settled.unwrap();
            let verdicts = &answered.settlement.verdicts;
            assert_eq!((verdicts[0].limit, verdicts[1].limit), (1_000, limit));
            assert!(answered.settlement.spent, "{verdicts:?}");
            admitted += 1;
        }
    }
    assert_eq!(store.spent(key(1)), admitted);
    assert_eq!(admitted, 8 * 256);
}
