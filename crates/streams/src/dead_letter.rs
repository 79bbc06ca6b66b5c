//! Dead-letter queues: a file or a Kafka topic for records that cannot be delivered.

use std::error::Error as StdError;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_lanes::{DeadLetter, DeadLetterQueue, FailureCause, SendFuture};

use super::encoding::{RecordEncoder, member, value_encoding};
use super::error::StreamError;
use super::lane_names::LaneNames;
use tidegate_config::stream::{DeadLetterSink, RecordForm, StreamKeys, StreamSource};

/// The dead-letter queue of a stream.
pub(super) enum OpenDeadLetterQueue {
    File(DeadLetterFile),
    #[cfg(feature = "kafka")]
    Topic(tidegate_lanes::source::kafka::DeadLetterTopic),
}

/// Opens the configured queue; `None` if there is none.
pub(super) fn open(keys: &StreamKeys, lanes: &LaneNames) -> Result<Option<OpenDeadLetterQueue>, StreamError> {
    match &keys.dead_letter {
        DeadLetterSink::None => Ok(None),
        DeadLetterSink::File(path) => {
            refuse_source_file(path, keys)?;
            DeadLetterFile::open(path, lanes.clone()).map(OpenDeadLetterQueue::File).map(Some)
        }
        #[cfg(feature = "kafka")]
        DeadLetterSink::Kafka(topics) => {
            let partition_map = match lanes {
                LaneNames::Kafka(partition_map) => partition_map.clone(),
                LaneNames::File { .. } | LaneNames::Changes { .. } => Default::default(),
            };
            use super::source::kafka::{common, dead_letter_properties};
            let properties: Vec<_> = common(dead_letter_properties(keys)).collect();
            let properties = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let topic = topics.topics.first().map_or("", String::as_str);
            tidegate_lanes::source::kafka::DeadLetterTopic::with_properties(
                &topics.brokers,
                topic,
                partition_map,
                properties,
            )
            .map(|topic| Some(OpenDeadLetterQueue::Topic(topic)))
            .map_err(|error| StreamError::DeadLetter(error.to_string()))
        }
        #[cfg(not(feature = "kafka"))]
        DeadLetterSink::Kafka(_) => Err(StreamError::NoKafka),
    }
}

impl DeadLetterQueue for OpenDeadLetterQueue {
    fn send(&self, letter: DeadLetter) -> SendFuture {
        match self {
            Self::File(file) => file.send(&letter),
            #[cfg(feature = "kafka")]
            Self::Topic(topic) => topic.send(letter),
        }
    }
}

/// Appends dead letters to a file, one JSON object per line. Each is synced to disk before its record counts as done. An
/// incomplete line, left by a full disk or a crash, is terminated first.
pub(super) struct DeadLetterFile {
    end: Arc<Mutex<AppendFile>>,
    encoder: RecordEncoder,
}

/// The open file.
struct AppendFile {
    path: PathBuf,
    file: File,
}

impl DeadLetterFile {
    fn open(path: &Path, lanes: LaneNames) -> Result<Self, StreamError> {
        let file = open_file(path).map_err(|error| StreamError::DeadLetter(format!("{}: {error}", path.display())))?;
        let encoder = RecordEncoder { form: RecordForm::Envelope, lanes };
        Ok(Self { end: Arc::new(Mutex::new(AppendFile { path: path.to_owned(), file })), encoder })
    }

    fn line(&self, letter: &DeadLetter) -> Vec<u8> {
        let mut line = b"{".to_vec();
        member(&mut line, "stream", letter.subscription.as_bytes());
        line.extend_from_slice(format!(",\"attempts\":{},", letter.attempts).as_bytes());
        member(&mut line, "cause", cause(letter.failure.cause()).as_bytes());
        line.push(b',');
        member(&mut line, "error", letter.failure.reason().as_bytes());
        line.push(b',');
        self.encoder.members(&letter.record, letter.record.source_key(), &mut line);
        if let Some(encoding) = value_encoding(letter.record.payload()) {
            line.push(b',');
            member(&mut line, "encoding", encoding.as_bytes());
        }
        line.extend_from_slice(b"}\n");
        line
    }

    fn send(&self, letter: &DeadLetter) -> SendFuture {
        let (line, end) = (self.line(letter), Arc::clone(&self.end));
        let append = move || end.lock().unwrap_or_else(PoisonError::into_inner).append(line);
        Box::pin(async move {
            tokio::task::spawn_blocking(append)
                .await?
                .map_err(|error| Box::new(error) as Box<dyn StdError + Send + Sync>)
        })
    }
}

/// Refuses the file that the stream reads, under whatever name.
fn refuse_source_file(path: &Path, keys: &StreamKeys) -> Result<(), StreamError> {
    let StreamSource::File(from) = &keys.from else { return Ok(()) };
    let id = |path: &Path| {
        std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| (file.dev(), file.ino()))
    };
    match (id(path), id(from)) {
        (Some(letters), Some(source)) if letters == source => {
            Err(StreamError::OwnOutput(format!("the file {}", path.display())))
        }
        _ => Ok(()),
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // Owner only: the file contains whole records.
    let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    let folder = std::path::absolute(path)?.parent().map(File::open);
    // Sync the folder so that the file name survives a power loss; skipped if the folder is not readable.
    if let Some(Ok(folder)) = folder {
        let _ = folder.sync_all();
    }
    Ok(file)
}

impl AppendFile {
    fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if !self.is_current()? {
            self.file = open_file(&self.path)?;
        }
        if is_incomplete(&mut self.file)? {
            line.insert(0, b'\n');
        }
        self.file.write_all(&line)?;
        self.file.sync_data()
    }

    /// Whether the path still refers to this file, which may have been moved or deleted.
    fn is_current(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        Ok(std::fs::metadata(&self.path).is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())))
    }
}

/// Whether the file ends with an incomplete line. Other files than regular ones have no lines to check.
fn is_incomplete(file: &mut File) -> io::Result<bool> {
    if !file.metadata()?.is_file() || file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn cause(cause: FailureCause) -> &'static str {
    match cause {
        FailureCause::Handler => "sink",
        FailureCause::Panic => "panic",
        FailureCause::Dropped => "dropped",
        FailureCause::Overdue => "overdue",
        FailureCause::Abandoned => "abandoned",
        FailureCause::Undecodable => "undecodable",
        _ => "other",
    }
}
