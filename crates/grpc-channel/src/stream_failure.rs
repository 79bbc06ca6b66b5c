//! The meaning of a stream failure for the call and for its backend.

use std::error::Error;

use h2::Reason;
use tidegate_balance::CallOutcome;
use tonic::{Code, Status};

/// The failure of a call without a status of the server.
pub(crate) struct StreamFailure {
    pub(crate) status: Status,
    /// The outcome that the balancer counts for the backend.
    pub(crate) outcome: CallOutcome,
}

impl StreamFailure {
    /// Classifies the error by its origin: the connection, a reset of the server, or a reset of this client, which refuses a
    /// response. Codes of resets are mapped as the gRPC protocol does ("HTTP2 Transport Mapping", Errors).
    pub(crate) fn new(error: &hyper::Error) -> Self {
        let (code, outcome, what) = match http2_error(error) {
            Some(reset) if reset.is_reset() && reset.is_remote() => of_server_reset(reset.reason()),
            Some(reset) if reset.is_reset() && !reset.is_library() => {
                (Code::Cancelled, CallOutcome::Neutral, "the client ended the call")
            }
            Some(reset) if reset.is_reset() => (
                Code::Internal,
                CallOutcome::Neutral,
                "the client refused the response, for instance because its head is longer than \
                 response_head_bytes_max",
            ),
            _ => (Code::Unavailable, CallOutcome::Failure, "the connection was lost"),
        };
        Self { status: Status::new(code, describe(what, error)), outcome }
    }
}

/// Code and outcome for a reset by the server. A server that ends or limits single calls is not unhealthy.
fn of_server_reset(reason: Option<Reason>) -> (Code, CallOutcome, &'static str) {
    const WHAT: &str = "the server reset the call";
    match reason {
        Some(Reason::REFUSED_STREAM) => (Code::Unavailable, CallOutcome::Neutral, WHAT),
        Some(Reason::CANCEL) => (Code::Cancelled, CallOutcome::Neutral, WHAT),
        Some(Reason::ENHANCE_YOUR_CALM) => (Code::ResourceExhausted, CallOutcome::Neutral, WHAT),
        Some(Reason::INADEQUATE_SECURITY) => (Code::PermissionDenied, CallOutcome::Failure, WHAT),
        _ => (Code::Internal, CallOutcome::Failure, WHAT),
    }
}

/// Whether the server certainly did not begin the call, so that any call can be sent again (RFC 9113, sections 6.8 and 8.7).
pub(crate) fn is_unprocessed(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| {
        let refused = error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        let gone = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        refused || gone
    })
}

fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            return Some(error);
        }
        source = cause.source();
    }
    None
}

/// The error and its sources in one line.
fn describe(what: &str, error: &hyper::Error) -> String {
    let mut text = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_of_the_server_have_a_code_each() {
        for (reason, code) in [
            (Reason::REFUSED_STREAM, Code::Unavailable),
            (Reason::CANCEL, Code::Cancelled),
            (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
            (Reason::INTERNAL_ERROR, Code::Internal),
            (Reason::PROTOCOL_ERROR, Code::Internal),
        ] {
            assert_eq!(of_server_reset(Some(reason)).0, code, "{reason:?}");
        }
    }
}
