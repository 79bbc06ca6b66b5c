//! Prometheus' data model: the used part of the messages of `io.prometheus.client` (metrics.proto). The text format is written
//! from the same values.

use std::fmt::Write as _;

use prost::{Enumeration, Message};

use tidegate_stats::{Distribution, SCHEMA};

/// All samples of one name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricFamily {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    pub(super) metric_type: i32,
    #[prost(message, repeated, tag = "4")]
    pub(super) samples: Vec<MetricSample>,
}

/// Metric type, with the numbers of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(super) enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

impl MetricType {
    const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// A value with its labels; exactly one value is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricSample {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<MetricValue>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<MetricValue>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<HistogramValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricValue {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
}

/// A histogram, native and classic at the same time: scrapers use the form that they support.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramValue {
    #[prost(uint64, tag = "1")]
    pub(super) count: u64,
    #[prost(double, tag = "2")]
    pub(super) sum: f64,
    /// The classic buckets.
    #[prost(message, repeated, tag = "3")]
    pub(super) buckets: Vec<HistogramBucket>,
    #[prost(sint32, tag = "5")]
    pub(super) schema: i32,
    #[prost(double, tag = "6")]
    pub(super) zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub(super) zero_count: u64,
    /// Ranges of the native buckets that follow.
    #[prost(message, repeated, tag = "12")]
    pub(super) spans: Vec<BucketSpan>,
    /// Count of each bucket minus the count of the previous one.
    #[prost(sint64, repeated, tag = "13")]
    pub(super) deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramBucket {
    /// Count of this bucket and of all lower ones.
    #[prost(uint64, tag = "1")]
    pub(super) count: u64,
    #[prost(double, tag = "2")]
    pub(super) upper_bound: f64,
}

/// A range of consecutive buckets.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BucketSpan {
    /// Number of the first bucket; from the second span on, the number of buckets left out.
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    #[prost(uint32, tag = "2")]
    pub(super) length: u32,
}

/// Upper bounds of the classic buckets, as powers of two of seconds: 15 µs, 61 µs, … 64 s.
const CLASSIC: std::ops::RangeInclusive<i32> = -16..=6;
/// Every second power is used.
const CLASSIC_STEP: usize = 2;

impl From<&Distribution> for HistogramValue {
    fn from(distribution: &Distribution) -> Self {
        let bucket = |exponent: i32| HistogramBucket {
            count: distribution.at_most(exponent),
            upper_bound: f64::from(exponent).exp2(),
        };
        let mut spans = Vec::new();
        let mut deltas = Vec::new();
        let (mut next, mut before) = (0, 0);
        for (number, count) in distribution.buckets() {
            match spans.last_mut() {
                Some(BucketSpan { length, .. }) if number == next => *length += 1,
                _ => spans.push(BucketSpan { offset: number - next, length: 1 }),
            }
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            deltas.push(count - before);
            (next, before) = (number + 1, count);
        }
        Self {
            count: distribution.count(),
            sum: distribution.sum_us as f64 * 1e-6,
            buckets: CLASSIC.step_by(CLASSIC_STEP).map(bucket).collect(),
            schema: SCHEMA,
            zero_threshold: Distribution::zero_threshold(),
            zero_count: distribution.zero,
            spans,
            deltas,
        }
    }
}

impl MetricSample {
    /// A number of this type.
    pub(super) fn number(metric_type: MetricType, labels: &[(&str, &str)], value: f64) -> Self {
        let number = Some(MetricValue { value });
        let labels = Label::all(labels);
        match metric_type {
            MetricType::Counter => Self { labels, counter: number, ..Self::default() },
            MetricType::Gauge | MetricType::Histogram => Self { labels, gauge: number, ..Self::default() },
        }
    }

    /// A distribution of durations.
    pub(super) fn histogram(labels: &[(&str, &str)], distribution: &Distribution) -> Self {
        Self { labels: Label::all(labels), histogram: Some(distribution.into()), ..Self::default() }
    }
}

impl Label {
    fn all(pairs: &[(&str, &str)]) -> Vec<Self> {
        pairs.iter().map(|(name, value)| Self { name: (*name).into(), value: (*value).into() }).collect()
    }
}

impl MetricFamily {
    /// Appends the family in the text format.
    pub(super) fn write_text(&self, text: &mut String) {
        let Self { name, help, .. } = self;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", self.metric_type().word());
        for sample in &self.samples {
            for number in sample.gauge.iter().chain(&sample.counter) {
                write_line(text, name, &sample.labels, None, number.value);
            }
            if let Some(histogram) = &sample.histogram {
                histogram.write_text(text, name, &sample.labels);
            }
        }
    }
}

impl HistogramValue {
    /// The text format has no native buckets.
    fn write_text(&self, text: &mut String, name: &str, labels: &[Label]) {
        let line = format!("{name}_bucket");
        for bucket in &self.buckets {
            write_line(text, &line, labels, Some(&bucket.upper_bound.to_string()), bucket.count as f64);
        }
        write_line(text, &line, labels, Some("+Inf"), self.count as f64);
        write_line(text, &format!("{name}_sum"), labels, None, self.sum);
        write_line(text, &format!("{name}_count"), labels, None, self.count as f64);
    }
}

/// Appends a sample; `le` is the upper bound of a classic bucket.
fn write_line(text: &mut String, name: &str, labels: &[Label], le: Option<&str>, value: f64) {
    let labels = labels.iter().map(|label| (label.name.as_str(), label.value.as_str()));
    let labels: Vec<_> = labels
        .chain(le.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(text, "{name}{labels} {value}");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tidegate_stats as stats;

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        write_line(&mut text, "x", &Label::all(&[("a", "q\"\\\n")]), None, 1.5);
        assert_eq!(text, "x{a=\"q\\\"\\\\\\n\"} 1.5\n");
    }

    #[test]
    fn spans_and_deltas_restore_the_buckets() {
        let histogram = stats::Histogram::default();
        let times = [1_000, 1_000, 1_100, 40_000, 2_000_000, 2_000_000, 2_000_000, 3_000_000_000];
        times.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        let distribution = histogram.distribution(0);
        let native = HistogramValue::from(&distribution);
        let (mut buckets, mut deltas, mut number, mut count) = (Vec::new(), native.deltas.iter(), 0, 0);
        for span in &native.spans {
            number += span.offset;
            for delta in deltas.by_ref().take(span.length as usize) {
                count += delta;
                buckets.push((number, count as u64));
                number += 1;
            }
        }
        assert!(deltas.next().is_none() && native.spans.len() < native.deltas.len(), "{native:?}");
        assert_eq!(buckets, distribution.buckets().collect::<Vec<_>>());
        assert_eq!(native.count, times.len() as u64);
        let classic: Vec<_> = native.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(classic, [3, 4, 4, 4, 7, 7, 7, 7, 7, 8, 8, 8]);
    }
}
