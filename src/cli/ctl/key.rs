//! `tollgate ctl key ..`: shows and changes what holds for one key.
//!
//! A key is read from the command line, or with `-` from standard input, so that a secret is in no list of processes. It
//! is sent to the admin API, which hashes it, and is never printed.

use std::io::Read;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// The longest text of standard input: the admin API takes no longer body.
const MAX_INPUT: u64 = 64 << 10;

/// What is done with a key.
#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Show what a key has spent, what is left, and its ban and override.
    Show {
        #[command(flatten)]
        key: KeyArgs,
        /// The plan by whose rate the key is judged.
        #[arg(long, value_name = "PLAN")]
        plan: Option<String>,
    },
    /// Forget what a key has spent, everywhere.
    Reset {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        why: Reason,
    },
    /// Refuse every request of a key for a while.
    Ban {
        #[command(flatten)]
        key: KeyArgs,
        /// How long, for example 2h; at most 30d.
        #[arg(long = "for", value_name = "DURATION")]
        span: String,
        #[command(flatten)]
        why: Reason,
    },
    /// Lift the ban of a key.
    Unban {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        why: Reason,
    },
    /// Give a key another rate for a while, or allow or deny it; --none ends its override.
    Override {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        ruling: RulingArgs,
        /// How long, for example 2h; at most 30d.
        #[arg(
            long = "for",
            value_name = "DURATION",
            required_unless_present = "none",
            conflicts_with = "none"
        )]
        span: Option<String>,
        #[command(flatten)]
        why: Reason,
    },
}

/// A key of a limit.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The limit's name.
    limit: String,
    /// The key as clients send it: one text, or one for each of its sources; - reads them from standard input, one a line.
    #[arg(required = true, value_name = "KEY")]
    key: Vec<String>,
    /// KEY is the hash of a key of this limit, as logs and answers show it.
    #[arg(long, conflicts_with = "client_ip")]
    hash: bool,
    /// KEY is the address of a client that a limit with missing_key: client_ip counts by its address.
    #[arg(long)]
    client_ip: bool,
}

/// Why something is changed.
#[derive(Debug, Args)]
pub(super) struct Reason {
    /// Why, for the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// What an override says.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct RulingArgs {
    /// Another rate, for example 600/1m.
    #[arg(long, value_name = "RATE", conflicts_with_all = ["allow", "deny", "none"])]
    rate: Option<String>,
    /// The burst of a token bucket, with --rate.
    #[arg(long, value_name = "N", requires = "rate", group = "with_rate")]
    burst: Option<u32>,
    /// The limit does not apply to the key.
    #[arg(long, conflicts_with_all = ["deny", "none"])]
    allow: bool,
    /// The limit refuses every request of the key.
    #[arg(long, conflicts_with = "none")]
    deny: bool,
    /// End the override of the key.
    #[arg(long)]
    none: bool,
}

impl KeyCommand {
    /// The path and the body of the request.
    ///
    /// # Errors
    /// Standard input has no key.
    pub(super) fn request(&self) -> Result<(&'static str, Value), String> {
        let (path, key, more) = match self {
            Self::Show { key, plan: None } => ("/keys", key, json!({})),
            Self::Show { key, plan } => ("/keys", key, json!({ "plan": plan })),
            Self::Reset { key, why } => ("/keys/reset", key, why.json()),
            Self::Ban { key, span, why } => {
                ("/keys/ban", key, json!({ "for": span, "reason": why.reason }))
            }
            Self::Unban { key, why } => ("/keys/unban", key, why.json()),
            Self::Override { key, ruling, span, why } => {
                let mut more = json!({ "reason": why.reason });
                if let Some(span) = span {
                    more["for"] = json!(span);
                }
                ruling.write(&mut more);
                ("/keys/override", key, more)
            }
        };
        let mut body = more;
        body["limit"] = json!(key.limit);
        body["key"] = key.json()?;
        Ok((path, body))
    }
}

impl KeyArgs {
    fn json(&self) -> Result<Value, String> {
        let typed = match &self.key[..] {
            [dash] if dash == "-" => standard_input()?,
            parts => parts.to_vec(),
        };
        match &typed[..] {
            [single] if self.hash => Ok(json!({ "hash": single })),
            [single] if self.client_ip => Ok(json!({ "client_ip": single })),
            _ if self.hash => Err("--hash takes one hash".to_owned()),
            _ if self.client_ip => Err("--client-ip takes one address".to_owned()),
            [single] => Ok(json!(single)),
            parts => Ok(json!(parts)),
        }
    }
}

impl Reason {
    fn json(&self) -> Value {
        json!({ "reason": self.reason })
    }
}

impl RulingArgs {
    fn write(&self, body: &mut Value) {
        if let Some(rate) = &self.rate {
            body["rate"] = json!(rate);
        }
        if let Some(burst) = self.burst {
            body["burst"] = json!(burst);
        }
        for (is_chosen, action) in [(self.allow, "allow"), (self.deny, "deny"), (self.none, "none")]
        {
            if is_chosen {
                body["action"] = json!(action);
            }
        }
    }
}

fn standard_input() -> Result<Vec<String>, String> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_INPUT).read_to_string(&mut text);
    read.map_err(|error| format!("standard input: {error}"))?;
    let parts: Vec<String> = text.lines().map(str::to_owned).collect();
    if parts.is_empty() { Err("standard input has no key".to_owned()) } else { Ok(parts) }
}
