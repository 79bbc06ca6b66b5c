//! A series of named and timed steps. A failed step does not stop the others, so that a single run shows all failures.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tidegate_figures::align;

/// The result of a step.
#[derive(Debug)]
pub(crate) enum StepOutcome {
    Passed,
    /// The step cannot run here, for this reason. Reported, and not a failure.
    Missing(String),
    /// The step passed, but these tests only passed on a retry.
    Flaky(Vec<String>),
    Failed(String),
}

impl From<Result<()>> for StepOutcome {
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => Self::Failed(format!("{error:#}")),
        }
    }
}

/// The finished steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration, StepOutcome)>,
    only: Vec<String>,
}

impl Steps {
    /// Selects steps by name; all of them if `names` is empty.
    pub(crate) fn only(names: &[String]) -> Self {
        Self { done: Vec::new(), only: names.to_vec() }
    }

    /// Whether a step with this name is selected.
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Runs a step, if it is selected.
    pub(crate) fn run<T: Into<StepOutcome>>(&mut self, name: &'static str, step: impl FnOnce() -> T) {
        if !self.selects(name) {
            return;
        }
        eprintln!("\n=== {name}");
        let start = Instant::now();
        let outcome = step().into();
        if let StepOutcome::Failed(why) = &outcome {
            eprintln!("=== {name} failed: {why}");
        }
        self.done.push((name, start.elapsed(), outcome));
    }

    /// Prints the summary. Returns an error if a step failed or none ran.
    pub(crate) fn finish(self) -> Result<()> {
        if self.done.is_empty() {
            bail!("unknown step {}", self.only.join(" or "));
        }
        let rows: Vec<Vec<String>> = self.done.iter().map(|(name, took, outcome)| row(name, *took, outcome)).collect();
        println!("\n{}", align(&["step", "result", "seconds"], &rows, 2));
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("\n{} steps in {:.1} minutes", self.done.len(), total.as_secs_f64() / 60.0);
        let failed = self.done.iter().filter(|(.., outcome)| matches!(outcome, StepOutcome::Failed(_))).count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.done.len());
        }
        Ok(())
    }
}

fn row(name: &str, took: Duration, outcome: &StepOutcome) -> Vec<String> {
    let result = match outcome {
        StepOutcome::Passed => "passed".to_owned(),
        StepOutcome::Missing(why) => format!("MISSING: {why}"),
        StepOutcome::Flaky(tests) => format!("passed, FLAKY: {}", tests.join(", ")),
        StepOutcome::Failed(why) => format!("FAILED: {}", start_of(why)),
    };
    vec![name.to_owned(), result, format!("{:.1}", took.as_secs_f64())]
}

/// The start of an error, for the table. The full text was printed when the step failed.
fn start_of(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_step_fails_the_run_after_all_steps() {
        let mut steps = Steps::default();
        let mut ran = Vec::new();
        steps.run("first", || Err(anyhow::anyhow!("broken")));
        steps.run("second", || {
            ran.push("second");
            Ok(())
        });
        assert_eq!(ran, ["second"]);
        assert!(steps.finish().is_err());
    }

    #[test]
    fn missing_step_does_not_fail_the_run() {
        let mut steps = Steps::default();
        steps.run("io_uring", || StepOutcome::Missing("forbidden here".to_owned()));
        assert!(steps.finish().is_ok());
    }

    #[test]
    fn misspelled_step_is_an_error() {
        let mut steps = Steps::only(&["tests-epol".to_owned()]);
        steps.run("tests-epoll", || Ok(()));
        assert!(steps.finish().is_err());
    }
}
