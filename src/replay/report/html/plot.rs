//! Plots as inline SVG: bars over time, and the curve of a suggestion.
//!
//! A plot is stretched to the width of the page, so it holds no text; its labels are beneath it. Each bar and each point
//! has its numbers as a title, which browsers show and screen readers read.

use super::markup::escaped;
use crate::clock::Nanos;
use crate::replay::report::format::{grouped, percent, short_time, span, time};
use crate::replay::report::{Share, SuggestedRate};
use crate::replay::tally::Summary;

/// Height of a plot in its own units.
const HEIGHT: u64 = 1_000;
/// Width of a curve.
const WIDTH: u64 = 1_000;

/// What the bars of a plot show.
pub(super) struct Bars<'b> {
    /// The identifier of the plot on the page.
    pub(super) id: &'b str,
    /// Title of the plot.
    pub(super) title: &'b str,
    /// The class of its colour.
    pub(super) class: &'b str,
    /// The number of each bucket.
    pub(super) numbers: &'b [u64],
}

/// Writes bars over time. Nothing if all numbers are zero or there is one bucket.
pub(super) fn bars(out: &mut String, summary: &Summary, bars: &Bars<'_>) {
    let max = bars.numbers.iter().copied().max().unwrap_or(0);
    if max == 0 || bars.numbers.len() < 2 {
        return;
    }
    let (from, width) = (summary.over_time_from, summary.bucket_width);
    let begin = |index: u64| from.saturating_add(width.saturating_mul(index));
    let end = begin(bars.numbers.len() as u64);
    let caption = format!("{}: up to {} in {}", bars.title, grouped(max), span(width));
    let about = format!("{caption}, from {} to {}", time(from), time(end));
    begin_plot(out, bars.id, "bars", (bars.numbers.len() as u64, HEIGHT), (&caption, &about));
    for (index, number) in (0..).zip(bars.numbers).filter(|(_, number)| **number > 0) {
        let height = scaled(*number, max, HEIGHT).max(10);
        let (class, top) = (bars.class, HEIGHT - height);
        let title = format!("{}: {}", time(begin(index)), grouped(*number));
        out.push_str(&format!(
            "<g><title>{title}</title><rect class=\"bar\" x=\"{index}\" y=\"0\" width=\"1\" height=\"{HEIGHT}\"/>\
             <rect class=\"{class}\" x=\"{index}\" y=\"{top}\" width=\".92\" height=\"{height}\"/></g>\n"
        ));
    }
    let shown = Some((from, end));
    end_plot(out, &short_time(from, shown), &middle(from, end), &short_time(end, shown));
}

fn middle(from: Nanos, end: Nanos) -> String {
    let middle = Nanos::new(from.get() / 2 + end.get() / 2);
    short_time(middle, Some((from, end)))
}

/// Writes the share of keys that each rate refuses. Both axes are logarithmic, because the shares that matter are small.
/// Nothing for fewer than two points.
pub(super) fn curve(out: &mut String, id: &str, suggestion: &SuggestedRate) {
    let curve = &suggestion.curve;
    let ([(lowest, largest), .., (highest, smallest)], Some(y_axis)) =
        (&**curve, ShareAxis::of(curve))
    else {
        return;
    };
    let x_axis = LogAxis::new(*lowest as f64, *highest as f64, WIDTH);
    let dashed = suggestion.on_curve().map(|units| format!("; dashed: {}", grouped(units)));
    let dashed = dashed.unwrap_or_default();
    let caption = format!(
        "keys with a higher peak: {} at {}, {} at {} units{dashed}; logarithmic axes",
        percent(*largest),
        grouped(*lowest),
        percent(*smallest),
        grouped(*highest)
    );
    begin_plot(out, id, "curve", (WIDTH, HEIGHT), (&caption, &suggestion.sentence));
    let points: Vec<(u64, u64)> = curve
        .iter()
        .map(|(rate, share)| (x_axis.position(*rate as f64), HEIGHT - y_axis.height(*share)))
        .collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x} {y}")).collect();
    let path = path.join(" L ");
    out.push_str(&format!(
        "<path class=\"line\" vector-effect=\"non-scaling-stroke\" d=\"M {path}\"/>\n"
    ));
    if let Some(x) = suggestion.on_curve().map(|units| x_axis.position(units as f64)) {
        out.push_str(&format!(
            "<path class=\"mark\" vector-effect=\"non-scaling-stroke\" d=\"M {x} 0 L {x} {HEIGHT}\"/>\n"
        ));
    }
    for ((rate, share), (x, _)) in curve.iter().zip(&points) {
        let title = format!("{} units: {} of keys", grouped(*rate), percent(*share));
        let x = x.saturating_sub(8);
        out.push_str(&format!(
            "<rect class=\"point\" x=\"{x}\" y=\"0\" width=\"16\" height=\"{HEIGHT}\"><title>{title}</title></rect>\n"
        ));
    }
    end_plot(out, &grouped(*lowest), suggestion.measure.text(), &grouped(*highest));
}

/// A logarithmic axis.
struct LogAxis {
    from: f64,
    length: f64,
    size: f64,
}

impl LogAxis {
    fn new(lowest: f64, highest: f64, size: u64) -> Self {
        let from = lowest.max(f64::MIN_POSITIVE).ln();
        Self { from, length: highest.max(f64::MIN_POSITIVE).ln() - from, size: size as f64 }
    }

    /// Where a number is: 0 for the lowest and below, the size for the highest and above.
    fn position(&self, number: f64) -> u64 {
        let offset = number.max(f64::MIN_POSITIVE).ln() - self.from;
        let fraction = if self.length > 0.0 { offset / self.length } else { 0.0 };
        // A conversion from f64 saturates.
        (fraction.clamp(0.0, 1.0) * self.size).round() as u64
    }
}

/// The axis of shares: from half of the smallest share above zero, so that this is above zero as well.
struct ShareAxis(LogAxis);

impl ShareAxis {
    /// The axis of these shares; `None` if all are zero.
    fn of(curve: &[(u64, Share)]) -> Option<Self> {
        let shares =
            || curve.iter().map(|(_, share)| fraction(*share)).filter(|share| *share > 0.0);
        let (lowest, highest) = (shares().reduce(f64::min)?, shares().reduce(f64::max)?);
        Some(Self(LogAxis::new(lowest / 2.0, highest, HEIGHT)))
    }

    fn height(&self, share: Share) -> u64 {
        self.0.position(fraction(share))
    }
}

fn fraction(share: Share) -> f64 {
    share.number as f64 / share.total.max(1) as f64
}

fn scaled(number: u64, max: u64, height: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(height) / u128::from(max.max(1));
    u64::try_from(scaled).unwrap_or(height)
}

/// Begins a figure and its plot. Its texts are a caption for all, and a description for those who do not see it.
fn begin_plot(
    out: &mut String,
    id: &str,
    class: &str,
    (width, height): (u64, u64),
    (caption, about): (&str, &str),
) {
    let (caption, about) = (escaped(caption), escaped(about));
    out.push_str(&format!(
        "<figure>\n<figcaption>{caption}</figcaption>\n\
         <svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\">\n\
         <title id=\"{id}-title\">{caption}</title>\n<desc id=\"{id}-desc\">{about}</desc>\n"
    ));
}

/// Ends them, with labels beneath the plot.
fn end_plot(out: &mut String, left: &str, middle: &str, right: &str) {
    let [left, middle, right] = [left, middle, right].map(escaped);
    out.push_str(&format!(
        "</svg>\n<div class=\"axis\"><span>{left}</span><span>{middle}</span><span>{right}</span></div>\n</figure>\n"
    ));
}
