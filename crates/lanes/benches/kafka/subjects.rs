//! Subjects: the subscription, and the client alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use rdkafka::consumer::{BaseConsumer, Consumer, StreamConsumer};
use rdkafka::{ClientConfig, Message};
use tidegate_lanes::source::kafka::KafkaSource;
use tidegate_lanes::{BlockingThreads, Bounds, Epoch, Subscription, SubscriptionHandle};
use tidegate_sandbox::kafka::Broker;

use crate::floor::{SLEEPERS, TOKIO_SLEEPERS, sleep_all};
use crate::load::{Check, Load, handle, handle_blocking};
use crate::usage::{Usage, status};

pub(crate) const OURS: &str = "lanes";
pub(crate) const THREADS: &str = "lanes, threads";
pub(crate) const CORES: &str = "lanes, own threads";
pub(crate) const BASE: &str = "BaseConsumer alone (no order)";
pub(crate) const STREAM: &str = "StreamConsumer alone (no order)";

/// The figures of one run.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
    pub(crate) memory_mib: f64,
    pub(crate) violations: f64,
}

impl Figures {
    pub(crate) fn to_line(&self) -> String {
        format!("{} {} {} {}", self.per_second, self.cpu_us, self.memory_mib, self.violations)
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let values: Vec<f64> = line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let &[per_second, cpu_us, memory_mib, violations] = &values[..] else { return None };
        Some(Self { per_second, cpu_us, memory_mib, violations })
    }
}

/// Fills the topic with the load.
pub(crate) fn fill(broker: &Broker, topic: &str, load: Load) {
    let records = load.records(Epoch(1));
    let pairs = records.iter().map(|record| (record.key().unwrap_or_default(), record.payload().unwrap_or_default()));
    broker.fill(topic, pairs).expect("topic filled");
}

/// Measures from the first record to the last.
struct JobState {
    records: u32,
    done: AtomicU32,
    began: Mutex<Option<Usage>>,
    ended: Mutex<Option<Figures>>,
}

impl JobState {
    fn new(records: u32) -> Self {
        Self { records, done: AtomicU32::new(0), began: Mutex::default(), ended: Mutex::default() }
    }

    /// `true` for the last record.
    fn count(&self) -> bool {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done == 1 {
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Usage::now());
        }
        if done == self.records {
            self.end();
        }
        done == self.records
    }

    fn end(&self) {
        let began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let used = began.as_ref().expect("first record counted").until_now();
        let figures = Figures {
            per_second: f64::from(self.records) / used.wall.as_secs_f64(),
            cpu_us: used.cpu.as_secs_f64() * 1e6 / f64::from(self.records),
            memory_mib: 0.0,
            violations: 0.0,
        };
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures);
    }

    fn figures(&self, check: Option<&Check>) -> Figures {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Figures {
            memory_mib: status("VmHWM:") as f64 / 1024.0,
            violations: check.map_or(0.0, |check| check.violations() as f64),
            ..ended.expect("last record counted")
        }
    }
}

/// Runs one subject in this process.
pub(crate) fn run(subject: &str, load: Load, brokers: &str, topic: &str) -> Figures {
    let state = Arc::new(JobState::new(load.records));
    match subject {
        SLEEPERS | TOKIO_SLEEPERS => return sleepers(subject, load),
        BASE => base(&state, brokers, topic),
        STREAM => on_workers(stream(Arc::clone(&state), brokers.to_owned(), topic.to_owned())),
        _ => {
            // Keys are numbered by their first record.
            let keys = load.keys().iter().max().map_or(0, |most| *most as usize + 1);
            let check = Arc::new(Check::new(keys));
            let source = source(brokers, topic);
            on_workers(subscribe(source, load, Arc::clone(&state), Arc::clone(&check), subject.to_owned()));
            return state.figures(Some(&check));
        }
    }
    state.figures(None)
}

/// The lower bound without a broker.
fn sleepers(subject: &str, load: Load) -> Figures {
    let state = JobState::new(load.records);
    *state.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Usage::now());
    let subject = subject.to_owned();
    on_workers(async move { sleep_all(&subject, load).await });
    state.end();
    state.figures(None)
}

fn on_workers<F: Future<Output: Send> + Send + 'static>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { tokio::spawn(future).await.expect("benchmark panicked") })
}

fn group() -> String {
    format!("bench-{}", std::process::id())
}

fn source(brokers: &str, topic: &str) -> KafkaSource {
    let settings = KafkaSource::builder(brokers, &group()).topic(topic).property("fetch.wait.max.ms", "10");
    settings.build().expect("a source")
}

async fn subscribe(source: KafkaSource, load: Load, state: Arc<JobState>, check: Arc<Check>, subject: String) {
    let builder = Subscription::builder("bench").source(source);
    let stop: Arc<Mutex<Option<SubscriptionHandle>>> = Arc::default();
    let stopping = Arc::clone(&stop);
    let count = move |state: &JobState| {
        if state.count() {
            let handle = stopping.lock().unwrap_or_else(PoisonError::into_inner).take();
            handle.into_iter().for_each(|handle| handle.stop(Duration::from_secs(10)));
        }
    };
    let subscription = if subject == THREADS {
        builder.runtime(BlockingThreads(load.in_flight)).handler(move |delivery| {
            handle_blocking(load.handler, &check, &delivery.record);
            delivery.finish();
            count(&state);
        })
    } else {
        let builder = if subject == CORES { builder.own_threads() } else { builder };
        // As many queued as running records, so that a free permit finds a record.
        let most = 2 * load.in_flight;
        let bounds = Bounds { records_max: most, lane_records_max: most, ..Bounds::default() };
        let builder = builder.bounds(bounds).concurrency(load.in_flight);
        builder.handler(move |delivery| {
            let (check, state, count) = (Arc::clone(&check), Arc::clone(&state), count.clone());
            async move {
                handle(load.handler, &check, &delivery.record).await;
                delivery.finish();
                count(&state);
            }
        })
    };
    let subscription = subscription.expect("valid settings");
    *stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(subscription.handle());
    subscription.run().await.expect("subscription failed");
}

/// The client settings of the source.
fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", group())
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "10")
        .set("fetch.queue.backoff.ms", "5")
        .set("queued.min.messages", "37000")
        .set("fetch.message.max.bytes", "1048576");
    config
}

/// The minimal access to a message.
fn look_at(message: &impl Message) {
    std::hint::black_box((message.key(), message.payload(), message.offset()));
}

fn base(state: &JobState, brokers: &str, topic: &str) {
    let consumer: BaseConsumer = config(brokers).create().expect("a consumer");
    consumer.subscribe(&[topic]).expect("a subscription");
    loop {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        look_at(&message.expect("a message"));
        if state.count() {
            return;
        }
    }
}

async fn stream(state: Arc<JobState>, brokers: String, topic: String) {
    let consumer: StreamConsumer = config(&brokers).create().expect("a consumer");
    consumer.subscribe(&[&topic]).expect("a subscription");
    let mut messages = consumer.stream();
    while let Some(message) = messages.next().await {
        look_at(&message.expect("a message"));
        if state.count() {
            return;
        }
    }
}
