//! Cost of a span on the journal's thread: decoding the record, sampling, normalising the statement, encoding.
//!
//! Run with `cargo bench -p tidegate-query-log --bench spans`. The bar is 3 µs per span.

use std::hint::black_box;
use std::time::Instant;

use tidegate_config::TracesConfig;
use tidegate_journal::RecordObserver as _;
use tidegate_query_log::spans::SpanQueue;

fn record(statement: &str, traceparent: &str) -> String {
    format!(
        concat!(
            r#"{{"time":"2026-03-01T12:00:00.000042Z","kind":"query","client":"10.1.2.3:4567","user":"app","#,
            r#""database":"shop","application":"web","session":7,"transaction":12,"statement":"{}","#,
            r#""fingerprint":"0123456789abcdef","prepared":"s1"{},"server":"10.1.2.9:5432","server_pid":99,"#,
            r#""wait_us":3,"server_us":310,"total_us":313,"rows":1,"bytes_in":80,"bytes_out":120,"tag":"SELECT 1"}}"#,
        ),
        statement, traceparent
    )
}

/// Records per round; the median of the rounds is printed.
const RECORDS: u32 = 100_000;
const ROUNDS: usize = 11;

fn nanoseconds_per_record(queue: &SpanQueue, record: &[u8]) -> f64 {
    let start = Instant::now();
    for _ in 0..RECORDS {
        queue.on_record(black_box(record));
        // The exporter takes full batches.
        while let Some(batch) = queue.is_half_full().then(|| queue.take()).flatten() {
            batch.set_exported(0);
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(RECORDS)
}

fn main() {
    let parent = r#","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01""#;
    let long = "select o.id, o.total, c.name from orders o join customers c on c.id = o.customer_id where o.state = 'open' \
                and o.created_at > now() - interval '1 day' order by o.created_at desc limit 20";
    for (case, record, sample_one_in) in [
        ("sampled", record("select abalance from pgbench_accounts where aid = $1", parent), 1),
        ("sampled, long statement", record(long, parent), 1),
        ("not sampled", record("select abalance from pgbench_accounts where aid = $1", ""), 0),
    ] {
        let config = TracesConfig { sample_one_in, ..TracesConfig::default() };
        let queue = SpanQueue::new(&config, || {});
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| nanoseconds_per_record(&queue, record.as_bytes())).collect();
        rounds.sort_by(f64::total_cmp);
        println!("{case:<24} {:>6.0} ns per span (bar 3,000)", rounds[ROUNDS / 2]);
    }
}
