//! Health checks for orchestrators and load balancers.
//!
//! Liveness means that the process answers. Readiness means that new clients are welcome: a gateway that is shutting down
//! still accepts clients for `timeouts.shutdown_delay`, but is not ready, so that load balancers take it out first. The state of
//! Postgres counts for neither, because a restart of the gateway does not repair it.

use hyper::StatusCode;
use tidegate_proxy::plane::Phase;

/// Status and text for the path of a health check; `None` for any other path.
pub(super) fn check(path: &str, phase: Phase) -> Option<(StatusCode, &'static str)> {
    match path {
        "/live" => Some((StatusCode::OK, "live\n")),
        "/ready" => Some(readiness(phase)),
        _ => None,
    }
}

const fn readiness(phase: Phase) -> (StatusCode, &'static str) {
    match phase {
        Phase::Active => (StatusCode::OK, "ready\n"),
        // Clients may log in and wait for RESUME.
        Phase::Paused => (StatusCode::OK, "ready: paused\n"),
        Phase::Suspended => (StatusCode::SERVICE_UNAVAILABLE, "not ready: suspended\n"),
        Phase::WaitingForClients | Phase::WaitingForTransactions | Phase::Stopping => {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready: shutting down\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OP-22.
    #[test]
    fn readiness_follows_the_phase() {
        for (phase, ready) in [
            (Phase::Active, true),
            (Phase::Paused, true),
            (Phase::Suspended, false),
            (Phase::WaitingForClients, false),
            (Phase::WaitingForTransactions, false),
            (Phase::Stopping, false),
        ] {
            let status = |path: &str| check(path, phase).map(|(status, _)| status);
            let expected = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            assert_eq!((status("/live"), status("/ready")), (Some(StatusCode::OK), Some(expected)), "{phase:?}");
        }
        assert!(check("/healthz", Phase::Active).is_none());
    }
}
