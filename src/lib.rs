//! tollgate: an edge reverse proxy on Pingora that counts cheaply where an approximate number is
//! enough, and exactly where the number has to be true.
//!
//! The binary is the product. For other Pingora proxies there is [`limiter::Limiter`]: it reads a
//! policy file, decides a request's head, and renders the refusal and the fields of the answer.
//!
//! ```no_run
//! # async fn f(head: pingora::http::RequestHeader) -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = tollgate::limiter::Limiter::from_file("policy.yaml".as_ref())?;
//! let judged = limiter.judge(&head, [192, 0, 2, 1].into()).await;
//! tokio::time::sleep(judged.wait()).await;
//! match judged.refusal(&head.headers)? {
//!     Some(refusal) => println!("{} {:?}", refusal.head.status, refusal.body),
//!     None => println!("forward it; call judged.finish and judged.write_fields on the answer"),
//! }
//! # Ok(()) }
//! ```
//!
//! What is shown below is what a plugin meets; the rooms that are hidden are the binary's own and
//! change without notice. ARCHITECTURE.md says what each room is for.

pub mod clock;
pub mod config;
pub mod engine;
pub mod limit;
pub mod limiter;
pub mod policy;

#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod edge;
#[doc(hidden)]
pub mod estimator;
#[doc(hidden)]
pub mod histogram;
#[doc(hidden)]
pub mod http;
#[doc(hidden)]
pub mod log_sampler;
#[doc(hidden)]
pub mod ops;
#[doc(hidden)]
pub mod proxy;
#[doc(hidden)]
pub mod server;
#[doc(hidden)]
pub mod signals;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod tokens;
