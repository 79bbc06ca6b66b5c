//! The subjects of the benchmark, behind the same three calls.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use tidegate_journal::{Ack, Class, Journal, JournalConfig, Producer, ProducerRecord, TimestampPrecision};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

pub(crate) const BLOCKS: &str = "journal, may block";
pub(crate) const NEVER: &str = "journal, never blocks";
pub(crate) const BLOCKS_TICK: &str = "journal, may block, tick";
pub(crate) const NEVER_TICK: &str = "journal, never blocks, tick";
/// The subjects of the journal with tasks, and their limits in milliseconds.
pub(crate) const JOURNAL_SUBJECTS: [(&str, f64); 4] =
    [(BLOCKS, 130.0), (NEVER, 170.0), (BLOCKS_TICK, 130.0), (NEVER_TICK, 170.0)];
pub(crate) const APPENDER: &str = "tracing-appender, file";
pub(crate) const ALL: [&str; 8] = [
    BLOCKS,
    NEVER,
    BLOCKS_TICK,
    NEVER_TICK,
    APPENDER,
    "tracing-appender, BufWriter",
    "Mutex<BufWriter>",
    "channel + batching thread",
];

const LONG: Duration = Duration::from_secs(120);
/// The capacity of the channel in records: the journal's bound in records of 100 bytes.
const CHANNEL: usize = 64 << 10;

/// An open log.
pub(crate) enum Subject {
    Journal { journal: Box<Journal>, blocks: bool },
    Appender { appender: NonBlocking, guard: WorkerGuard },
    Mutex(Arc<Mutex<BufWriter<File>>>),
    Channel { sender: Sender<Vec<u8>>, writer: JoinHandle<()> },
}

/// A producer of a subject.
#[derive(Clone)]
pub(crate) enum SubjectProducer {
    Blocks(Producer),
    Never(Producer),
    Appender(NonBlocking),
    Mutex(Arc<Mutex<BufWriter<File>>>),
    Channel(Sender<Vec<u8>>),
}

impl Subject {
    pub(crate) fn open(name: &str, folder: &Path) -> Self {
        let file = || File::create(folder.join("log")).expect("create the file");
        match name {
            BLOCKS | NEVER | BLOCKS_TICK | NEVER_TICK => {
                let timestamps = if [BLOCKS_TICK, NEVER_TICK].contains(&name) {
                    TimestampPrecision::Tick
                } else {
                    TimestampPrecision::Exact
                };
                let blocks = [BLOCKS, BLOCKS_TICK].contains(&name);
                // A single file, as for all other subjects.
                let config = JournalConfig { segment_bytes: 4 << 30, timestamps, ..JournalConfig::new(folder) };
                let (journal, _) = Journal::open(config).expect("open the journal");
                Self::Journal { journal: Box::new(journal), blocks }
            }
            APPENDER => Self::appender(file()),
            "tracing-appender, BufWriter" => Self::appender(BufWriter::new(file())),
            "Mutex<BufWriter>" => Self::Mutex(Arc::new(Mutex::new(BufWriter::with_capacity(64 << 10, file())))),
            "channel + batching thread" => Self::channel(file()),
            other => panic!("unknown subject: {other}"),
        }
    }

    fn appender(writer: impl Write + Send + 'static) -> Self {
        let (appender, guard) = NonBlockingBuilder::default().lossy(false).finish(writer);
        Self::Appender { appender, guard }
    }

    fn channel(mut file: File) -> Self {
        let (sender, receiver) = bounded::<Vec<u8>>(CHANNEL);
        let writer = thread::spawn(move || {
            let mut batch = Vec::with_capacity(64 << 10);
            while let Ok(first) = receiver.recv() {
                batch.extend(first);
                while batch.len() < 64 << 10 {
                    let Ok(next) = receiver.try_recv() else { break };
                    batch.extend(next);
                }
                file.write_all(&batch).expect("write the file");
                batch.clear();
            }
        });
        Self::Channel { sender, writer }
    }

    pub(crate) fn way(&self) -> SubjectProducer {
        match self {
            Self::Journal { journal, blocks: true } => SubjectProducer::Blocks(journal.producer()),
            Self::Journal { journal, blocks: false } => SubjectProducer::Never(journal.producer()),
            Self::Appender { appender, .. } => SubjectProducer::Appender(appender.clone()),
            Self::Mutex(writer) => SubjectProducer::Mutex(Arc::clone(writer)),
            Self::Channel { sender, .. } => SubjectProducer::Channel(sender.clone()),
        }
    }

    /// Waits until all records are written to the operating system. The producers are dropped.
    pub(crate) fn drain(self) -> Option<Journal> {
        match self {
            Self::Journal { journal, .. } => {
                assert_eq!(journal.flush(Ack::Written, LONG), Ok(true));
                return Some(*journal);
            }
            // The size of the file shows when the appender is done.
            Self::Appender { appender, guard } => drop((appender, guard)),
            Self::Mutex(writer) => writer.lock().expect("no thread panics").flush().expect("flush the file"),
            Self::Channel { sender, writer } => {
                drop(sender);
                writer.join().expect("no thread panics");
            }
        }
        None
    }
}

impl SubjectProducer {
    /// Appends from a task.
    pub(crate) async fn append(&mut self, payload: &[u8]) {
        match self {
            Self::Never(producer) => {
                producer.append(ProducerRecord::new(Class::new(0), payload)).await.expect("append the record");
            }
            other => other.append_blocking(payload),
        }
    }

    /// Appends from a thread.
    pub(crate) fn append_blocking(&mut self, payload: &[u8]) {
        match self {
            Self::Blocks(producer) => {
                producer.append_blocking(ProducerRecord::new(Class::new(0), payload)).expect("append the record");
            }
            Self::Never(_) => unreachable!("threads use the blocking calls"),
            Self::Appender(appender) => appender.write_all(payload).expect("append the line"),
            Self::Mutex(writer) => {
                writer.lock().expect("no thread panics").write_all(payload).expect("write the file");
            }
            Self::Channel(sender) => sender.send(payload.to_vec()).expect("the writer is running"),
        }
    }
}
