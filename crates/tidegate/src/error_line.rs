//! An error and its causes in one line.

/// Joins the messages of an error and its causes. A cause that the message before it contains is left out: some errors repeat
/// their source in their own text.
#[must_use]
pub fn error_line(error: &anyhow::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    for message in error.chain().map(ToString::to_string) {
        if messages.last().is_none_or(|before| !before.contains(&message)) {
            messages.push(message);
        }
    }
    messages.join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("connection to db:5432 failed: {source}")]
    struct ConnectError {
        source: io::Error,
    }

    #[test]
    fn repeated_cause_is_left_out() {
        let source = io::Error::other("refused");
        let failed: Result<(), _> = Err(ConnectError { source });
        let error = failed.context("cannot start").expect_err("an error");
        assert_eq!(error_line(&error), "cannot start: connection to db:5432 failed: refused");
    }
}
