//! Where records go that cannot be done: a file, kept on the disk, or a topic.

use std::error::Error as StdError;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_lanes::{DeadLetter, DeadLetterQueue, FailureCause, SendFuture};

use super::error::StreamError;
use super::place::Places;
use super::text::{Texts, member};
use tidegate_config::stream::{Letters, RecordForm, StreamKeys};

/// The dead-letter of a stream.
pub(super) enum Mailbox {
    File(LetterFile),
    #[cfg(feature = "kafka")]
    Topic(tidegate_lanes::source::kafka::DeadLetterTopic),
}

/// Opens what the keys name; `None` if they name nothing.
pub(super) fn open(keys: &StreamKeys, places: &Places) -> Result<Option<Mailbox>, StreamError> {
    match &keys.dead_letter {
        Letters::None => Ok(None),
        Letters::File(path) => LetterFile::open(path, places.clone()).map(Mailbox::File).map(Some),
        #[cfg(feature = "kafka")]
        Letters::Kafka(topics) => {
            let partition_map = match places {
                Places::Kafka(partition_map) => partition_map.clone(),
                Places::File { .. } => tidegate_lanes::source::kafka::PartitionMap::default(),
            };
            let properties: Vec<_> = super::source::kafka::common(keys).collect();
            let properties = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let topic = topics.topics.first().map_or("", String::as_str);
            tidegate_lanes::source::kafka::DeadLetterTopic::with_properties(
                &topics.brokers,
                topic,
                partition_map,
                properties,
            )
            .map(|topic| Some(Mailbox::Topic(topic)))
            .map_err(|error| StreamError::Letters(error.to_string()))
        }
        #[cfg(not(feature = "kafka"))]
        Letters::Kafka(_) => Err(StreamError::NoKafka),
    }
}

impl DeadLetterQueue for Mailbox {
    fn send(&self, letter: DeadLetter) -> SendFuture {
        match self {
            Self::File(file) => file.send(&letter),
            #[cfg(feature = "kafka")]
            Self::Topic(topic) => topic.send(letter),
        }
    }
}

/// A file to whose end letters are written, a JSON object per line. Each is on the disk before its record counts as done,
/// and none is appended to a line that broke off, on a full disk or in a crash.
pub(super) struct LetterFile {
    end: Arc<Mutex<End>>,
    texts: Texts,
}

/// Where the next letter is written.
struct End {
    path: PathBuf,
    file: File,
}

impl LetterFile {
    fn open(path: &Path, places: Places) -> Result<Self, StreamError> {
        let file = open_file(path).map_err(|error| StreamError::Letters(format!("{}: {error}", path.display())))?;
        let texts = Texts { form: RecordForm::Envelope, places };
        Ok(Self { end: Arc::new(Mutex::new(End { path: path.to_owned(), file })), texts })
    }

    fn line(&self, letter: &DeadLetter) -> Vec<u8> {
        let mut line = b"{".to_vec();
        member(&mut line, "stream", letter.subscription.as_bytes());
        line.extend_from_slice(format!(",\"attempts\":{},", letter.attempts).as_bytes());
        member(&mut line, "cause", cause(letter.failure.cause()).as_bytes());
        line.push(b',');
        member(&mut line, "error", letter.failure.reason().as_bytes());
        line.push(b',');
        self.texts.members(&letter.record, letter.record.source_key(), &mut line);
        line.extend_from_slice(b"}\n");
        line
    }

    fn send(&self, letter: &DeadLetter) -> SendFuture {
        let (line, end) = (self.line(letter), Arc::clone(&self.end));
        let keep = move || end.lock().unwrap_or_else(PoisonError::into_inner).keep(line);
        Box::pin(async move {
            tokio::task::spawn_blocking(keep).await?.map_err(|error| Box::new(error) as Box<dyn StdError + Send + Sync>)
        })
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // It holds whole records.
    let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    let folder = std::path::absolute(path)?.parent().map(File::open);
    // Its name is to be there after a loss of power, too. Who may not read the folder does without.
    if let Some(Ok(folder)) = folder {
        let _ = folder.sync_all();
    }
    Ok(file)
}

impl End {
    fn keep(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if !self.is_there()? {
            self.file = open_file(&self.path)?;
        }
        if is_torn(&mut self.file)? {
            line.insert(0, b'\n');
        }
        self.file.write_all(&line)?;
        self.file.sync_data()
    }

    /// Whether the path names the file still: it may have been moved away to be worked off, or deleted.
    fn is_there(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        Ok(std::fs::metadata(&self.path).is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())))
    }
}

/// Does the file end within a line? What is no file that can be read back has no lines that could be torn.
fn is_torn(file: &mut File) -> io::Result<bool> {
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
