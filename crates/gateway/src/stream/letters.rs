//! Where records go that cannot be done: a file, kept on the disk, or a topic.

use std::error::Error as StdError;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_lanes::{Cause, DeadLetter, Letter, Taken};

use super::error::StreamError;
use super::place::Places;
use super::text::{Texts, member};
use crate::config::stream::{Letters, RecordForm, StreamKeys};

/// The dead-letter of a stream.
pub(super) enum Mailbox {
    File(LetterFile),
    #[cfg(feature = "kafka")]
    Topic(tidegate_lanes::source::kafka::LetterTopic),
}

/// Opens what the keys name; `None` if they name nothing.
pub(super) fn open(keys: &StreamKeys, places: &Places) -> Result<Option<Mailbox>, StreamError> {
    match &keys.dead_letter {
        Letters::None => Ok(None),
        Letters::File(path) => LetterFile::open(path, places.clone()).map(Mailbox::File).map(Some),
        #[cfg(feature = "kafka")]
        Letters::Kafka(topics) => {
            let roster = match places {
                Places::Kafka(roster) => roster.clone(),
                Places::File { .. } => tidegate_lanes::source::kafka::Roster::default(),
            };
            let properties: Vec<_> = super::source::kafka::common(keys).collect();
            let properties = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let topic = topics.topics.first().map_or("", String::as_str);
            tidegate_lanes::source::kafka::LetterTopic::with_properties(&topics.brokers, topic, roster, properties)
                .map(|topic| Some(Mailbox::Topic(topic)))
                .map_err(|error| StreamError::Letters(error.to_string()))
        }
        #[cfg(not(feature = "kafka"))]
        Letters::Kafka(_) => Err(StreamError::NoKafka),
    }
}

impl DeadLetter for Mailbox {
    fn send(&self, letter: Letter) -> Taken {
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
    file: Arc<Mutex<File>>,
    texts: Texts,
}

impl LetterFile {
    fn open(path: &Path, places: Places) -> Result<Self, StreamError> {
        let opened = OpenOptions::new().create(true).read(true).append(true).open(path);
        let file = opened.map_err(|error| StreamError::Letters(format!("{}: {error}", path.display())))?;
        let texts = Texts { form: RecordForm::Envelope, places };
        Ok(Self { file: Arc::new(Mutex::new(file)), texts })
    }

    fn line(&self, letter: &Letter) -> Vec<u8> {
        let mut line = b"{".to_vec();
        member(&mut line, "stream", letter.subscription.as_bytes());
        line.extend_from_slice(format!(",\"attempts\":{},", letter.attempts).as_bytes());
        member(&mut line, "cause", cause(letter.failure.cause()).as_bytes());
        line.push(b',');
        member(&mut line, "error", letter.failure.reason().as_bytes());
        line.push(b',');
        self.texts.members(&letter.record, letter.record.own_key(), &mut line);
        line.extend_from_slice(b"}\n");
        line
    }

    fn send(&self, letter: &Letter) -> Taken {
        let (mut line, file) = (self.line(letter), Arc::clone(&self.file));
        let keep = move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if is_torn(&mut file)? {
                line.insert(0, b'\n');
            }
            file.write_all(&line)?;
            file.sync_data()
        };
        Box::pin(async move {
            tokio::task::spawn_blocking(keep).await?.map_err(|error| Box::new(error) as Box<dyn StdError + Send + Sync>)
        })
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

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Handler => "sink",
        Cause::Panic => "panic",
        Cause::Dropped => "dropped",
        Cause::Overdue => "overdue",
        Cause::Abandoned => "abandoned",
        Cause::Undecodable => "undecodable",
        _ => "other",
    }
}
