//! `tollgate ctl`: sees and steers a running process through its admin API.
//!
//! It finds the address and the token in the configuration, or takes them from the command line. What must always hold:
//! everything goes through the admin API, and no key is printed.

mod changes;
mod key;
mod log_pages;
mod traffic;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use serde_json::Value;

use super::admin_client::AdminClient;
use super::output::{self, Ending};
use super::table;
use crate::config;
use key::KeyCommand;
use log_pages::LogArgs;
use traffic::{HistoryArgs, RefusalsArgs, TopArgs};

/// The time for a question.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The time for a reload, whose outcome is waited for.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(25);

/// How often, and after which time, a command asks again that was told to wait: a script may change hundreds of keys.
const MAX_WAITS: usize = 5;
const WAIT: Duration = Duration::from_secs(1);

/// Which process is asked, and what.
#[derive(Debug, Args)]
pub(super) struct CtlArgs {
    /// The admin API of the process. Without it, admin.address of the configuration.
    #[arg(long, value_name = "URL", global = true)]
    admin: Option<String>,
    /// The file with the token. Without it, that of the configuration.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The configuration of the process.
    #[arg(short, long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Answer in JSON, as the admin API does.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// See and change what holds for one key.
    #[command(subcommand)]
    Key(KeyCommand),
    /// List the overrides and bans that operators made.
    Overrides,
    /// Read the configuration again, as HUP does, and print what came of it.
    Reload,
    /// List what operators have changed, newest first.
    Audit {
        /// How many changes.
        #[arg(long, value_name = "N")]
        count: Option<usize>,
    },
    /// Show what the process serves: its generation, limits, origins, the last reload.
    Status,
    /// List the latest refusals, newest first.
    Refusals(RefusalsArgs),
    /// Tell why a request was refused.
    Why {
        /// The identifier in its answer (X-Request-Id) and in the access log.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List the keys that a limit refuses most.
    Top(TopArgs),
    /// Show what happened in the last minutes.
    History(HistoryArgs),
    /// Write the last lines of the access log, for `tollgate replay`; needs access_log: { replay: true }.
    Log(LogArgs),
}

/// What is asked.
enum CtlQuestion<'a> {
    Once(CtlRequest),
    /// A page after the other.
    Log(&'a LogArgs),
}

/// How an answer is printed.
type Printer = fn(&Value) -> String;

/// A request to the admin API.
struct CtlRequest {
    method: Method,
    path: String,
    body: Option<Value>,
    timeout: Duration,
    print: Printer,
}

/// Asks, and prints the answer. The ending is negative if the process refuses.
pub(super) fn ctl(args: &CtlArgs) -> Ending {
    let question = match args.command.question() {
        Ok(question) => question,
        Err(why) => return output::refuse("ctl", &why),
    };
    let client = match admin_client(args) {
        Ok(client) => client,
        Err(why) => return output::refuse("ctl", &why),
    };
    match question {
        CtlQuestion::Once(request) => ask_once(&client, &request, args.json),
        CtlQuestion::Log(log) => log_pages::write(&client, log, args.json),
    }
}

fn ask_once(client: &AdminClient, request: &CtlRequest, is_json: bool) -> Ending {
    let CtlRequest { method, path, body, timeout, print } = request;
    let answer = ask(|| client.send(method.clone(), path, body.as_ref(), *timeout));
    match answer {
        Err(why) => output::refuse("ctl", &why),
        Ok((status, answer)) if status == StatusCode::OK => {
            let text = if is_json { format!("{answer:#}\n") } else { print(&answer) };
            output::answer(&text, Ending::Success)
        }
        Ok((StatusCode::UNPROCESSABLE_ENTITY, answer)) if !is_json => {
            output::answer(&print(&answer), Ending::Negative)
        }
        Ok((status, answer)) => refused(status, &answer, is_json),
    }
}

/// Asks, and again after a while if it is told to wait.
fn ask<A>(
    mut question: impl FnMut() -> Result<(StatusCode, A), String>,
) -> Result<(StatusCode, A), String> {
    let mut answer = question();
    for _ in 0..MAX_WAITS {
        if !matches!(answer, Ok((StatusCode::TOO_MANY_REQUESTS, _))) {
            break;
        }
        std::thread::sleep(WAIT);
        answer = question();
    }
    answer
}

/// Says why the process refuses.
fn refused(status: StatusCode, answer: &Value, is_json: bool) -> Ending {
    if is_json {
        return output::answer(&format!("{answer:#}\n"), Ending::Negative);
    }
    let detail = answer["detail"].as_str().or(answer.as_str()).unwrap_or_default();
    output::complain(&format!("tollgate ctl: {status}: {}", table::text(&detail.into())));
    Ending::Negative
}

fn admin_client(args: &CtlArgs) -> Result<AdminClient, String> {
    let admin = match &args.config {
        None => None,
        Some(file) => {
            let endpoint = config::admin_endpoint(file).map_err(|errors| errors.to_string())?;
            let missing = || format!("{}: has no admin section", file.display());
            Some(endpoint.ok_or_else(missing)?)
        }
    };
    let url = match (&args.admin, &admin) {
        (Some(url), _) => url.clone(),
        (None, Some(admin)) => {
            let mut address = admin.address;
            if address.ip().is_unspecified() {
                let loopback = match address {
                    std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                    std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
                };
                address.set_ip(loopback);
            }
            format!("http://{address}")
        }
        (None, None) => {
            return Err(
                "say which process: --config FILE, or --admin http://127.0.0.1:9900".to_owned()
            );
        }
    };
    let configured = admin.as_ref().and_then(|admin| admin.token_file.as_deref());
    AdminClient::new(&url, args.token_file.as_deref().or(configured), None)
}

impl CtlCommand {
    fn question(&self) -> Result<CtlQuestion<'_>, String> {
        let get = |path: String, print: Printer| CtlRequest {
            method: Method::GET,
            path,
            body: None,
            timeout: TIMEOUT,
            print,
        };
        let request = match self {
            Self::Log(args) => return Ok(CtlQuestion::Log(args)),
            Self::Key(command) => {
                let (path, body) = command.request()?;
                CtlRequest {
                    method: Method::POST,
                    body: Some(body),
                    ..get(path.to_owned(), changes::key)
                }
            }
            Self::Overrides => get("/overrides".to_owned(), changes::overrides),
            Self::Reload => CtlRequest {
                method: Method::POST,
                timeout: RELOAD_TIMEOUT,
                ..get("/reload".to_owned(), changes::reload)
            },
            Self::Audit { count } => {
                let query = count.map(|count| format!("?count={count}")).unwrap_or_default();
                get(format!("/audit{query}"), changes::audit)
            }
            Self::Status => get("/status".to_owned(), traffic::status),
            Self::Refusals(args) => get(args.path(), traffic::refusals),
            Self::Why { id } => get(traffic::why_path(id), traffic::why),
            Self::Top(args) => get(args.path(), traffic::top),
            Self::History(args) => get(args.path(), traffic::history),
        };
        Ok(CtlQuestion::Once(request))
    }
}
