//! Metrics as Prometheus' data model has them: the messages of `io.prometheus.client` (metrics.proto), as far as they are
//! used here. The text format is written from the same values.

use std::fmt::Write as _;

use prost::{Enumeration, Message};

use tidegate_proxy::stats::{Distribution, SCHEMA};

/// All samples of one name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Family {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) help: String,
    #[prost(enumeration = "Kind", tag = "3")]
    pub(super) kind: i32,
    #[prost(message, repeated, tag = "4")]
    pub(super) samples: Vec<Sample>,
}

/// What a number means; the numbers are the format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(super) enum Kind {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

impl Kind {
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

/// A value with its labels; one of the three.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Number {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
}

/// A histogram, native and classic at once: who scrapes takes what it knows.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(uint64, tag = "1")]
    pub(super) count: u64,
    #[prost(double, tag = "2")]
    pub(super) sum: f64,
    /// The classic buckets.
    #[prost(message, repeated, tag = "3")]
    pub(super) buckets: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    pub(super) schema: i32,
    #[prost(double, tag = "6")]
    pub(super) zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub(super) zero_count: u64,
    /// Which of the native buckets follow.
    #[prost(message, repeated, tag = "12")]
    pub(super) spans: Vec<Span>,
    /// What each holds, less what the one before it holds.
    #[prost(sint64, repeated, tag = "13")]
    pub(super) deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Bucket {
    /// In this bucket and those below it.
    #[prost(uint64, tag = "1")]
    pub(super) count: u64,
    #[prost(double, tag = "2")]
    pub(super) upper_bound: f64,
}

/// A run of buckets without a gap.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    /// The number of the first; from the second span on, how many buckets were left out before it.
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    #[prost(uint32, tag = "2")]
    pub(super) length: u32,
}

/// Where the classic buckets end, as powers of two of seconds: 15 µs, 61 µs and so on to 64 s.
const CLASSIC: std::ops::RangeInclusive<i32> = -16..=6;
/// Of the powers, every second one.
const CLASSIC_STEP: usize = 2;

impl From<&Distribution> for Histogram {
    fn from(counted: &Distribution) -> Self {
        let bucket =
            |exponent: i32| Bucket { count: counted.at_most(exponent), upper_bound: f64::from(exponent).exp2() };
        let mut spans = Vec::new();
        let mut deltas = Vec::new();
        let (mut next, mut before) = (0, 0);
        for (number, count) in counted.buckets() {
            match spans.last_mut() {
                Some(Span { length, .. }) if number == next => *length += 1,
                _ => spans.push(Span { offset: number - next, length: 1 }),
            }
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            deltas.push(count - before);
            (next, before) = (number + 1, count);
        }
        Self {
            count: counted.count(),
            sum: counted.sum_us as f64 * 1e-6,
            buckets: CLASSIC.step_by(CLASSIC_STEP).map(bucket).collect(),
            schema: SCHEMA,
            zero_threshold: Distribution::zero_threshold(),
            zero_count: counted.zero,
            spans,
            deltas,
        }
    }
}

impl Sample {
    /// A number of this kind.
    pub(super) fn number(kind: Kind, labels: &[(&str, &str)], value: f64) -> Self {
        let number = Some(Number { value });
        let labels = Label::all(labels);
        match kind {
            Kind::Counter => Self { labels, counter: number, ..Self::default() },
            Kind::Gauge | Kind::Histogram => Self { labels, gauge: number, ..Self::default() },
        }
    }

    /// A distribution of times.
    pub(super) fn histogram(labels: &[(&str, &str)], counted: &Distribution) -> Self {
        Self { labels: Label::all(labels), histogram: Some(counted.into()), ..Self::default() }
    }
}

impl Label {
    fn all(pairs: &[(&str, &str)]) -> Vec<Self> {
        pairs.iter().map(|(name, value)| Self { name: (*name).into(), value: (*value).into() }).collect()
    }
}

impl Family {
    /// Writes it in the text format.
    pub(super) fn write_text(&self, text: &mut String) {
        let Self { name, help, .. } = self;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", self.kind().word());
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

impl Histogram {
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

/// Writes a sample; `le` is what a classic bucket ends with.
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
    use tidegate_proxy::stats;

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        write_line(&mut text, "x", &Label::all(&[("a", "q\"\\\n")]), None, 1.5);
        assert_eq!(text, "x{a=\"q\\\"\\\\\\n\"} 1.5\n");
    }

    #[test]
    fn spans_and_deltas_give_the_buckets_back() {
        let histogram = stats::Histogram::default();
        let times = [1_000, 1_000, 1_100, 40_000, 2_000_000, 2_000_000, 2_000_000, 3_000_000_000];
        times.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        let counted = histogram.distribution(0);
        let native = Histogram::from(&counted);
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
        assert_eq!(buckets, counted.buckets().collect::<Vec<_>>());
        assert_eq!(native.count, times.len() as u64);
        let classic: Vec<_> = native.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(classic, [3, 4, 4, 4, 7, 7, 7, 7, 7, 8, 8, 8]);
    }
}
