//! Rate limits before an axum router, as a middleware of tower.
//!
//! `cargo run --example axum -- conf/examples/two-tier-site.yaml 127.0.0.1:8080`

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use tollgate::{Action, Limiter};
use tower::ServiceBuilder;

async fn limit(
    State(limiter): State<Limiter>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut judged = limiter.judge(&parts, peer.ip()).await;
    if let Action::Refuse(refusal) = judged.action() {
        return refusal.into();
    }
    judged.wait().await;
    let mut response = next.run(Request::from_parts(parts, body)).await;
    judged.answered(response.status(), response.headers_mut());
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policy, listen] = args.try_into().map_err(|_| "axum POLICY LISTEN")?;
    let limiter = Limiter::builder().policy_file(policy).reload_on_change().connect().await?;
    tokio::spawn(limiter.run_background());
    let layers = ServiceBuilder::new().layer(from_fn_with_state(limiter, limit));
    let router = Router::new().route("/", get(|| async { "hello\n" })).layer(layers);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(tokio::net::TcpListener::bind(listen).await?, service).await?)
}
