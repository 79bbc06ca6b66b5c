//! Errors of a Kafka sandbox, from finding Java to filling topics.

use std::io;
use std::path::PathBuf;

/// An error of a Kafka sandbox.
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
        "the jars of Kafka are downloaded with Maven: install it (Debian: maven), or name a folder with them in {variable}"
    )]
    NoMaven {
        /// The environment variable for a folder with the jars.
        variable: &'static str,
    },
    /// Maven could not download the jars.
    #[error("Maven could not download the jars of Kafka {version}:\n{output}")]
    Fetch {
        /// The requested version.
        version: &'static str,
        /// Output of Maven.
        output: String,
    },
    /// The folder named by the environment has no Kafka.
    #[error("{variable} names {}, which holds no kafka_2.13-*.jar", dir.display())]
    NoJars {
        /// The environment variable.
        variable: &'static str,
        /// Value of the variable.
        dir: PathBuf,
    },
    /// The storage could not be formatted.
    #[error("storage of Kafka could not be formatted:\n{output}")]
    Format {
        /// Output of the tool.
        output: String,
    },
    /// The broker exited before it accepted connections, or did not accept them in time.
    #[error("Kafka did not start ({reason}); its log ends with:\n{log}")]
    Start {
        /// Exited, or timed out.
        reason: String,
        /// The log.
        log: String,
    },
    /// The broker did not exit, even after SIGKILL.
    #[error("Kafka (pid {pid}) does not exit")]
    Stop {
        /// The remaining process.
        pid: i32,
    },
    /// A topic could not be created.
    #[error("topic {topic} could not be created: {reason}")]
    Topic {
        /// Name of the topic.
        topic: String,
        /// The error of the broker.
        reason: String,
    },
    /// The client could not be created, or the broker refused it.
    #[error("{what}: {source}")]
    Client {
        /// The operation.
        what: &'static str,
        /// The error of the client.
        #[source]
        source: rdkafka::error::KafkaError,
    },
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its path.
        what: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// An error of the shared functions: the watchdog, the process, the search for a port.
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
