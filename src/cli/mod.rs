//! The command line: one file or folder for each command.
//!
//! A command reads its arguments, calls the other rooms, and prints through `output`. What must always hold: every command
//! ends with one of the statuses of `output::Ending`, and writing never panics.

mod admin_client;
mod check;
mod completions;
mod ctl;
mod demo;
mod explain;
mod input;
mod key_sets;
mod man;
mod output;
mod replay;
mod run;
mod schema;
mod state;
mod table;
pub mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use log::LevelFilter;

pub use check::CheckArgs;
pub use explain::ExplainArgs;
pub use schema::SCHEMA;

use crate::ops::{LogForm, LogSettings};
use crate::server::RunOptions;
use output::Ending;

/// An edge rate limiter: approximate limits that cost little, and exact limits.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_long_help = EXIT_STATUS)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What stands at the end of the help and of the man page.
const EXIT_STATUS: &str = "\
Exit status:
  0  the command did what it was asked to do
  1  the answer is no: a configuration is not valid, a case fails, the server cannot start here, a state is damaged
  2  the command line, or a file that the command needs, is refused
  3  the answer cannot be written, to a full device or a pipe that nobody reads

Documentation: https://github.com/tollgate-proxy/tollgate";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve. HUP reloads, TERM drains and exits, INT exits, QUIT hands over to a successor.
    Run {
        /// The configuration; - is standard input, which a reload cannot read again.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Take over the sockets of the process that serves this file, once it receives QUIT.
        #[arg(long)]
        upgrade: bool,
        /// Reload when the configuration, or a file that it includes, changes.
        #[arg(long)]
        watch: bool,
        /// Begin without what the state directory holds; its files are kept in a folder inside it.
        #[arg(long)]
        ignore_state: bool,
        /// The least important level of the operator's log that is written. Without it RUST_LOG decides; the default is
        /// info.
        #[arg(long, value_enum, value_name = "LEVEL")]
        log_level: Option<LogLevel>,
        /// The form of the operator's log.
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
        log_format: LogFormatWord,
    },
    /// Validate configurations: print every error with its location and cure, or what they promise.
    Check(check::CheckArgs),
    /// Show which route, limits and keys a request meets.
    Explain(ExplainArgs),
    /// See and steer a running process.
    Ctl(ctl::CtlArgs),
    /// Show what a state directory holds. It changes nothing there, also while a process uses it.
    State(state::StateArgs),
    /// Start a small origin, the proxy before it, and show the commands to try.
    Demo,
    /// Test a policy on a simulated clock.
    Test(test::TestArgs),
    /// Say what a policy would have done to an access log.
    Replay(replay::ReplayArgs),
    /// Print the JSON Schema of the configuration, for editors.
    Schema {
        /// That of a file that a configuration includes.
        #[arg(long)]
        included: bool,
    },
    /// Print a script that completes command lines of tollgate in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the man pages into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
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

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    let ending = match Cli::try_parse() {
        Ok(cli) => run_command(cli.command),
        Err(error) => output::usage(&error),
    };
    ending.into()
}

fn run_command(command: Command) -> Ending {
    match command {
        Command::Run { config, upgrade, watch, ignore_state, log_level, log_format } => {
            let level = log_level.map(LogLevel::filter);
            let form = match log_format {
                LogFormatWord::Text => LogForm::Text,
                LogFormatWord::Json => LogForm::Json,
            };
            let options = RunOptions { upgrade, ignore_state };
            run::run(&config, options, watch, LogSettings { level, form })
        }
        Command::Check(args) => check::check(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Ctl(args) => ctl::ctl(&args),
        Command::State(args) => state::state(&args),
        Command::Demo => demo::demo(),
        Command::Test(args) => test::test(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Schema { included: false } => output::answer(SCHEMA, Ending::Success),
        Command::Schema { included: true } => {
            output::answer(&schema::of_included_files(), Ending::Success)
        }
        Command::Completions { shell } => completions::completions(shell),
        Command::Man { directory } => man::man(&directory),
    }
}
