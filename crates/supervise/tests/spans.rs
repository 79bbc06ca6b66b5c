//! Tracing spans: one per child, closed once, with the exit.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::HashMap;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex};

use tidegate_supervise::{Backoff, ChildClass, Exit, Restart, RestartPolicy, Scope, Tokio};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[derive(Default, Debug)]
struct Seen {
    fields: HashMap<&'static str, String>,
    closed: usize,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<HashMap<u64, Seen>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut seen = Seen::default();
        attributes.record(&mut seen);
        self.0.lock().unwrap().insert(id.into_u64(), seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(self.0.lock().unwrap().get_mut(&id.into_u64()).unwrap());
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.0.lock().unwrap().get_mut(&id.into_u64()).unwrap().closed += 1;
    }
}

/// Spans by key: scope, exit, number of closes.
fn rows(spans: &Spans) -> Vec<(String, String, String, usize)> {
    let spans = spans.0.lock().unwrap();
    let of = |seen: &Seen, name| seen.fields.get(name).cloned().unwrap_or_default();
    let mut rows: Vec<_> =
        spans.values().map(|seen| (of(seen, "key"), of(seen, "scope"), of(seen, "exit"), seen.closed)).collect();
    rows.sort();
    rows
}

/// SV-46: a span closes once and records the exit.
#[test]
fn span_closes_once_with_exit() {
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let scope = Scope::root::<u32>("root").on(Tokio::current());
            let returns = scope.spawn_as(1, |_| ready(())).unwrap();
            let fails = scope.spawn_as(2, |_| ready(Err::<(), _>(()))).unwrap();
            let aborts = scope.spawn_as(3, |_| pending::<()>()).unwrap();
            scope.get(&3).unwrap().abort();
            drop((returns.await, fails.await, aborts.await));
            drop(scope.wrap_as(4, |_| pending::<()>()).unwrap());
            assert!(scope.wrap_as(5, |_| ready(())).unwrap().await.is_ok());
            assert!(scope.get(&5).is_none());
            let panics = scope.spawn_as(6, |_| async { std::panic::resume_unwind(Box::new("silent")) }).unwrap();
            let ended: Result<Result<(), Exit>, _> = panics.await;
            assert_eq!(ended.unwrap(), Err(Exit::Panicked));
            // All runs of a restarting child share one span.
            let runs = std::sync::atomic::AtomicU32::new(0);
            let policy = RestartPolicy::new(Restart::Transient).backoff(Backoff::none());
            let class = ChildClass::new(policy, move |_: &u32, _| {
                ready(if runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 { Err(()) } else { Ok(()) })
            });
            scope.spawn_kept(7, &class).unwrap().ended().await;
            drop(scope.hold(0).unwrap());
        });
    });
    let expected = [
        ("", Exit::Returned),
        ("1", Exit::Returned),
        ("2", Exit::Failed),
        ("3", Exit::Aborted),
        ("4", Exit::Dropped),
        ("5", Exit::Returned),
        ("6", Exit::Panicked),
        ("7", Exit::Returned),
    ];
    let expected: Vec<_> = expected.map(|(key, exit)| (key.to_owned(), "root".to_owned(), exit.to_string(), 1)).into();
    assert_eq!(rows(&spans), expected);
}
