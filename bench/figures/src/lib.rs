//! What the libraries' benchmarks have in common: figures as a table for people and as JSON lines for machines, with the
//! bars that they are held to.

mod stolen;
mod table;

use std::{
    fs::OpenOptions,
    io::Write as _,
    process::{Command, ExitCode},
};

use serde_json::json;

pub use stolen::Stolen;
pub use table::align;

/// One figure, and the bar for it if there is one.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured: ours, a peer, the floor.
    pub subject: String,
    /// Under which load.
    pub case: String,
    /// Which of its properties.
    pub metric: String,
    /// How much; not a number if it could not be measured.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
    /// What it is held to.
    pub bar: Option<Bar>,
}

/// A limit, and on which side of it is good.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// Less is better.
    AtMost(f64),
    /// More is better.
    AtLeast(f64),
}

impl Bar {
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
    /// Whether its bar holds, if there is one, for what that was measured.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.bar.is_none_or(|bar| self.value.is_finite() && bar.holds(self.value))
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
        if let Some(bar) = self.bar {
            line["bar"] = json!({ "limit": bar.limit(), "ok": self.is_ok() });
        }
        line.to_string()
    }

    fn row(&self) -> Vec<String> {
        let value =
            if self.value.is_finite() { format!("{:.2} {}", self.value, self.unit) } else { "missing".to_owned() };
        let verdict = match self.bar {
            None => "",
            Some(_) if !self.value.is_finite() => "unknown",
            Some(_) if self.is_ok() => "met",
            Some(_) => "MISSED",
        };
        let limit = self.bar.map(Bar::limit).unwrap_or_default();
        vec![self.case.clone(), self.subject.clone(), self.metric.clone(), limit, verdict.to_owned(), value]
    }
}

/// What a benchmark is told on its command line.
#[derive(Clone, Debug)]
pub struct Options {
    arguments: Vec<String>,
    stolen: Stolen,
}

impl Options {
    /// Those of this process.
    #[must_use]
    pub fn read() -> Self {
        // `cargo bench` adds one of its own.
        let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        Self { arguments, stolen: Stolen::begin() }
    }

    /// All of them, for a benchmark that runs itself again with orders of its own.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }

    /// Whether a flag was given.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.arguments.iter().any(|argument| argument == flag)
    }

    /// What follows a flag.
    #[must_use]
    pub fn value(&self, flag: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == flag)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// A tenth of the time.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.has("--quick")
    }

    /// Prints the table, appends JSON lines to the file of `--json`, and tells whether all bars hold, if `--check` asks.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[must_use]
    pub fn finish(&self, bench: &str, figures: &[Figure]) -> ExitCode {
        let rows: Vec<Vec<String>> = figures.iter().map(Figure::row).collect();
        println!("# {}\n", self.stolen.note());
        println!("{}", align(&["case", "subject", "figure", "bar", "", "value"], &rows, 5));
        if let Some(path) = self.value("--json") {
            let lines: String = figures.iter().map(|figure| figure.json(bench) + "\n").collect();
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(lines.as_bytes())).expect("the JSON file can be written");
        }
        let is_missed = figures.iter().any(|figure| !figure.is_ok());
        if self.has("--check") && is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Runs this program again with `arguments`, as a process of its own, and returns what it prints.
///
/// # Panics
/// When it fails.
#[must_use]
pub fn again(arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program).args(arguments).output().expect("this program runs again");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The least of them: what else a machine does can only add to a time.
#[must_use]
pub fn best(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

/// Of those that are numbers; none if there is none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
