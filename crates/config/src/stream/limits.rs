//! The limits of a stream that are in force. Their defaults depend on its source and its sink.

use super::{BatchBy, ChangeOrder, StreamConfig, StreamKeys, StreamSink, StreamSource};

/// Default of `records_max` for changes of Postgres: the server keeps them, so fewer of them wait in memory.
const CAPTURE_RECORDS_MAX: u32 = 20_000;
/// Default of `concurrency` for a sink that only queues deliveries.
const QUEUE_CONCURRENCY: u32 = 10_000;
/// Default of `concurrency` for batches across keys: a delivery takes what is waiting, so with more of them batches would stay
/// small.
const LANE_BATCHES_CONCURRENCY: u32 = 8;

impl StreamConfig {
    /// Keys that can be changed while a stream runs: its limits.
    pub const LIMITS: [&str; 4] = ["rate", "concurrency", "records_max", "span_max"];

    /// Connections or processes of the sink; `None` if their number has no limit.
    #[must_use]
    pub fn workers(&self) -> Option<usize> {
        let keys = &self.keys;
        match &keys.to {
            StreamSink::Command(_) if keys.processes == 0 => {
                Some(std::thread::available_parallelism().map_or(1, usize::from))
            }
            StreamSink::Command(_) => Some(keys.processes as usize),
            // A single position covers all that was delivered.
            StreamSink::Postgres(_) | StreamSink::Gateway(_)
                if self.is_capture() && keys.order == ChangeOrder::Commit =>
            {
                Some(1)
            }
            StreamSink::Postgres(_) | StreamSink::Gateway(_) => Some(keys.connections as usize),
            StreamSink::Unset | StreamSink::Http(_) | StreamSink::Kafka(_) | StreamSink::Stdout => None,
        }
    }

    /// The limit of concurrent deliveries. Further ones would wait for a connection or a process within their timeout.
    #[must_use]
    pub fn concurrency(&self) -> u32 {
        self.up_to_workers(self.written.concurrency.unwrap_or_else(|| self.default_concurrency()))
    }

    /// The limit of records that are read and not done.
    #[must_use]
    pub fn records_max(&self) -> u32 {
        self.written.records_max.unwrap_or_else(|| self.default_records_max())
    }

    /// The limits with the values in force, and the values that would be in force if the keys were not set.
    pub(crate) fn limits(&self) -> [(&'static str, u32, u32); 4] {
        let defaults = StreamKeys::default();
        let [rate, concurrency, records_max, span_max] = Self::LIMITS;
        [
            (rate, self.keys.rate, defaults.rate),
            (concurrency, self.concurrency(), self.up_to_workers(self.default_concurrency())),
            (records_max, self.records_max(), self.default_records_max()),
            (span_max, self.keys.span_max, defaults.span_max),
        ]
    }

    fn is_capture(&self) -> bool {
        matches!(self.keys.from, StreamSource::Postgres(_))
    }

    fn up_to_workers(&self, concurrency: u32) -> u32 {
        self.workers().and_then(|workers| u32::try_from(workers).ok()).map_or(concurrency, |max| concurrency.min(max))
    }

    fn default_concurrency(&self) -> u32 {
        match (&self.keys.to, self.keys.batch_by) {
            (StreamSink::Stdout | StreamSink::Kafka(_), _) => QUEUE_CONCURRENCY,
            (_, BatchBy::Lane) => LANE_BATCHES_CONCURRENCY,
            (_, BatchBy::Key) => StreamKeys::default().concurrency,
        }
    }

    fn default_records_max(&self) -> u32 {
        if self.is_capture() { CAPTURE_RECORDS_MAX } else { StreamKeys::default().records_max }
    }
}

#[cfg(test)]
mod tests {
    use crate::toml;

    const CAPTURE: &str = "from = \"postgres://u@h/d?publication=p\"\n";

    /// The values of `SHOW CONFIG`, each with its default.
    fn shown(text: &str, key: &str) -> (String, String) {
        let config = toml::parse(&format!("[[streams]]\nname = \"s\"\n{text}"), "t").expect("a configuration");
        let row = config.setting_rows().into_iter().find(|row| row.key == format!("streams.s.{key}"));
        row.map(|row| (row.value, row.default)).expect("a row")
    }

    #[test]
    fn show_config_has_limits_in_force() {
        let http = "to = \"http://h/\"\n";
        let sql = "to = \"postgres://u@h/d\"\nsql = \"select $1\"\nparams = [\"value\"]\n";
        for (more, key, value, default) in [
            (format!("{CAPTURE}{http}"), "records_max", "20000", "20000"),
            (format!("{CAPTURE}{http}records_max = 100000\n"), "records_max", "100000", "20000"),
            (format!("from = \"-\"\n{http}"), "records_max", "100000", "100000"),
            (format!("from = \"-\"\n{http}"), "concurrency", "100", "100"),
            (format!("from = \"-\"\n{http}batch_by = \"lane\"\nbatch = 9\n"), "concurrency", "8", "8"),
            (format!("from = \"-\"\n{http}batch_by = \"lane\"\nbatch = 9\nconcurrency = 9\n"), "concurrency", "9", "8"),
            ("from = \"-\"\nto = \"-\"\n".to_owned(), "concurrency", "10000", "10000"),
            ("from = \"-\"\nto = \"-\"\nconcurrency = 100\n".to_owned(), "concurrency", "100", "10000"),
            (format!("from = \"-\"\n{sql}"), "concurrency", "4", "4"),
            (format!("from = \"-\"\n{sql}connections = 7\nconcurrency = 9\n"), "concurrency", "7", "7"),
            (format!("{CAPTURE}{sql}order = \"commit\"\n"), "concurrency", "1", "1"),
            (format!("from = \"-\"\n{http}"), "rate", "0", "0"),
        ] {
            assert_eq!(shown(&more, key), (value.to_owned(), default.to_owned()), "{key} of {more}");
        }
    }

    /// A value that SHOW CONFIG prints leaves the limit as it is when it is set.
    #[test]
    fn shown_limits_can_be_set() {
        for to in ["to = \"-\"\n", "to = \"http://h/\"\n", "to = \"command:cat\"\nprocesses = 3\n"] {
            let text = format!("[[streams]]\nname = \"s\"\n{CAPTURE}{to}");
            let config = toml::parse(&text, "t").expect("a configuration");
            for row in config.setting_rows().into_iter().filter(|row| row.key.starts_with("streams.s.") && row.settable)
            {
                let changed = config.with_setting(&row.key, &row.value).expect("a limit");
                assert_eq!(changed.setting_rows(), config.setting_rows(), "{}", row.key);
            }
            let changed = config.with_setting("streams.s.records_max", "100000").expect("a limit");
            assert_eq!(changed.streams[0].records_max(), 100_000);
        }
    }
}
