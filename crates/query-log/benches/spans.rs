//! Cost of a span on the journal's thread: decoding the record, sampling, normalising the statement, encoding.
//!
//! Run with `cargo bench -p tidegate-query-log --bench spans`. The bar is 3 µs per span.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
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

fn spans(criterion: &mut Criterion) {
    let parent = r#","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01""#;
    let long = "select o.id, o.total, c.name from orders o join customers c on c.id = o.customer_id where o.state = 'open' \
                and o.created_at > now() - interval '1 day' order by o.created_at desc limit 20";
    let mut group = criterion.benchmark_group("spans");
    group.throughput(Throughput::Elements(1));
    for (case, record, sample_one_in) in [
        ("sampled", record("select abalance from pgbench_accounts where aid = $1", parent), 1),
        ("sampled, long statement", record(long, parent), 1),
        ("not sampled", record("select abalance from pgbench_accounts where aid = $1", ""), 0),
    ] {
        let config = TracesConfig { sample_one_in, ..TracesConfig::default() };
        let queue = SpanQueue::new(&config, || {});
        group.bench_function(case, |bencher| {
            bencher.iter(|| {
                queue.on_record(black_box(record.as_bytes()));
                // The exporter takes full batches.
                if queue.is_half_full() {
                    while let Some(batch) = queue.take() {
                        batch.set_exported(0);
                    }
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, spans);
criterion_main!(benches);
