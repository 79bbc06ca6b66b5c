//! Shared parts of the libraries' benchmarks: command-line options, and figures with targets, as a table and as JSON
//! lines.

mod stolen;
mod table;

use std::{
    fs::OpenOptions,
    io::{IsTerminal as _, Write as _},
    process::{Command, ExitCode},
};

use serde_json::json;

pub use stolen::Stolen;
pub use table::align;

/// A figure, with an optional target.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The measured program: this library, a peer, or a lower bound.
    pub subject: String,
    /// The load.
    pub case: String,
    /// The measured property.
    pub metric: String,
    /// The value; NaN if it could not be measured.
    pub value: f64,
    /// The unit.
    pub unit: &'static str,
    /// The target.
    pub target: Option<FigureTarget>,
}

/// A target: a limit and its direction.
#[derive(Clone, Copy, Debug)]
pub enum FigureTarget {
    /// Lower is better.
    AtMost(f64),
    /// Higher is better.
    AtLeast(f64),
}

impl FigureTarget {
    fn limit(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl Figure {
    /// Whether the target is met; true without a target.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.target.is_none_or(|target| self.value.is_finite() && target.holds(self.value))
    }

    fn json(&self, bench: &str) -> String {
        let mut line = json!({
            "bench": bench,
            "subject": self.subject,
            "case": self.case,
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
        });
        if let Some(target) = self.target {
            line["target"] = json!({ "limit": target.limit(), "ok": self.is_ok() });
        }
        line.to_string()
    }

    fn row(&self) -> Vec<String> {
        let value =
            if self.value.is_finite() { format!("{:.2} {}", self.value, self.unit) } else { "missing".to_owned() };
        let verdict = match self.target {
            None => "",
            Some(_) if !self.value.is_finite() => "unknown",
            Some(_) if self.is_ok() => "met",
            Some(_) => "MISSED",
        };
        let limit = self.target.map(FigureTarget::limit).unwrap_or_default();
        vec![self.case.clone(), self.subject.clone(), self.metric.clone(), limit, verdict.to_owned(), value]
    }
}

/// Command-line options of a benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    arguments: Vec<String>,
    stolen: Stolen,
}

impl Options {
    /// Parses the options of this process. `about` describes the benchmark; `has_cases` allows a selection of cases and
    /// rounds.
    ///
    /// # Errors
    /// The exit code, after help or an error was printed.
    pub fn read(about: &str, has_cases: bool) -> Result<Self, ExitCode> {
        Self::from_words(words(), has_cases).map_err(|trouble| match trouble {
            None => {
                println!("{about}\n\n{}", help(has_cases));
                ExitCode::SUCCESS
            }
            Some(trouble) => {
                eprintln!("error: {trouble}\n\n{}", help(has_cases));
                ExitCode::from(2)
            }
        })
    }

    /// Parses options. The error is the reason of a refusal, or `None` for help.
    fn from_words(arguments: Vec<String>, has_cases: bool) -> Result<Self, Option<String>> {
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-h" | "--help" => return Err(None),
                "--quick" | "--check" => {}
                "--json" if words.next().is_none() => return Err(Some("--json needs a FILE".to_owned())),
                "--json" => {}
                "--case" if has_cases && words.next().is_none() => {
                    return Err(Some("--case needs a PART".to_owned()));
                }
                "--case" if has_cases => {}
                "--rounds" if has_cases => {
                    let rounds = words.next().and_then(|rounds| rounds.parse().ok());
                    if rounds.is_none_or(|rounds: usize| rounds == 0) {
                        return Err(Some("--rounds needs a number of at least 1".to_owned()));
                    }
                }
                other => return Err(Some(format!("unknown option {other}"))),
            }
        }
        Ok(Self { arguments, stolen: Stolen::begin() })
    }

    fn has(&self, flag: &str) -> bool {
        self.arguments.iter().any(|argument| argument == flag)
    }

    fn value(&self, flag: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == flag)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Whether a case is selected.
    #[must_use]
    pub fn selects(&self, case: &str) -> bool {
        self.value("--case").is_none_or(|part| case.contains(part))
    }

    /// The requested number of rounds.
    #[must_use]
    pub fn rounds(&self) -> Option<usize> {
        self.value("--rounds")?.parse().ok()
    }

    /// Whether to run a tenth of the time.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.has("--quick")
    }

    /// Prints the table, and appends JSON lines to the file of `--json`. Returns a failure if `--check` is set and a
    /// target is missed.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    #[must_use]
    pub fn finish(&self, bench: &str, figures: &[Figure]) -> ExitCode {
        let rows: Vec<Vec<String>> = figures.iter().map(Figure::row).collect();
        println!("# {}\n", self.stolen.note());
        println!("{}", align(&["case", "subject", "figure", "target", "", "value"], &rows, 5));
        if let Some(path) = self.value("--json") {
            let lines: String = figures.iter().map(|figure| figure.json(bench) + "\n").collect();
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(lines.as_bytes())).expect("the JSON file can be written");
        }
        let is_missed = figures.iter().any(|figure| !figure.is_ok());
        if self.has("--check") && is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

fn help(has_cases: bool) -> String {
    let cases = "
  --case PART    Only cases whose names contain PART
  --rounds N     Number of rounds";
    format!(
        "Options (behind `--`):
  --quick        A tenth of the time
  --json FILE    Append the figures to FILE, a line of JSON each
  --check        Exit with 1 when a target is missed{}
  -h, --help     Print this",
        if has_cases { cases } else { "" }
    )
}

/// The arguments of the command line, without `--bench`, which `cargo bench` adds.
#[must_use]
pub fn words() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| argument != "--bench").collect()
}

/// Runs this program again with `arguments`, as a new process, and returns its output.
///
/// # Panics
/// Panics if it fails.
#[must_use]
pub fn again(arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{}", arguments.join(" "));
    }
    let output = Command::new(program).args(arguments).output().expect("this program can run again");
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The minimum of several times: disturbances can only add to a time.
#[must_use]
pub fn best(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

/// The minimum of the values that are not NaN.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_options_are_refused() {
        let read = |line: &str| Options::from_words(line.split_whitespace().map(str::to_owned).collect(), true).err();
        assert_eq!(read("--quick --json figures --case no-op --rounds 2 --check"), None);
        assert_eq!(read("--quick --help"), Some(None));
        for wrong in ["--fast", "--json", "--case", "--rounds", "--rounds none", "--rounds 0", "no-op"] {
            assert!(matches!(read(wrong), Some(Some(_))), "{wrong}");
        }
        let cases = ["--case", "no-op"].map(str::to_owned).to_vec();
        assert!(Options::from_words(cases, false).is_err(), "where there are none");
    }
}
