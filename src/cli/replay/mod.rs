//! `tollgate replay`: what a policy would have done to an access log.

mod progress;

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

use super::input::{self, ConfigInput};
use super::output::{self, Ending};
use crate::access_lines::{Format, Zone};
use crate::clock::Nanos;
use crate::config::Config;
use crate::replay::{
    KeyShare, Log, LogError, MAX_LOGS, PAGE_MARK, ReadSettings, ReplayOptions, Report, SourceIndex,
    replay, unread_headers,
};
use progress::ProgressLine;

/// Bytes of a page in which its mark stands.
const PAGE_HEAD: u64 = 1_024;

/// Logs, and the policy that judges them.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The configuration whose policy judges the requests.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Another configuration: which requests and keys would its policy decide differently?
    #[arg(long, value_name = "OTHER")]
    compare: Option<PathBuf>,
    /// The format of the logs: auto, json, combined, common, tollgate, caddy, traefik, envoy, haproxy, alb, cloudfront,
    /// 'nginx: LOG_FORMAT' or 'apache: LOG_FORMAT'.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    format: String,
    /// Where a field stands in a JSON line, as client_ip=request.remote_ip; may be given several times.
    #[arg(long = "field", value_name = "NAME=PATH")]
    fields: Vec<String>,
    /// Suggest for each limit the smallest rate that refuses at most this share of the keys, as 0.1%.
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    suggest: Option<KeyShare>,
    /// How many of the keys that are refused most are listed for each limit.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    top: u16,
    /// Leave out requests before this time, as 2026-11-24T08:00:00Z, 2026-11-24T09:00:00+01:00, or without a zone.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Leave out requests from this time on.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The zone of times that name none, in logs and in --from and --to: UTC, +02:00 or a name as Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC", allow_hyphen_values = true)]
    timezone: String,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Write the report into this file too, as a page that needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show keys as they are, and paths that contain keys. Without it, all keys but addresses are shown as hashes.
    #[arg(long)]
    show_keys: bool,
    /// Access logs, also compressed with gzip or zstd; - is standard input.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
}

/// Succeeds if a request could be judged.
pub(super) fn run(args: &ReplayArgs) -> Ending {
    let prepared = prepare(args);
    let (options, logs) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            output::complain(&why);
            return Ending::Refused;
        }
    };
    let mut progress = ProgressLine::new();
    let report = replay(options, logs, |lines| progress.show(lines));
    finish(args, &report)
}

fn prepare(args: &ReplayArgs) -> Result<(ReplayOptions, Vec<Log>), String> {
    let refused = |why: String| format!("tollgate replay: {why}");
    let all = std::iter::once(&args.config).chain(&args.compare).chain(&args.logs);
    let files: Vec<&Path> = all.map(PathBuf::as_path).collect();
    input::check_read_once(&files).map_err(refused)?;
    check_named_once(&args.logs).map_err(refused)?;
    if let Some(page) = &args.html {
        check_page(page).map_err(refused)?;
    }
    if args.logs.len() > MAX_LOGS {
        return Err(refused(format!("more than {MAX_LOGS} logs; replay them in several runs")));
    }
    let mut settings = settings(args).map_err(refused)?;
    let policy = load(&args.config)?;
    let other = args.compare.as_deref().map(load).transpose()?;
    let policies = std::iter::once(&policy).chain(&other).map(|(_, config)| &config.policy);
    settings.unread = unread_headers(&policies.collect::<Vec<_>>());
    let (logs, unread) = open(&args.logs, &settings).map_err(|error| refused(error.to_string()))?;
    let options = ReplayOptions {
        policy,
        other,
        suggest: args.suggest,
        top: usize::from(args.top),
        show_keys: args.show_keys,
        notes: unread,
    };
    Ok((options, logs))
}

fn load(file: &Path) -> Result<(String, Config), String> {
    let loaded = ConfigInput::open(file).and_then(|input| input.load());
    let loaded = loaded.map_err(|errors| errors.to_string())?;
    Ok((input::name(file), loaded.config))
}

/// The logs, and what a report tells of those that no format reads: one of many, such as a file with nothing but a header, keeps the
/// others from nothing.
fn open(files: &[PathBuf], settings: &ReadSettings) -> Result<(Vec<Log>, Vec<String>), LogError> {
    let (mut logs, mut unread) = (Vec::new(), Vec::new());
    for file in files {
        let source = SourceIndex(u32::try_from(logs.len()).unwrap_or(u32::MAX));
        match Log::open(file, source, settings) {
            Ok(log) => logs.extend(log),
            Err(error @ LogError::UnknownFormat { .. }) => unread.push(error),
            Err(error) => return Err(error),
        }
    }
    if logs.is_empty()
        && let Some(error) = unread.pop()
    {
        return Err(error);
    }
    Ok((logs, unread.iter().map(|error| format!("left out: {error}")).collect()))
}

