//! The ways to write down what many producers say, each behind the same three calls.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use tidegate_journal::{Ack, Class, Config, Journal, Note, Producer, Times};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

pub(crate) const BLOCKS: &str = "journal, may block";
pub(crate) const NEVER: &str = "journal, never blocks";
pub(crate) const BLOCKS_TICK: &str = "journal, may block, tick";
pub(crate) const NEVER_TICK: &str = "journal, never blocks, tick";
/// The journal's ways from tasks, and their bars in milliseconds.
pub(crate) const OURS: [(&str, f64); 4] = [(BLOCKS, 130.0), (NEVER, 170.0), (BLOCKS_TICK, 130.0), (NEVER_TICK, 170.0)];
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
/// What the channel holds, in records: as many as the journal's bound in records of 100 bytes.
const CHANNEL: usize = 64 << 10;

/// A log that is open, with producers to come.
pub(crate) enum Subject {
    Journal { journal: Box<Journal>, blocks: bool },
    Appender { appender: NonBlocking, guard: WorkerGuard },
    Mutex(Arc<Mutex<BufWriter<File>>>),
    Channel { sender: Sender<Vec<u8>>, writer: JoinHandle<()> },
}

/// One producer's way in.
#[derive(Clone)]
pub(crate) enum Way {
    Blocks(Producer),
    Never(Producer),
    Appender(NonBlocking),
    Mutex(Arc<Mutex<BufWriter<File>>>),
    Channel(Sender<Vec<u8>>),
}

impl Subject {
    pub(crate) fn open(name: &str, folder: &Path) -> Self {
        let file = || File::create(folder.join("log")).expect("the folder can be written");
        match name {
            BLOCKS | NEVER | BLOCKS_TICK | NEVER_TICK => {
                let times = if [BLOCKS_TICK, NEVER_TICK].contains(&name) { Times::Tick } else { Times::Exact };
                let blocks = [BLOCKS, BLOCKS_TICK].contains(&name);
                // One file, as for all others.
                let config = Config { segment_bytes: 4 << 30, times, ..Config::new(folder) };
                let (journal, _) = Journal::open(config).expect("the journal opens");
                Self::Journal { journal: Box::new(journal), blocks }
            }
            APPENDER => Self::appender(file()),
            "tracing-appender, BufWriter" => Self::appender(BufWriter::new(file())),
            "Mutex<BufWriter>" => Self::Mutex(Arc::new(Mutex::new(BufWriter::with_capacity(64 << 10, file())))),
            "channel + batching thread" => Self::channel(file()),
            other => panic!("no such subject: {other}"),
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
                file.write_all(&batch).expect("the file takes it");
                batch.clear();
            }
        });
        Self::Channel { sender, writer }
    }

    pub(crate) fn way(&self) -> Way {
        match self {
            Self::Journal { journal, blocks: true } => Way::Blocks(journal.producer()),
            Self::Journal { journal, blocks: false } => Way::Never(journal.producer()),
            Self::Appender { appender, .. } => Way::Appender(appender.clone()),
            Self::Mutex(writer) => Way::Mutex(Arc::clone(writer)),
            Self::Channel { sender, .. } => Way::Channel(sender.clone()),
        }
    }

    /// Everything that was handed in is with the operating system. The producers are gone.
    pub(crate) fn drain(self) -> Option<Journal> {
        match self {
            Self::Journal { journal, .. } => {
                assert_eq!(journal.flush(Ack::Written, LONG), Ok(true));
                return Some(*journal);
            }
            // Whatever it does, the size of the file tells when it is done.
            Self::Appender { appender, guard } => drop((appender, guard)),
            Self::Mutex(writer) => writer.lock().expect("nobody panics").flush().expect("the file takes it"),
            Self::Channel { sender, writer } => {
                drop(sender);
                writer.join().expect("it does not panic");
            }
        }
        None
    }
}

impl Way {
    /// From a task.
    pub(crate) async fn append(&mut self, payload: &[u8]) {
        match self {
            Self::Never(producer) => {
                producer.append(Note::new(Class::new(0), payload)).await.expect("it is taken");
            }
            other => other.append_blocking(payload),
        }
    }

    /// From a thread.
    pub(crate) fn append_blocking(&mut self, payload: &[u8]) {
        match self {
            Self::Blocks(producer) => {
                producer.append_blocking(Note::new(Class::new(0), payload)).expect("it is taken");
            }
            Self::Never(_) => unreachable!("threads may block"),
            Self::Appender(appender) => appender.write_all(payload).expect("it is taken"),
            Self::Mutex(writer) => {
                writer.lock().expect("nobody panics").write_all(payload).expect("the file takes it");
            }
            Self::Channel(sender) => sender.send(payload.to_vec()).expect("the writer lives"),
        }
    }
}
