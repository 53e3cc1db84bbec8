//! One fetch: a request on a connection of its own, and its answer within a deadline and a size.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::cache_control::max_age;
use super::connect::connect;
use crate::tokens::{FetchError, FetchedKeySet, KeySetUrl};

/// The time for a whole fetch: name, connection, TLS, head and body.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest set, in bytes: 64 keys with their chains of certificates have a quarter of it.
const MAX_SET_BYTES: usize = 1 << 20;

/// The largest head of an answer, in bytes, and its largest number of fields.
const MAX_HEAD_BYTES: usize = 64 * 1_024;
const MAX_HEAD_FIELDS: usize = 100;

/// Fetches a set.
pub(super) async fn fetch(url: &KeySetUrl) -> Result<FetchedKeySet, FetchError> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch_untimed(url)).await;
    fetched.unwrap_or(Err(FetchError::Timeout(FETCH_TIMEOUT.as_secs())))
}

async fn fetch_untimed(url: &KeySetUrl) -> Result<FetchedKeySet, FetchError> {
    let request = request(url)?;
    let stream = TokioIo::new(connect(url).await?);
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEAD_FIELDS)
        .handshake(stream)
        .await
        .map_err(broken)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        read(answer).await
    };
    tokio::pin!(exchange);
    // The connection moves the bytes. It may end before the exchange has taken the last of them.
    tokio::select! {
        fetched = &mut exchange => return fetched,
        _ = connection => {}
    }
    exchange.await
}

fn request(url: &KeySetUrl) -> Result<Request<Empty<Bytes>>, FetchError> {
    let target = url.uri.path_and_query().map_or("/", |target| target.as_str());
    let host = url.uri.authority().map_or("", |authority| authority.as_str());
    Request::get(target)
        .header(HOST, host)
        .header(USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "application/jwk-set+json, application/json")
        .header(CONNECTION, HeaderValue::from_static("close"))
        .body(Empty::new())
        .map_err(|error| FetchError::Unreachable(error.to_string()))
}

/// Reads an answer. A redirect is not followed: the URL in the configuration says whose keys are trusted.
async fn read(answer: Response<Incoming>) -> Result<FetchedKeySet, FetchError> {
    if answer.status() != StatusCode::OK {
        return Err(FetchError::Status(answer.status().as_u16()));
    }
    let declared = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if declared
        .and_then(|length| length.parse().ok())
        .is_some_and(|length: usize| length > MAX_SET_BYTES)
    {
        return Err(FetchError::TooLarge(MAX_SET_BYTES));
    }
    let max_age = max_age(answer.headers());
    let body = Limited::new(answer.into_body(), MAX_SET_BYTES).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => FetchError::TooLarge(MAX_SET_BYTES),
        None => FetchError::Unreachable(error.to_string()),
    })?;
    Ok(FetchedKeySet { json: body.to_bytes().to_vec(), max_age })
}

fn broken(error: hyper::Error) -> FetchError {
    FetchError::Unreachable(error.to_string())
}
