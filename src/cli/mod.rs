//! The command line: one file or folder for each command.
//!
//! A command reads its arguments, calls the other rooms, and prints. What must always hold: the exit status is 2 if a
//! command line or a file is refused, except for `check`, which answers 1 if a configuration is not valid.

pub mod check;
mod demo;
mod explain;
mod run;
pub mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use log::LevelFilter;

pub use explain::ExplainArgs;

use crate::ops::{LogForm, LogSettings};

/// An edge rate limiter: approximate limits that cost little, and exact limits.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve. HUP reloads, TERM drains and exits, INT exits, QUIT hands over to a successor.
    Run {
        /// The configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Take over the sockets of the process that serves this file, once it receives QUIT.
        #[arg(long)]
        upgrade: bool,
        /// The least important level of the operator's log that is written. Without it RUST_LOG decides; the default is
        /// info.
        #[arg(long, value_enum, value_name = "LEVEL")]
        log_level: Option<LogLevel>,
        /// The form of the operator's log.
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
        log_format: LogFormatWord,
    },
    /// Validate configurations: print every error with its location and cure, or what they promise.
    Check {
        /// The configurations.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Show which route, limits and keys a request meets.
    Explain(ExplainArgs),
    /// Start a small origin, the proxy before it, and show the commands to try.
    Demo,
    /// Test a policy on a simulated clock.
    Test(test::TestArgs),
    /// Replay an access log against a policy (not available yet).
    Replay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _rest: Vec<String>,
    },
    /// Print the JSON Schema of the configuration, for editors.
    Schema,
}

/// A level of the operator's log.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::Error,
            Self::Warn => LevelFilter::Warn,
            Self::Info => LevelFilter::Info,
            Self::Debug => LevelFilter::Debug,
            Self::Trace => LevelFilter::Trace,
        }
    }
}

/// The form of the operator's log.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogFormatWord {
    #[default]
    Text,
    Json,
}

/// The JSON Schema (draft 7) of the configuration, with descriptions and defaults. A test compares
/// its keys with those that the configuration reader knows.
pub const SCHEMA: &str = include_str!("schema.json");

/// The exit status if a command line or a file is refused.
const REFUSED: u8 = 2;

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run { config, upgrade, log_level, log_format } => {
            let level = log_level.map(LogLevel::filter);
            let form = match log_format {
                LogFormatWord::Text => LogForm::Text,
                LogFormatWord::Json => LogForm::Json,
            };
            run::run(&config, upgrade, LogSettings { level, form })
        }
        Command::Check { files } => match check::check(&files, &mut std::io::stdout().lock()) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
        Command::Explain(args) => explain::explain(&args),
        Command::Demo => demo::demo(),
        Command::Test(args) => test::test(&args),
        Command::Replay { .. } => not_available("replay"),
        Command::Schema => {
            print!("{SCHEMA}");
            ExitCode::SUCCESS
        }
    }
}

fn not_available(command: &str) -> ExitCode {
    eprintln!("tollgate {command} is not available yet");
    ExitCode::from(REFUSED)
}
