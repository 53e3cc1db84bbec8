//! tollgate: an edge reverse proxy on Pingora that counts cheaply where an approximate number is
//! enough, and exactly where the number has to be true.

pub mod clock;
pub mod config;
pub mod limit;
pub mod policy;
