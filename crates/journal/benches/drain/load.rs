//! A run in this process: a number of records from tasks or threads, from start to drained.

use std::{
    fs::File,
    path::Path,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::{
    process,
    subjects::{Subject, SubjectProducer},
};

/// The sampling interval: one of this many appends is timed.
const TIMED: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) written_ms: f64,
    pub(crate) durable_ms: f64,
    pub(crate) cpu_ms: f64,
    pub(crate) memory_kib: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) p999_ns: f64,
    pub(crate) queue_bytes: f64,
}

impl Figures {
    fn fields(&mut self) -> [&mut f64; 8] {
        let Self { written_ms, durable_ms, cpu_ms, memory_kib, p50_ns, p99_ns, p999_ns, queue_bytes } = self;
        [written_ms, durable_ms, cpu_ms, memory_kib, p50_ns, p99_ns, p999_ns, queue_bytes]
    }

    pub(crate) fn to_line(mut self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let mut figures = Self::default();
        let mut words = line.split(' ');
        for field in figures.fields() {
            *field = words.next()?.parse().ok()?;
        }
        Some(figures)
    }
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) subject: &'a str,
    pub(crate) records: usize,
    pub(crate) bytes: usize,
    /// Tasks on one worker per core, or threads.
    pub(crate) tasks: bool,
    pub(crate) producers: usize,
}

pub(crate) fn run(load: &Load<'_>, folder: &Path) -> Figures {
    let subject = Subject::open(load.subject, folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let loads: Vec<ProducerLoad> = (0..load.producers).map(|_| ProducerLoad::new(load)).collect();
    let timestamps = Mutex::new(touched(load.records / TIMED + load.producers));
    let idle = process::resident_kib();
    process::forget_peak();
    let (begun, cpu) = (Instant::now(), process::cpu());
    if load.tasks {
        runtime.block_on(tasks(load, &subject, loads, &timestamps));
    } else {
        threads(load, &subject, loads, &timestamps);
    }
    let journal = subject.drain();
    let least = (load.records * load.bytes) as u64;
    while written_bytes(folder) < least {
        thread::sleep(Duration::from_micros(100));
    }
    let (written, cpu) = (begun.elapsed(), process::cpu() - cpu);
    sync(folder);
    let durable = begun.elapsed();
    let queue = journal.as_ref().map_or(f64::NAN, |journal| journal.stats().reserved_bytes_max as f64);
    let mut timestamps = timestamps.into_inner().expect("no thread panics");
    timestamps.sort_unstable();
    let at = |share: f64| f64::from(timestamps[((timestamps.len() - 1) as f64 * share) as usize]);
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Figures {
        written_ms: ms(written),
        durable_ms: ms(durable),
        cpu_ms: ms(cpu),
        memory_kib: process::peak_kib() - idle,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        queue_bytes: queue,
    }
}

/// The memory of a producer, which does not count for the subject.
struct ProducerLoad {
    payload: Vec<u8>,
    timed: Vec<u32>,
}

impl ProducerLoad {
    fn new(load: &Load<'_>) -> Self {
        let mut payload = vec![b'x'; load.bytes];
        payload[load.bytes - 1] = b'\n';
        Self { payload, timed: touched(load.records / load.producers / TIMED + 1) }
    }
}

/// Room for `timestamps` entries, resident from the start.
fn touched(timestamps: usize) -> Vec<u32> {
    let mut room = vec![u32::MAX; timestamps];
    room.clear();
    room
}

async fn tasks(load: &Load<'_>, subject: &Subject, loads: Vec<ProducerLoad>, timestamps: &Mutex<Vec<u32>>) {
    let each = load.records / load.producers;
    let mut tasks = Vec::with_capacity(load.producers);
    for ProducerLoad { payload, mut timed } in loads {
        let mut way = subject.way();
        tasks.push(tokio::spawn(async move {
            for number in 0..each {
                if number % TIMED == 0 {
                    let begun = Instant::now();
                    way.append(&payload).await;
                    timed.push(nanos(begun));
                } else {
                    way.append(&payload).await;
                }
            }
            timed
        }));
    }
    for task in tasks {
        let timed = task.await.expect("no task panics");
        timestamps.lock().expect("no thread panics").extend(timed);
    }
}

fn threads(load: &Load<'_>, subject: &Subject, loads: Vec<ProducerLoad>, timestamps: &Mutex<Vec<u32>>) {
    let each = load.records / load.producers;
    thread::scope(|scope| {
        for ProducerLoad { payload, mut timed } in loads {
            let mut way: SubjectProducer = subject.way();
            scope.spawn(move || {
                for number in 0..each {
                    let begun = (number % TIMED == 0).then(Instant::now);
                    way.append_blocking(&payload);
                    timed.extend(begun.map(nanos));
                }
                timestamps.lock().expect("no thread panics").extend(timed);
            });
        }
    });
}

pub(crate) fn nanos(begun: Instant) -> u32 {
    u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

fn files(folder: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    std::fs::read_dir(folder).expect("list the folder").map(|entry| entry.expect("list the folder").path())
}

fn written_bytes(folder: &Path) -> u64 {
    files(folder).map(|path| path.metadata().map_or(0, |metadata| metadata.len())).sum()
}

fn sync(folder: &Path) {
    for path in files(folder) {
        File::options().write(true).open(path).and_then(|file| file.sync_data()).expect("sync the file");
    }
}
