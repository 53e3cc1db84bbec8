//! Shared code of the test targets and benchmarks: servers, clients, certificates, and models.
//!
//! Nothing here asserts a property of tollgate by itself. A test target imports what it needs;
//! code that only one target uses stays with that target.

pub mod cases;
pub mod certificates;
pub mod frames;
pub mod key_server;
pub mod lua;
pub mod model;
pub mod moody;
pub mod plain;
pub mod policies;
pub mod scripted;
pub mod servers;
pub mod signing;
pub mod soak;
pub mod spending;
pub mod stand_in;
pub mod wait;
