//! Asks the admin API of a running process.
//!
//! It speaks HTTP/1.1 without TLS, as the admin listener does, and bounds the answer and the time. It does not know what
//! is asked.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::ops::ADMIN_API;

/// The time for one question, with its connection and its whole answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Where the admin API is, and what it wants to see.
pub(super) struct AdminClient {
    authority: String,
    token: Option<String>,
}

impl AdminClient {
    /// The API at a URL such as `http://127.0.0.1:9900`. The token in `token_file`, if one is given, stands before
    /// `token`.
    ///
    /// # Errors
    /// The URL cannot be asked, or the file cannot be read.
    pub(super) fn new(
        url: &str,
        token_file: Option<&Path>,
        token: Option<&str>,
    ) -> Result<Self, String> {
        let wrong = || format!("--admin {url}: write a URL as http://127.0.0.1:9900");
        let parsed: Uri = url.parse().map_err(|_| wrong())?;
        match (parsed.scheme_str(), parsed.path()) {
            (None, _) | (Some("http"), "" | "/") => {}
            (Some("https"), _) => {
                return Err(format!("--admin {url}: the admin listener has no TLS; write http"));
            }
            _ => return Err(wrong()),
        }
        let authority = parsed.authority().ok_or_else(wrong)?;
        if authority.port_u16().is_none() {
            return Err(format!(
                "--admin {url}: write the port of admin.address, as {authority}:9900"
            ));
        }
        let token = match token_file {
            None => token.map(str::to_owned),
            Some(file) => {
                let text = std::fs::read_to_string(file);
                let text =
                    text.map_err(|error| format!("--token-file {}: {error}", file.display()))?;
                Some(text.trim().to_owned())
            }
        };
        Ok(Self { authority: authority.to_string(), token })
    }

    /// Sends JSON and returns the status with the JSON of the answer.
    ///
    /// # Errors
    /// Nobody answers there, or not as the admin API does.
    pub(super) fn post(&self, path: &str, question: &Value) -> Result<(StatusCode, Value), String> {
        self.send(Method::POST, path, Some(question), TIMEOUT)
    }

    /// Sends a request, with JSON if there is any, and returns the status with the JSON of the answer.
    ///
    /// # Errors
    /// Nobody answers there in time, or not as the admin API does.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<(StatusCode, Value), String> {
        let question = body.map(Value::to_string).unwrap_or_default();
        let answer = self.exchange(method, path, question, timeout)?;
        let status = answer.status();
        let json = serde_json::from_slice(answer.body());
        json.map(|json| (status, json))
            .map_err(|_| self.failed(&format!("{status}, and an answer that is no JSON")))
    }

    /// Asks for a text and returns the answer as it is.
    ///
    /// # Errors
    /// Nobody answers there in time, or not as the admin API does.
    pub(super) fn get(&self, path: &str, timeout: Duration) -> Result<Response<Bytes>, String> {
        self.exchange(Method::GET, path, String::new(), timeout)
    }

    /// Sends a request in a runtime of its own and reads the whole answer.
    fn exchange(
        &self,
        method: Method,
        path: &str,
        question: String,
        timeout: Duration,
    ) -> Result<Response<Bytes>, String> {
        let failed = |why: String| self.failed(&why);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        let asked = async {
            self.check_listener().await?;
            self.ask(method, path, question).await
        };
        runtime.block_on(async {
            let answer = tokio::time::timeout(timeout, asked).await;
            answer.unwrap_or_else(|_| Err(format!("no answer within {timeout:?}"))).map_err(failed)
        })
    }

    fn failed(&self, why: &str) -> String {
        format!("http://{}: {why}", self.authority)
    }

    /// Checks that an admin listener answers there, before the token is sent: an origin or another listener must not see it,
    /// and its answers mean nothing.
    async fn check_listener(&self) -> Result<(), String> {
        let request = self.request(Method::GET, "/healthz").body(Full::default());
        let answer = self.send_request(request.map_err(|error| error.to_string())?).await?;
        match answer.headers().contains_key(ADMIN_API) {
            true => Ok(()),
            false => Err("no admin listener of tollgate answers there; \
                          write the address of the section admin, not of a listener"
                .to_owned()),
        }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(path).header(header::HOST, &self.authority)
    }

    async fn send_request(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        let told = |error: hyper::Error| error.to_string();
        let stream = TcpStream::connect(&self.authority).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(told)?;
        // It ends with the sender.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(told)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        question: String,
    ) -> Result<Response<Bytes>, String> {
        let mut request =
            self.request(method, path).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(question)));
        let mut answer = self.send_request(request.map_err(|error| error.to_string())?).await?;
        let body = Limited::new(answer.body_mut(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(answer.map(|_| body))
    }
}
