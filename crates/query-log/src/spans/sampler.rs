//! Chooses the queries that become spans. The choice is made at the end of a query, so it can depend on its result.

use std::time::Duration;

use tidegate_config::TracesConfig;
use tidegate_sql::trace_parent::TraceParent;

use super::SpanRecord;

/// Settings of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSampler {
    /// Share of traces without a parent, as one in this many; 0 for none.
    one_in: u64,
    errors: bool,
    /// Zero for no limit.
    slow: Duration,
}

impl TraceSampler {
    /// The sampling of a configuration.
    #[must_use]
    pub fn new(config: &TracesConfig) -> Self {
        Self { one_in: config.sample_one_in.into(), errors: config.sample_errors, slow: config.sample_slow }
    }

    /// Whether a query becomes a span. Of a trace that begins elsewhere, the caller has decided; errors and slow queries are
    /// sampled in any case.
    pub(super) fn samples(&self, record: &SpanRecord<'_>, parent: Option<&TraceParent>, trace_id: &[u8; 16]) -> bool {
        let total = Duration::from_micros(record.total_us.unwrap_or_default());
        let is_slow = !self.slow.is_zero() && total >= self.slow;
        is_slow
            || (self.errors && record.failed())
            || parent.map_or_else(|| self.hits(trace_id), TraceParent::is_sampled)
    }

    /// The ratio by the random part of the trace, so that all gateways choose the same traces.
    fn hits(&self, trace_id: &[u8; 16]) -> bool {
        let low = trace_id.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        self.one_in > 0 && low <= u64::MAX / self.one_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","total_us":900"#;

    fn samples(config: &TracesConfig, more: &str, parent: Option<&str>) -> bool {
        let json = format!("{RECORD}{more}}}");
        let record = SpanRecord::from_json(json.as_bytes()).expect("a query");
        let parent = parent.and_then(|text| TraceParent::parse(text.as_bytes()));
        TraceSampler::new(config).samples(&record, parent.as_ref(), &[0xff; 16])
    }

    #[test]
    fn parent_error_and_duration_decide() {
        let none = TracesConfig { sample_one_in: 0, sample_errors: false, ..TracesConfig::default() };
        let (yes, no) = (
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
        );
        let all = TracesConfig { sample_one_in: 1, ..none.clone() };
        let errors = TracesConfig { sample_errors: true, ..none.clone() };
        let slow = TracesConfig { sample_slow: Duration::from_micros(900), ..none.clone() };
        let slower = TracesConfig { sample_slow: Duration::from_micros(901), ..none.clone() };
        let failed = r#","sqlstate":"42703""#;
        for (config, more, parent, expected) in [
            (&none, "", None, false),
            (&none, "", yes, true),
            (&all, "", None, true),
            (&all, "", no, false),
            (&none, failed, None, false),
            (&errors, failed, no, true),
            (&errors, r#","sqlstate":"01000""#, None, false),
            (&slow, "", no, true),
            (&slower, "", None, false),
        ] {
            assert_eq!(samples(config, more, parent), expected, "{config:?} {more} {parent:?}");
        }
    }

    #[test]
    fn ratio_is_that_of_the_traces() {
        let sampler = TraceSampler { one_in: 10, errors: false, slow: Duration::ZERO };
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let hits = (0..100_000).filter(|_| sampler.hits(&random.u128(..).to_be_bytes())).count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
    }
}
