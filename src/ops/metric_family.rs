//! Builds samples in the types of the Prometheus crate. It does not know the names of metrics.

use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};

use crate::histogram::Histogram;

/// A family of samples under one name.
pub(super) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    samples: Vec<Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(samples);
    family
}

/// A sample of a counter.
pub(super) fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = proto::Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

/// A sample of a gauge.
pub(super) fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = proto::Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_gauge(gauge);
    metric
}

/// A histogram of durations, kept in nanoseconds and exposed in seconds.
pub(super) fn histogram<const N: usize>(labels: &[(&str, &str)], spans: &Histogram<N>) -> Metric {
    histogram_in_units(labels, spans, 1e9)
}

/// A histogram whose values are divided by `unit` when they are exposed.
pub(super) fn histogram_in_units<const N: usize>(
    labels: &[(&str, &str)],
    values: &Histogram<N>,
    unit: f64,
) -> Metric {
    let totals = values.totals();
    let buckets = values.cumulative().map(|cumulative| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(cumulative.upper_bound as f64 / unit);
        bucket.set_cumulative_count(cumulative.count);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(totals.count);
    histogram.set_sample_sum(totals.sum as f64 / unit);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_histogram(histogram);
    metric
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}
