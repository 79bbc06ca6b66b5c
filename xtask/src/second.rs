//! Tests that failed are asked once more, alone: what fails again is broken; what passes then depends on the machine's
//! load, passes the step, and is named in the summary, so that somebody mends it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::step::Outcome;

/// More failures than so many are no matter of load.
const SECOND_LOOKS_MAX: usize = 3;

/// Runs `cargo test`, as `command` makes it, and what failed once more.
pub(crate) fn run(command: impl Fn() -> Command) -> Outcome {
    attempt(command).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

fn attempt(command: impl Fn() -> Command) -> Result<Outcome> {
    let (passed, failed) = watch(command().arg("--no-fail-fast"))?;
    if passed {
        return Ok(Outcome::Passed);
    }
    if failed.is_empty() || failed.len() > SECOND_LOOKS_MAX {
        return Ok(Outcome::Failed(format!("{} tests failed: {}", failed.len(), failed.join(", "))));
    }
    eprintln!("\n=== once more, alone: {}", failed.join(", "));
    let (passed, again) = watch(command().args(["--", "--test-threads", "1", "--exact"]).args(&failed))?;
    Ok(match passed {
        true => Outcome::Flaky(failed),
        false => Outcome::Failed(format!("failed twice: {}", again.join(", "))),
    })
}

/// Runs a command whose output is shown and read. Whether it succeeded, and which tests failed.
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

/// The test that a line of the test harness says has failed.
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
    fn what_passes_alone_is_named() {
        // The second time the arguments name the test.
        let script = r#"case "$*" in *room::first*) exit 0;; esac; echo 'test room::first ... FAILED'; exit 101"#;
        let Outcome::Flaky(names) = run(shell(script)) else { panic!("not flaky") };
        assert_eq!(names, ["room::first"]);
    }

    #[test]
    fn what_fails_twice_has_failed() {
        assert!(matches!(run(shell("echo 'test first ... FAILED'; exit 101")), Outcome::Failed(_)));
    }

    #[test]
    fn a_failure_without_a_name_has_failed() {
        assert!(matches!(run(shell("echo 'error: could not compile'; exit 101")), Outcome::Failed(_)));
    }

    #[test]
    fn many_failures_are_not_asked_again() {
        let script = "for name in a b c d; do echo \"test $name ... FAILED\"; done; exit $(($# > 2 ? 0 : 1))";
        assert!(matches!(run(shell(script)), Outcome::Failed(_)));
    }

    #[test]
    fn success_is_success() {
        assert!(matches!(run(shell("echo 'test first ... ok'")), Outcome::Passed));
    }
}