/// The error if a log is named twice: its requests would count twice.
fn check_named_once(logs: &[PathBuf]) -> Result<(), String> {
    let mut seen = std::collections::HashSet::new();
    for log in logs {
        let file = std::fs::canonicalize(log).unwrap_or_else(|_| log.clone());
        if !seen.insert(file) {
            return Err(format!(
                "{} is named twice; its requests would count twice",
                log.display()
            ));
        }
    }
    Ok(())
}

fn settings(args: &ReplayArgs) -> Result<ReadSettings, String> {
    let format = match args.format.as_str() {
        "auto" => None,
        text => Some(Format::parse(text).map_err(|error| error.to_string())?),
    };
    let zone = Zone::parse(&args.timezone).map_err(|error| error.to_string())?;
    let instant = |name: &str, text: &Option<String>| {
        let found = text.as_deref().map(|text| time(text, &zone));
        found.transpose().map_err(|why| format!("{name}: {why}"))
    };
    let (from, to) = (instant("--from", &args.from)?, instant("--to", &args.to)?);
    if let (Some(from), Some(to)) = (from, to)
        && from >= to
    {
        return Err("--from is not before --to, so no request is between them".to_owned());
    }
    let fields = args.fields.clone();
    Ok(ReadSettings { format, fields, zone, from, to, ..ReadSettings::default() })
}

/// Prints the report, and writes the page.
fn finish(args: &ReplayArgs, report: &Report) -> Ending {
    let ending = if report.is_empty() { Ending::Negative } else { Ending::Success };
    let text = if args.json { report.json() } else { report.text() };
    let printed = output::answer(&text, ending);
    match &args.html {
        Some(file) => match replace_file(file, &report.html()) {
            Ok(()) => printed,
            Err(error) => output::unwritten(&file.display().to_string(), &error),
        },
        None => printed,
    }
}

/// Writes a file so that nobody ever sees a part of it. What is no plain file, such as a pipe, is written as it is.
fn replace_file(file: &Path, text: &str) -> io::Result<()> {
    if file.symlink_metadata().is_ok_and(|known| !known.is_file()) {
        return std::fs::write(file, text);
    }
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = file.with_file_name(name);
    // Neither a file nor a link that somebody else has put there is written to.
    let mut page = std::fs::File::create_new(&new)?;
    let written = page.write_all(text.as_bytes());
    // A page that only some may read stays so.
    let permissions = std::fs::metadata(file).map(|known| known.permissions());
    let written =
        written.and_then(|()| permissions.map_or(Ok(()), |mode| page.set_permissions(mode)));
    let written = written.and_then(|()| std::fs::rename(&new, file));
    written.inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// The error if the page cannot be written to this file, or would replace what is no such page: a log, a policy, a key.
fn check_page(page: &Path) -> Result<(), String> {
    if page.as_os_str() == "-" {
        return Err(
            "--html needs a file: standard output has the report as text or JSON".to_owned()
        );
    }
    let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(format!("--html {}: {} is no directory", page.display(), folder.display()));
    }
    // What is no plain file, such as a pipe, is written to and keeps nothing.
    let is_plain = std::fs::metadata(page).is_ok_and(|known| known.is_file() && known.len() > 0);
    if is_plain && !is_page(page) {
        return Err(format!(
            "--html {} would replace a file that is no page of a replay; name another file",
            page.display()
        ));
    }
    Ok(())
}

/// Whether a file is a page that was written before.
fn is_page(file: &Path) -> bool {
    let mut head = Vec::new();
    let read =
        std::fs::File::open(file).and_then(|open| open.take(PAGE_HEAD).read_to_end(&mut head));
    read.is_ok() && String::from_utf8_lossy(&head).contains(PAGE_MARK)
}

fn share(text: &str) -> Result<KeyShare, String> {
    let cure = "expected a share as 0.1%";
    let number = text.strip_suffix('%').ok_or(cure)?.trim();
    let (units, decimals) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if units.is_empty() || decimals.len() > 4 || !is_number(units) || !is_number(decimals) {
        return Err(format!("{cure}, with at most four decimals"));
    }
    let padded = format!("{units}{decimals:0<4}");
    let millionths = padded.parse::<u32>().map_err(|_| cure)?;
    if millionths > 1_000_000 {
        return Err("a share is at most 100%".to_owned());
    }
    Ok(KeyShare::from_millionths(millionths))
}

/// A time with a zone, or in the zone of the logs.
fn time(text: &str, zone: &Zone) -> Result<Nanos, String> {
    let with_zone = text.parse::<jiff::Timestamp>().ok();
    let with_zone = with_zone.and_then(|at| u64::try_from(at.as_nanosecond()).ok()).map(Nanos::new);
    with_zone.or_else(|| zone.instant(text)).ok_or_else(|| {
        "expected a time since 1970 as 2026-11-24T08:00:00Z, 2026-11-24T09:00:00+01:00, or without a zone, which is \
         in --timezone then"
            .to_owned()
    })
}
