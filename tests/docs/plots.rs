//! The plots of the algorithms are what the engine does.
//!
//! The engine decides about the same requests under one limit after the other, on a clock that is turned by hand; the
//! times at which requests leave become a picture. The pictures depend on nothing but the engine: the same decisions
//! give the same bytes.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Engine, Generation, Outcome, PendingSettlement};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret};

use super::{compare_or_write, fleet_plot, pages};

/// What is drawn.
struct Subject {
    name: &'static str,
    title: &'static str,
    /// The limit's keys in the configuration, without `key`.
    limit: &'static str,
    lower: Lower,
}

/// What the lower half shows.
#[derive(Clone, Copy, PartialEq)]
enum Lower {
    /// What was admitted in the last [`WINDOW`].
    Admitted,
    /// Requests in flight, of which this number is allowed.
    InFlight(u32),
}

const SUBJECTS: [Subject; 7] = [
    Subject {
        name: "sliding-window",
        title: "sliding_window, rate: 10/10s",
        limit: "tier: exact, algorithm: sliding_window, rate: 10/10s",
        lower: Lower::Admitted,
    },
    Subject {
        name: "token-bucket",
        title: "token_bucket, rate: 10/10s, burst: 10",
        limit: "tier: exact, algorithm: token_bucket, rate: 10/10s",
        lower: Lower::Admitted,
    },
    Subject {
        name: "sliding-log",
        title: "sliding_log, rate: 10/10s",
        limit: "tier: exact, algorithm: sliding_log, rate: 10/10s",
        lower: Lower::Admitted,
    },
    Subject {
        name: "fixed-window",
        title: "fixed_window, rate: 10/10s",
        limit: "tier: exact, algorithm: fixed_window, rate: 10/10s",
        lower: Lower::Admitted,
    },
    Subject {
        name: "leaky-bucket",
        title: "leaky_bucket, rate: 10/10s, max_delay: 5s",
        limit: "tier: exact, algorithm: leaky_bucket, rate: 10/10s, max_delay: 5s",
        lower: Lower::Admitted,
    },
    Subject {
        name: "max-in-flight",
        title: "max_in_flight: 3, each request takes 2 s",
        limit: "tier: exact, max_in_flight: 3",
        lower: Lower::InFlight(3),
    },
    Subject {
        name: "estimate",
        title: "estimate, rate: 10/10s",
        limit: "tier: estimate, rate: 10/10s",
        lower: Lower::Admitted,
    },
];

/// The limit of all subjects but requests in flight.
const LIMIT: u32 = 10;
const WINDOW: u64 = 10_000;
const END: u64 = 60_000;

/// How long a request takes under `max_in_flight`.
const DURATION: u64 = 2_000;

/// A day's begin, so that windows begin with the picture.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

#[test]
fn every_plot_is_what_the_engine_draws() {
    let folder = pages::book().join("plots");
    let mut names = Vec::new();
    for subject in &SUBJECTS {
        let name = format!("{}.svg", subject.name);
        compare_or_write(&folder.join(&name), &draw(subject, &leaving_times(subject)));
        names.push(name);
    }
    compare_or_write(&folder.join(fleet_plot::NAME), &fleet_plot::draw());
    names.push(fleet_plot::NAME.to_owned());
    names.sort();
    let files = std::fs::read_dir(&folder).unwrap();
    let mut committed: Vec<String> =
        files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    committed.sort();
    assert_eq!(committed, names);
}

/// When requests are sent, in milliseconds: a burst across the edge of a window, twice the rate for
/// twenty seconds, a burst at once.
fn demand() -> Vec<u64> {
    let across_the_edge = (0..24).map(|i| 8_000 + i * 4_000 / 24);
    let steady = (0..40).map(|i| 20_000 + i * 500);
    let at_once = std::iter::repeat_n(46_000, 12);
    across_the_edge.chain(steady).chain(at_once).collect()
}

/// When admitted requests leave for the origin, in milliseconds.
fn leaving_times(subject: &Subject) -> Vec<u64> {
    let text = format!(
        "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ o: {{ servers: [127.0.0.1:1] }} }}\n\
         limits: {{ l: {{ {}, key: client_ip }} }}\nroutes: [{{ name: r, limits: [l] }}]\n",
        subject.limit
    );
    let loaded = config::read_text(&text, subject.name, Path::new("")).unwrap();
    let clock = Arc::new(ManualClock::new(EPOCH));
    let engine = Engine::new(Arc::clone(&clock) as Arc<dyn Clock>, KeySecret::new([1; 16]));
    let (generation, _) = engine.generation(loaded.config.policy, None);
    let mut in_flight: Vec<(u64, PendingSettlement)> = Vec::new();
    let (mut left, mut now) = (Vec::new(), 0);
    for at in demand() {
        while now < at {
            // The housekeeping that a process does every second.
            let next = at.min(now / 1_000 * 1_000 + 1_000);
            clock.advance(Nanos::from_millis(next - now));
            engine.tick(&generation);
            now = next;
        }
        in_flight.retain(|(until, _)| *until > now);
        if let Some((leaves, pending)) = decide(&engine, &generation, now) {
            left.push(leaves);
            in_flight.push((leaves + DURATION, pending));
        }
    }
    left.sort_unstable();
    left
}

