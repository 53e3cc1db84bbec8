//! How wide the bounds are on ordinary traffic.

use tollgate::clock::Nanos;
use tollgate::limit::{FixedWindow, Quota, Rate, SlidingLog, SlidingWindow, TokenBucket};
use tollgate::replay::bounds::{Certainty, CostRange, StampPrecision};

use crate::simulation::{Outcome, Stamps, TrueRequest, truly_refused};

/// Log-normal keys with Poisson arrivals, an hour.
fn traffic(per_minute: f64, random: &mut fastrand::Rng) -> Vec<TrueRequest> {
    const MINUTE: f64 = 60e9;
    let mut requests = Vec::new();
    for key in 0..300u128 {
        let (radius, angle) = (1.0 - random.f64(), random.f64());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        let rate = per_minute * normal.exp();
        let mut wait = || -(1.0 - random.f64()).ln() / rate * MINUTE;
        let mut at = wait();
        while at < 60.0 * MINUTE {
            let at_nanos = 1_900_000_000_000_000_000 + at as u64;
            requests.push(TrueRequest { key, at: at_nanos, cost: 1, outcome: Outcome::Charged });
            at += wait();
        }
    }
    requests.sort_by_key(|request| request.at);
    requests
}

#[test]
fn bounds_are_narrow_on_ordinary_traffic() {
    let minute = Rate::new(60, Nanos::from_secs(60)).unwrap();
    let ten_seconds = Rate::new(10, Nanos::from_secs(10)).unwrap();
    let second = Rate::new(5, Nanos::SECOND).unwrap();
    let bucket = |rate, burst| {
        Quota::TokenBucket(TokenBucket::new(rate, burst, Nanos::ZERO, Nanos::new(1)).unwrap())
    };
    for (name, quota, per_minute, max_width) in [
        ("fixed_window 60/1m", Quota::FixedWindow(FixedWindow::new(minute)), 20.0, 0.0),
        ("fixed_window 5/s", Quota::FixedWindow(FixedWindow::new(second)), 100.0, 0.0),
        ("sliding_window 60/1m", Quota::SlidingWindow(SlidingWindow::new(minute)), 20.0, 0.02),
        ("sliding_window 10/10s", Quota::SlidingWindow(SlidingWindow::new(ten_seconds)), 20.0, 0.2),
        ("sliding_log 60/1m", Quota::SlidingLog(SlidingLog::new(minute).unwrap()), 20.0, 0.02),
        ("sliding_log 10/10s", Quota::SlidingLog(SlidingLog::new(ten_seconds).unwrap()), 20.0, 0.1),
        ("token_bucket 60/1m, 60", bucket(minute, 60), 20.0, 0.02),
        ("token_bucket 60/1m, 10", bucket(minute, 10), 20.0, 0.05),
        ("token_bucket 5/s, 10", bucket(second, 10), 100.0, 0.1),
    ] {
        for (stamps, width_share) in [
            (Stamps { unit: 1_000_000_000, unknown: 0 }, 1.0),
            (Stamps { unit: 1_000_000, unknown: 0 }, 0.3),
        ] {
            let random = &mut fastrand::Rng::with_seed(5);
            let requests = traffic(per_minute, random);
            let truth = truly_refused(quota, &requests);
            let certain = |request| {
                stamps.stamped(request, Certainty::Certain, &mut fastrand::Rng::with_seed(0))
            };
            let stamped = requests.iter().map(certain).collect();
            let precision = StampPrecision::rounded_down(Nanos::new(stamps.unit));
            let found = crate::bounds(quota, precision, CostRange::UNIT, stamped, random);
            let width = (found.upper - found.lower(0)) as f64 / found.judged as f64;
            println!(
                "{name}, stamps of {:?}: {} requests, {} <= {truth} <= {}, width {:.3} %",
                Nanos::new(stamps.unit),
                found.judged,
                found.lower(0),
                found.upper,
                100.0 * width
            );
            assert!(found.lower(0) <= truth && truth <= found.upper);
            assert!(width <= max_width * width_share, "{name} {width}");
        }
    }
}
