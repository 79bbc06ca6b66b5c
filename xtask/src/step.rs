//! A series of steps: each is named, timed and runs whatever became of the one before, so that one run shows all
//! faults.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tidegate_figures::align;

/// What became of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// It could not run here, and why; said aloud, and no failure.
    Missing(String),
    /// It passed, but for these tests only when they were asked once more, alone.
    Flaky(Vec<String>),
    Failed(String),
}

impl From<Result<()>> for Outcome {
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => Self::Failed(format!("{error:#}")),
        }
    }
}

/// The steps so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration, Outcome)>,
    only: Vec<String>,
}

impl Steps {
    /// Runs only the steps of these names; all when there are none.
    pub(crate) fn only(names: &[String]) -> Self {
        Self { done: Vec::new(), only: names.to_vec() }
    }

    /// Whether a step of this name runs.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Runs one step.
    pub(crate) fn run<T: Into<Outcome>>(&mut self, name: &'static str, step: impl FnOnce() -> T) {
        if !self.wants(name) {
            return;
        }
        eprintln!("\n=== {name}");
        let start = Instant::now();
        let outcome = step().into();
        if let Outcome::Failed(why) = &outcome {
            eprintln!("=== {name} failed: {why}");
        }
        self.done.push((name, start.elapsed(), outcome));
    }

    /// Prints the summary; an error when a step failed or none ran.
    pub(crate) fn finish(self) -> Result<()> {
        if self.done.is_empty() {
            bail!("no step is called {}", self.only.join(" or "));
        }
        let rows: Vec<Vec<String>> = self.done.iter().map(|(name, took, outcome)| row(name, *took, outcome)).collect();
        println!("\n{}", align(&["step", "result", "seconds"], &rows, 2));
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("\n{} steps in {:.1} minutes", self.done.len(), total.as_secs_f64() / 60.0);
        let failed = self.done.iter().filter(|(.., outcome)| matches!(outcome, Outcome::Failed(_))).count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.done.len());
        }
        Ok(())
    }
}

fn row(name: &str, took: Duration, outcome: &Outcome) -> Vec<String> {
    let result = match outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Missing(why) => format!("MISSING: {why}"),
        Outcome::Flaky(tests) => format!("passed, FLAKY: {}", tests.join(", ")),
        Outcome::Failed(why) => format!("FAILED: {}", start_of(why)),
    };
    vec![name.to_owned(), result, format!("{:.1}", took.as_secs_f64())]
}

/// What fits into a table; the whole was printed when the step failed.
fn start_of(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_stops_no_other_and_fails_the_whole() {
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
    fn what_is_missing_fails_nothing() {
        let mut steps = Steps::default();
        steps.run("io_uring", || Outcome::Missing("forbidden here".to_owned()));
        assert!(steps.finish().is_ok());
    }

    #[test]
    fn a_misspelled_step_is_an_error() {
        let mut steps = Steps::only(&["tests-epol".to_owned()]);
        steps.run("tests-epoll", || Ok(()));
        assert!(steps.finish().is_err());
    }
}
