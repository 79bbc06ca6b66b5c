//! Notices of a server: those that mean lost changes, and the log lines of the others.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    client::ServerReport,
    error::{ChangeStreamError, LostChanges, classify},
};

/// A notice that the server repeats is logged again after this time: a walsender that waits for a standby repeats it ten times a
/// second.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// Checks and logs the notices of a connection.
#[derive(Debug, Default)]
pub(super) struct NoticeLog {
    /// The last logged text, and when it was logged.
    last: Option<(String, Instant)>,
}

impl NoticeLog {
    /// Postgres 18 drops the changes of a publication that it does not find, and sends only a warning (CH-30, CH-37).
    pub(super) fn check(&mut self, report: &ServerReport) -> Result<(), ChangeStreamError> {
        let is_warning = report.severity == "WARNING";
        // A standby that is away has the same code: the server waits for it, and leaves nothing out. Names of parameters are not
        // translated.
        let is_standby = report.message.contains("synchronized_standby_slots");
        if is_warning && report.code == "55000" && !is_standby {
            let (_, remedy) = classify(report);
            let reason = format!("the server left changes out: {}", report.message);
            return Err(LostChanges { reason, remedy: remedy.to_owned() }.into());
        }
        if self.is_new(&report.message) {
            let ServerReport { code, message: text, .. } = report;
            if is_warning {
                tracing::warn!(code, text, "warning of the server");
            } else {
                tracing::info!(severity = report.severity, code, text, "notice of the server");
            }
        }
        Ok(())
    }

    /// Whether the text differs from the last one, or was logged long ago.
    fn is_new(&mut self, text: &str) -> bool {
        let now = Instant::now();
        let is_repeated =
            self.last.as_ref().is_some_and(|(last, at)| last == text && now.duration_since(*at) < REPEAT_AFTER);
        if !is_repeated {
            self.last = Some((text.to_owned(), now));
        }
        !is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDBY: &str =
        "replication slot \"a\" specified in parameter \"synchronized_standby_slots\" does not have active_pid";

    #[test]
    fn only_a_missing_publication_is_a_loss() {
        let warning = |message: &str| ServerReport {
            severity: "WARNING".to_owned(),
            code: "55000".to_owned(),
            message: message.to_owned(),
            ..ServerReport::default()
        };
        let mut notices = NoticeLog::default();
        assert!(notices.check(&warning("skipped loading publication \"p\"")).is_err());
        assert!(notices.check(&warning(STANDBY)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_notice_is_logged_once_a_minute() {
        let mut notices = NoticeLog::default();
        assert!(notices.is_new(STANDBY));
        assert!(!notices.is_new(STANDBY));
        assert!(notices.is_new("another"));
        tokio::time::advance(REPEAT_AFTER).await;
        assert!(notices.is_new("another"));
    }
}
