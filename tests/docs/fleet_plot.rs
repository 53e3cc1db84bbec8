//! The plot of what several nodes admit together is drawn from the table of its page.

use std::fmt::Write as _;

use super::pages;

pub(super) const NAME: &str = "fleet.svg";

const WIDTH: u64 = 720;
const HEIGHT: u64 = 312;
const LEFT: u64 = 60;
const RIGHT: u64 = 140;
const TOP: u64 = 54;
const BOTTOM: u64 = 48;

/// The ends of the axes: nodes, and percent of the limit.
const MOST_NODES: u64 = 20;
const MOST_PERCENT: u64 = 1_100;

/// A way to count: what the table calls it, what the plot calls it, its colour.
const WAYS: [(&str, &str, &str); 2] = [
    ("| each node its own | | |", "scope: node", "#c2410c"),
    ("| fleet | 10 % | 1s |", "scope: fleet", "#2563eb"),
];

pub(super) fn draw() -> String {
    let title = "Admitted in the worst window, in percent of the limit, by nodes";
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1f2933\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"600\">{title}</text>\n"
    );
    axes(&mut svg);
    // It admits the limit exactly, over any number of nodes: `stores/nodes.rs` counts to the unit.
    way(&mut svg, "exact over Redis", "#15803d", &[(1, 100.0), (MOST_NODES, 100.0)], 14);
    let page = std::fs::read_to_string(pages::book().join("concepts/fleet.md")).unwrap();
    for (row, name, colour) in WAYS {
        let points = points(&page, row);
        assert!(points.len() >= 4, "{name}: {points:?}");
        way(&mut svg, name, colour, &points, 0);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Nodes, and percent of the limit, of the rows of a way. All ways admit what a single node admits.
fn points(page: &str, way: &str) -> Vec<(u64, f64)> {
    let rows = page.lines().filter_map(|line| {
        let (nodes, rest) = line.strip_prefix("| ")?.split_once(' ')?;
        let above = rest.strip_prefix(way)?.split('%').next()?;
        Some((nodes.parse().unwrap(), 100.0 + above.trim().parse::<f64>().unwrap()))
    });
    std::iter::once((1, 100.0)).chain(rows).collect()
}

fn x(nodes: u64) -> u64 {
    LEFT + nodes * (WIDTH - LEFT - RIGHT) / MOST_NODES
}

fn y(percent: f64) -> u64 {
    let height = (HEIGHT - TOP - BOTTOM) as f64;
    HEIGHT - BOTTOM - (percent / MOST_PERCENT as f64 * height).round() as u64
}

fn axes(svg: &mut String) {
    for percent in (0..MOST_PERCENT).step_by(200) {
        let y = y(percent as f64);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y}H{}\" stroke=\"#e4e7eb\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{percent} %</text>",
            x(MOST_NODES),
            LEFT - 8,
            y + 4
        );
    }
    for nodes in [1, 2, 5, 10, 20] {
        let (x, y) = (x(nodes), HEIGHT - BOTTOM + 18);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{nodes}</text>");
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {y}H{end}\" stroke=\"#7b8794\"/>\n\
         <text x=\"{LEFT}\" y=\"{}\" fill=\"#52606d\">nodes; an abuser sends ten times the limit, evenly over them</text>",
        HEIGHT - 10,
        y = HEIGHT - BOTTOM,
        end = x(MOST_NODES),
    );
}

/// A line, its points, and its name at the end, so many units lower.
fn way(svg: &mut String, name: &str, colour: &str, points: &[(u64, f64)], lower: u64) {
    let mut path = String::new();
    for (at, (nodes, percent)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if at == 0 { "M" } else { "L" }, x(*nodes), y(*percent));
    }
    let _ =
        writeln!(svg, "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>");
    for (nodes, percent) in points {
        let (x, y) = (x(*nodes), y(*percent));
        let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let (nodes, percent) = points[points.len() - 1];
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
        x(nodes) + 8,
        y(percent) + 4 + lower
    );
}
