//! Why a Kafka source, or a topic for letters, cannot be made or cannot go on.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Why a Kafka source cannot be made or cannot go on. What the client mends by itself, such as a broker that is away, is
/// none of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client refuses the settings.
    #[error("the settings of the Kafka client are not right: {0}")]
    Settings(KafkaError),
    /// The topics, or the group, cannot be subscribed to, whatever a broker says: there is none, or a pattern is no regular
    /// expression of the client's.
    #[error("nothing can be subscribed to: {0}")]
    Subscription(String),
    /// A setting that only this source may make.
    #[error("`{0}` cannot be set: the source depends on its own value")]
    Reserved(String),
    /// The system gives no thread.
    #[error("no thread for the Kafka client")]
    Thread(#[source] std::io::Error),
    /// A topic of the subscription is not there.
    #[error("a topic does not exist, or may not be read: {0}; create it, or mend the list of topics")]
    NoTopic(RDKafkaErrorCode),
    /// The position from which to read is not in the log any more, and it was said that this must not be passed over.
    #[error(
        "{lane}: the log does not hold the committed position (any more); records may be lost: choose where to start \
         (`start`), or set the group's offset, and start again"
    )]
    OutOfRange {
        /// The lane.
        lane: String,
    },
    /// The broker does not let us.
    #[error("Kafka refuses: {0}; see to the login, the rights and the group of this client")]
    Refused(RDKafkaErrorCode),
    /// A broker's certificate is of no authority that we trust, or not its own.
    #[error("a broker is not trusted: {0}; see to `ssl.ca.location`")]
    Untrusted(String),
    /// A record's bytes are damaged, or compressed as this build cannot read.
    #[error("{lane}: a batch cannot be read: {code}")]
    Damaged {
        /// The lane.
        lane: String,
        /// What is wrong with it.
        code: RDKafkaErrorCode,
    },
    /// The client says that it cannot go on: for instance, another one has taken its `group.instance.id`.
    #[error("the Kafka client cannot go on: {0}")]
    Fatal(RDKafkaErrorCode),
    /// The client does not take over what the group has assigned to it.
    #[error("the Kafka client does not take over its partitions: {0}")]
    Assign(KafkaError),
    /// The last marks were not confirmed before the time to close was over. What they cover comes again.
    #[error("the last commit failed, its records will come again: {0}")]
    NotCommitted(String),
    /// The thread of the client has ended without a word: a defect of this library.
    #[error("the thread of the Kafka client has ended; please report it")]
    Broken,
}

impl Error {
    /// The error of a broker that is not the one that it should be. The client would ask it again and again, as one that is
    /// away; it has no code of its own for it, so its words count, which are OpenSSL's.
    pub(super) fn of_certificate(error: &KafkaError, reason: &str) -> Option<Self> {
        let is_tls = error.rdkafka_error_code() == Some(RDKafkaErrorCode::SSL);
        (is_tls && reason.contains("certificate verify failed")).then(|| Self::Untrusted(reason.to_owned()))
    }

    /// The error that ends the source, or `None` for what passes.
    pub(super) fn of(error: &KafkaError, lane: impl FnOnce() -> String) -> Option<Self> {
        use RDKafkaErrorCode as Code;
        let code = match error {
            KafkaError::MessageConsumptionFatal(code) => return Some(Self::Fatal(*code)),
            KafkaError::MessageConsumption(code) => *code,
            _ => return None,
        };
        match code {
            Code::AutoOffsetReset => Some(Self::OutOfRange { lane: lane() }),
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic => Some(Self::NoTopic(code)),
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::InconsistentGroupProtocol
            | Code::InvalidGroupId
            | Code::InvalidSessionTimeout
            | Code::UnsupportedVersion
            | Code::Authentication => Some(Self::Refused(code)),
            Code::BadMessage | Code::BadCompression | Code::InvalidMessage | Code::NotImplemented => {
                Some(Self::Damaged { lane: lane(), code })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_does_not_end_the_source() {
        let of = |error: &KafkaError| Error::of(error, || "t/0".to_owned());
        assert!(of(&KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown)).is_none());
        assert!(of(&KafkaError::MessageConsumption(RDKafkaErrorCode::RebalanceInProgress)).is_none());
        let lost = of(&KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset));
        assert!(lost.is_some_and(|error| error.to_string().starts_with("t/0: ")));
        let fenced = of(&KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::FencedInstanceId));
        assert!(matches!(fenced, Some(Error::Fatal(_))));
    }

    #[test]
    fn a_broken_handshake_passes_and_a_wrong_certificate_does_not() {
        let of = |code, reason| Error::of_certificate(&KafkaError::Global(code), reason);
        assert!(of(RDKafkaErrorCode::SSL, "SSL handshake failed: Disconnected").is_none());
        assert!(of(RDKafkaErrorCode::BrokerTransportFailure, "certificate verify failed").is_none());
        assert!(of(RDKafkaErrorCode::SSL, "error:0A000086:SSL routines::certificate verify failed: why").is_some());
    }
}
