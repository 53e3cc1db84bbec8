//! tollgate: an edge reverse proxy on Pingora that counts cheaply where an approximate number is
//! enough, and exactly where the number has to be true.

pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod estimator;
pub mod limit;
pub mod ops;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod store;
