//! Errors of the Kafka source and the dead-letter topic.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Why a Kafka source cannot be built or has failed. Transient errors, such as an unreachable broker, are handled by the
/// client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaSourceError {
    /// The client rejects the settings.
    #[error("invalid settings of the Kafka client: {0}")]
    Settings(KafkaError),
    /// The topics or the group are invalid: none are given, or a pattern is not a regular expression.
    #[error("invalid subscription: {0}")]
    Subscription(String),
    /// A property that the source sets itself.
    #[error("property `{0}` is reserved by the source")]
    Reserved(String),
    /// A thread cannot be started.
    #[error("cannot start a thread for the Kafka client")]
    Thread(#[source] std::io::Error),
    /// A topic does not exist or may not be read.
    #[error("topic does not exist or may not be read: {0}; create it or correct the list of topics")]
    NoTopic(RDKafkaErrorCode),
    /// The next offset is not in the log, and [`StartOffset::Fail`](crate::source::kafka::StartOffset::Fail) applies.
    #[error(
        "{lane}: committed offset is not in the log, records may be lost; choose where to start (`start`) or set the \
         offset of the group, and restart"
    )]
    OutOfRange {
        /// The lane.
        lane: String,
    },
    /// The broker rejects the client.
    #[error("broker rejected the client: {0}; check its credentials, permissions and group")]
    Refused(RDKafkaErrorCode),
    /// The certificate of a broker is not signed by a trusted authority, or does not match the broker.
    #[error("broker certificate is not trusted: {0}; check `ssl.ca.location`")]
    Untrusted(String),
    /// A batch is corrupt, or uses a compression that this build does not support.
    #[error("{lane}: cannot read a batch: {code}")]
    Damaged {
        /// The lane.
        lane: String,
        /// The error code.
        code: RDKafkaErrorCode,
    },
    /// A fatal error of the client, for instance if another member has taken its `group.instance.id`.
    #[error("fatal error of the Kafka client: {0}")]
    Fatal(RDKafkaErrorCode),
    /// The client cannot apply the assignment of the group.
    #[error("cannot assign partitions: {0}")]
    Assign(KafkaError),
    /// The last commits were not confirmed in time; their records will be delivered again.
    #[error("last commit failed, its records will be delivered again: {0}")]
    NotCommitted(String),
    /// The member thread panicked: a bug in this library.
    #[error("the thread of the Kafka client has ended; please report this bug")]
    Internal,
}

impl KafkaSourceError {
    /// The error for an untrusted certificate. librdkafka retries forever and has no error code for it, so the text,
    /// which is OpenSSL's, decides.
    pub(super) fn of_certificate(error: &KafkaError, reason: &str) -> Option<Self> {
        let is_tls = error.rdkafka_error_code() == Some(RDKafkaErrorCode::SSL);
        (is_tls && reason.contains("certificate verify failed")).then(|| Self::Untrusted(reason.to_owned()))
    }

    /// The error that ends the source; `None` for transient errors.
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
    fn transient_errors_do_not_end_the_source() {
        let of = |error: &KafkaError| KafkaSourceError::of(error, || "t/0".to_owned());
        assert!(of(&KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown)).is_none());
        assert!(of(&KafkaError::MessageConsumption(RDKafkaErrorCode::RebalanceInProgress)).is_none());
        let lost = of(&KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset));
        assert!(lost.is_some_and(|error| error.to_string().starts_with("t/0: ")));
        let fenced = of(&KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::FencedInstanceId));
        assert!(matches!(fenced, Some(KafkaSourceError::Fatal(_))));
    }

    #[test]
    fn untrusted_certificate_ends_the_source() {
        let of = |code, reason| KafkaSourceError::of_certificate(&KafkaError::Global(code), reason);
        assert!(of(RDKafkaErrorCode::SSL, "SSL handshake failed: Disconnected").is_none());
        assert!(of(RDKafkaErrorCode::BrokerTransportFailure, "certificate verify failed").is_none());
        assert!(of(RDKafkaErrorCode::SSL, "error:0A000086:SSL routines::certificate verify failed: why").is_some());
    }
}