/// When the request leaves, if it is admitted.
fn decide(engine: &Engine, generation: &Generation, now: u64) -> Option<(u64, PendingSettlement)> {
    let facts = Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false },
        now: engine.date(engine.now()),
        method: "GET",
        host: "example.com",
        path: "/",
        readings: &[],
        query: None,
        headers: &HeaderMap::new(),
        conditions: None,
    };
    let (decision, pending) = engine.decide_now(generation, &facts);
    let delay = decision.wait().get() / 1_000_000;
    (decision.outcome == Outcome::Allowed).then_some((now + delay, pending))
}

const WIDTH: u64 = 720;
const LEFT: u64 = 52;
const RIGHT: u64 = 16;
const UPPER_TOP: u64 = 54;
const UPPER_HEIGHT: u64 = 92;
const LOWER_TOP: u64 = 178;
const LOWER_HEIGHT: u64 = 92;
const HEIGHT: u64 = 312;

/// The ends of the two vertical axes.
const UPPER_MAX: u64 = 12;
const LOWER_MAX: u64 = 24;
const IN_FLIGHT_MAX: u64 = 6;

fn x(at: u64) -> u64 {
    LEFT + at * (WIDTH - LEFT - RIGHT) / END
}

fn draw(subject: &Subject, left: &[u64]) -> String {
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1f2933\">\n\
         <title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"600\">{}</text>",
        subject.title, subject.title
    );
    axes(&mut svg, subject);
    bars(&mut svg, left);
    line(&mut svg, subject, left);
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, subject: &Subject) {
    let (upper_bottom, lower_bottom) = (UPPER_TOP + UPPER_HEIGHT, LOWER_TOP + LOWER_HEIGHT);
    for second in (0..=END / 1_000).step_by(10) {
        let x = x(second * 1_000);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {UPPER_TOP}V{upper_bottom}M{x} {LOWER_TOP}V{lower_bottom}\" stroke=\"#e4e7eb\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{second} s</text>",
            lower_bottom + 18
        );
    }
    let lower = match subject.lower {
        Lower::Admitted => "admitted in the last 10 s",
        Lower::InFlight(_) => "requests in flight",
    };
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {upper_bottom}H{end}M{LEFT} {lower_bottom}H{end}\" stroke=\"#7b8794\"/>\n\
         <text x=\"{LEFT}\" y=\"{}\" fill=\"#52606d\">requests in each second: sent (grey), let through (blue)</text>\n\
         <text x=\"{LEFT}\" y=\"{}\" fill=\"#52606d\">{lower}; dashed: the limit</text>",
        UPPER_TOP - 8,
        LOWER_TOP - 8,
        end = WIDTH - RIGHT,
    );
    let lower_max = lower_max(subject);
    for (top, height, max) in
        [(UPPER_TOP, UPPER_HEIGHT, UPPER_MAX), (LOWER_TOP, LOWER_HEIGHT, lower_max)]
    {
        for value in [0, max / 2, max] {
            let y = top + height - value * height / max + 4;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{value}</text>",
                LEFT - 8
            );
        }
    }
}

const fn lower_max(subject: &Subject) -> u64 {
    match subject.lower {
        Lower::Admitted => LOWER_MAX,
        Lower::InFlight(_) => IN_FLIGHT_MAX,
    }
}

/// What is sent and what leaves, in each second.
fn bars(svg: &mut String, left: &[u64]) {
    for (times, colour, inset) in [(demand().as_slice(), "#cbd2d9", 1), (left, "#2563eb", 3)] {
        for second in 0..END / 1_000 {
            let count = times.iter().filter(|at| **at / 1_000 == second).count() as u64;
            if count == 0 {
                continue;
            }
            let (begin, end) = (x(second * 1_000) + inset, x(second * 1_000 + 1_000) - inset);
            let height = count * UPPER_HEIGHT / UPPER_MAX;
            let _ = writeln!(
                svg,
                "<rect x=\"{begin}\" y=\"{}\" width=\"{}\" height=\"{height}\" fill=\"{colour}\"/>",
                UPPER_TOP + UPPER_HEIGHT - height,
                end - begin
            );
        }
    }
}

/// The lower half, as steps.
fn line(svg: &mut String, subject: &Subject, left: &[u64]) {
    let (limit, span) = match subject.lower {
        Lower::Admitted => (LIMIT, WINDOW),
        Lower::InFlight(limit) => (limit, DURATION),
    };
    let max = lower_max(subject);
    let y = |value: u64| LOWER_TOP + LOWER_HEIGHT - value.min(max) * LOWER_HEIGHT / max;
    let mut path = format!("M{LEFT} {}", y(0));
    let mut times: Vec<u64> = left.iter().flat_map(|at| [*at, at + span]).collect();
    times.sort_unstable();
    times.dedup();
    for at in times.into_iter().filter(|at| *at <= END) {
        // A request counts from when it leaves until the span is over.
        let count = left.iter().filter(|other| **other <= at && at < **other + span).count() as u64;
        let _ = write!(path, "H{}V{}", x(at), y(count));
    }
    let _ = write!(path, "H{}", x(END));
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {y}H{}\" stroke=\"#52606d\" stroke-dasharray=\"5 4\"/>\n\
         <path d=\"{path}\" stroke=\"#c2410c\" stroke-width=\"2\" fill=\"none\"/>",
        WIDTH - RIGHT,
        y = y(limit.into()),
    );
}
