//! What can go wrong between "no Kafka here" and a broker that answers.

use std::io;
use std::path::PathBuf;

/// Why a broker could not be made, started, stopped or filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Java on this machine.
    #[error(
        "Kafka needs a Java of version 17 or later: install one (Debian: openjdk-17-jdk-headless), or set JAVA_HOME"
    )]
    NoJava,
    /// No Maven on this machine, and the jars are not in the cache yet.
    #[error(
        "the jars of Kafka are fetched with Maven: install it (Debian: maven), or name a folder with them in {variable}"
    )]
    NoMaven {
        /// The environment variable that names a folder.
        variable: &'static str,
    },
    /// Maven could not fetch the jars.
    #[error("Maven could not fetch the jars of Kafka {version}:\n{output}")]
    Fetch {
        /// The version that was asked for.
        version: &'static str,
        /// What Maven printed.
        output: String,
    },
    /// The folder that the environment names holds no Kafka.
    #[error("{variable} names {}, which holds no kafka_2.13-*.jar", dir.display())]
    NoJars {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        dir: PathBuf,
    },
    /// The storage could not be formatted.
    #[error("the storage of Kafka could not be formatted:\n{output}")]
    Format {
        /// What the tool printed.
        output: String,
    },
    /// The broker ended before it answered, or did not answer in time.
    #[error("Kafka did not start ({reason}); its log ends with:\n{log}")]
    Start {
        /// Ended, or silent for too long.
        reason: String,
        /// The log.
        log: String,
    },
    /// The broker did not end, even after SIGKILL.
    #[error("Kafka (pid {pid}) does not end")]
    Stop {
        /// The process that stays.
        pid: i32,
    },
    /// A topic could not be made.
    #[error("the topic {topic} could not be made: {reason}")]
    Topic {
        /// Its name.
        topic: String,
        /// What the broker said.
        reason: String,
    },
    /// The client could not be made, or the broker refused it.
    #[error("{what}: {source}")]
    Client {
        /// What was attempted.
        what: &'static str,
        /// What the client said.
        #[source]
        source: rdkafka::error::KafkaError,
    },
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, on which path.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// What the sandboxes have in common failed: the guard, the process, the search for a port.
    #[error(transparent)]
    Sandbox(#[from] crate::Error),
}

impl Error {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(super) fn client(what: &'static str) -> impl FnOnce(rdkafka::error::KafkaError) -> Self {
        move |source| Self::Client { what, source }
    }
}
