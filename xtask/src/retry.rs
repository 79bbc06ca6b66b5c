//! Retries of failed tests, one at a time. A test that fails twice is broken. A test that passes the retry depends on
//! the load of the machine: the step passes, and the summary names the test as flaky, to be fixed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::step::StepOutcome;

/// More failed tests than this are not explained by load.
const RETRIES_MAX: usize = 3;

/// Runs `cargo test`, as `command` creates it, and retries failed tests.
pub(crate) fn run(command: impl Fn() -> Command) -> StepOutcome {
    attempt(command).unwrap_or_else(|error| StepOutcome::Failed(format!("{error:#}")))
}

fn attempt(command: impl Fn() -> Command) -> Result<StepOutcome> {
    let (passed, failed) = watch(command().arg("--no-fail-fast"))?;
    if passed {
        return Ok(StepOutcome::Passed);
    }
    if failed.is_empty() || failed.len() > RETRIES_MAX {
        return Ok(StepOutcome::Failed(format!("{} tests failed: {}", failed.len(), failed.join(", "))));
    }
    eprintln!("\n=== retry: {}", failed.join(", "));
    let (passed, again) = watch(command().args(["--", "--test-threads", "1", "--exact"]).args(&failed))?;
    Ok(match passed {
        true => StepOutcome::Flaky(failed),
        false => StepOutcome::Failed(format!("failed twice: {}", again.join(", "))),
    })
}

/// Runs a command, prints its output, and returns whether it succeeded and which tests failed.
fn watch(command: &mut Command) -> Result<(bool, Vec<String>)> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("start {command:?}"))?;
    let output = child.stdout.take().context("the output is piped")?;
    let mut failed = Vec::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        failed.extend(failure(&line));
        println!("{line}");
    }
    Ok((child.wait()?.success(), failed))
}

/// The failed test that a line of the test harness names.
fn failure(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.trim_end_matches(" - should panic").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> impl Fn() -> Command {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        }
    }

    #[test]
    fn test_that_passes_a_retry_is_flaky() {
        // The retry has the test name among its arguments.
        let script = r#"case "$*" in *room::first*) exit 0;; esac; echo 'test room::first ... FAILED'; exit 101"#;
        let StepOutcome::Flaky(names) = run(shell(script)) else { panic!("not flaky") };
        assert_eq!(names, ["room::first"]);
    }

    #[test]
    fn test_that_fails_twice_has_failed() {
        assert!(matches!(run(shell("echo 'test first ... FAILED'; exit 101")), StepOutcome::Failed(_)));
    }

    #[test]
    fn failure_without_a_test_name_has_failed() {
        assert!(matches!(run(shell("echo 'error: could not compile'; exit 101")), StepOutcome::Failed(_)));
    }

    #[test]
    fn many_failures_are_not_retried() {
        let script = "for name in a b c d; do echo \"test $name ... FAILED\"; done; exit $(($# > 2 ? 0 : 1))";
        assert!(matches!(run(shell(script)), StepOutcome::Failed(_)));
    }

    #[test]
    fn success_has_no_retry() {
        assert!(matches!(run(shell("echo 'test first ... ok'")), StepOutcome::Passed));
    }
}
