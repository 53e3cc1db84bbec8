//! What the proxy holds, seen from outside: the system's numbers and its own metrics.

use std::time::Duration;

use crate::servers::{Gate, resident_kib};

/// `USER_HZ`: in what the kernel counts processor time, on every system that Rust's std supports.
const TICKS_A_SECOND: u64 = 100;

/// What it holds at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    pub descriptors: u64,
    pub resident_kib: u64,
    pub connections: u64,
    pub origin_connections: u64,
    pub in_flight: u64,
    pub waiting: u64,
    pub memory_bytes: u64,
}

impl Held {
    /// The metrics that it was read from come with it.
    pub async fn by(gate: &Gate) -> (Self, String) {
        let metrics = gate.metrics().await;
        let held = Self {
            descriptors: descriptors(gate.pid()),
            resident_kib: resident_kib(gate.pid()),
            connections: sum(&metrics, "tollgate_connections"),
            origin_connections: sum(&metrics, "tollgate_origin_connections"),
            in_flight: sum(&metrics, "tollgate_in_flight"),
            waiting: sum(&metrics, "tollgate_waiting"),
            memory_bytes: sum(&metrics, "tollgate_memory_bytes"),
        };
        (held, metrics)
    }

    /// The larger of both, number by number.
    pub fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            resident_kib: self.resident_kib.max(other.resident_kib),
            connections: self.connections.max(other.connections),
            origin_connections: self.origin_connections.max(other.origin_connections),
            in_flight: self.in_flight.max(other.in_flight),
            waiting: self.waiting.max(other.waiting),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// The sum of all samples of a metric, or of one sample where its labels are given.
pub fn sum(metrics: &str, name: &str) -> u64 {
    let values = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let name_ends = rest.starts_with([' ', '{']);
        name_ends.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    });
    values.sum::<f64>() as u64
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

/// The processor time that a process has used, of user and system.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in parentheses may hold anything; utime and stime are fields 14 and 15 of proc(5).
    let after_name = stat.rsplit(") ").next().unwrap();
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS_A_SECOND)
}
