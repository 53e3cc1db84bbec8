//! Logs as servers write them, and what is read of them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod compressed;
mod damaged;
mod expected;
mod fixtures;
mod formats;
mod refused;
mod zones;
