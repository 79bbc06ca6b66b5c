//! Figures as a table for people and as JSON lines for machines, with the bars that they are held to.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::json;

/// One figure, and the bar for it if there is one.
pub(crate) struct Figure {
    pub(crate) subject: String,
    pub(crate) case: String,
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<Bar>,
}

/// A limit, and on which side of it is good.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "not every bench has bars on both sides")]
pub(crate) enum Bar {
    AtMost(f64),
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
    pub(crate) fn is_ok(&self) -> bool {
        self.bar.is_none_or(|bar| bar.holds(self.value))
    }

    fn json(&self) -> String {
        let mut line = json!({
            "bench": "balance",
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

    fn row(&self) -> String {
        let Self { subject, case, metric, value, unit, .. } = self;
        if !value.is_finite() {
            return format!("{case:<26} {subject:<38} {metric:<30} missing: the threads did not run at the same time");
        }
        let mut row = format!("{case:<26} {subject:<38} {metric:<30} {value:>12.2} {unit:<9}");
        if let Some(bar) = self.bar {
            let verdict = if self.is_ok() { "ok" } else { "MISSED" };
            let _ = write!(row, " bar {:<10} {verdict}", bar.limit());
        }
        row
    }
}

fn print(figures: &[Figure]) {
    for figure in figures {
        println!("{}", figure.row());
    }
}

fn write_json(figures: &[Figure], path: &str) -> std::io::Result<()> {
    let lines: String = figures.iter().map(|figure| figure.json() + "\n").collect();
    // Two benches write one file, one after the other.
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(lines.as_bytes())
}

/// Of those that are numbers; none if there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a benchmark is told on its command line.
pub(crate) struct Options {
    pub(crate) quick: bool,
    json: Option<String>,
    check: bool,
}

impl Options {
    pub(crate) fn read() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let json = args.iter().position(|arg| arg == "--json").and_then(|at| args.get(at + 1)).cloned();
        let has = |name: &str| args.iter().any(|arg| arg == name);
        Self { quick: has("--quick"), json, check: has("--check") }
    }

    /// Prints, writes, and tells whether all bars hold, if somebody wants to know.
    pub(crate) fn finish(&self, figures: &[Figure]) -> std::process::ExitCode {
        print(figures);
        if let Some(path) = &self.json {
            write_json(figures, path).expect("the JSON file can be written");
        }
        let missed = figures.iter().any(|figure| !figure.is_ok());
        if self.check && missed { std::process::ExitCode::FAILURE } else { std::process::ExitCode::SUCCESS }
    }
}
