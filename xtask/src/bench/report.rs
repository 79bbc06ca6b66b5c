//! Figures of a benchmark, some with a target; as tables and as JSON lines.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tidegate_figures::{Stolen, align};

use crate::machine;

/// The target of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TargetResult {
    limit: String,
    ok: bool,
}

/// The side of the limit that meets the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MetricTarget {
    AtMost(f64),
    AtLeast(f64),
}

impl MetricTarget {
    fn judge(self, value: f64) -> TargetResult {
        match self {
            Self::AtMost(most) => TargetResult { limit: format!("<= {most:.2}"), ok: value <= most },
            Self::AtLeast(least) => TargetResult { limit: format!(">= {least:.2}"), ok: value >= least },
        }
    }
}

/// A figure of a subject in a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    bench: &'static str,
    subject: String,
    case: String,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetResult>,
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct BenchReport {
    bench: &'static str,
    /// Machine, versions, commit, load.
    notes: Vec<String>,
    stolen: Stolen,
    figures: Vec<Figure>,
}

impl BenchReport {
    pub(crate) fn new(bench: &'static str) -> Self {
        let notes = vec![
            format!("machine: {}; load average before the run {}", machine::describe(), machine::load_average()),
            format!("commit: {}", crate::repository::commit()),
        ];
        Self { bench, notes, stolen: Stolen::begin(), figures: Vec::new() }
    }

    /// Adds a line above the tables.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn add(&mut self, subject: &str, case: &str, metric: Metric, value: f64, limit: Option<MetricTarget>) {
        self.figures.push(Figure {
            bench: self.bench,
            subject: subject.to_owned(),
            case: case.to_owned(),
            metric: metric.name,
            value,
            unit: metric.unit,
            target: limit.map(|limit| limit.judge(value)),
        });
    }

    /// Number of missed targets.
    pub(crate) fn missed(&self) -> usize {
        self.targets().filter(|(_, target)| !target.ok).count()
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<()> {
        let lines: Result<Vec<String>, _> = self.figures.iter().map(serde_json::to_string).collect();
        let text = lines.context("figures are plain values")?.join("\n") + "\n";
        fs::write(file, text).with_context(|| format!("write {}", file.display()))
    }

    fn targets(&self) -> impl Iterator<Item = (&Figure, &TargetResult)> {
        self.figures.iter().filter_map(|figure| Some((figure, figure.target.as_ref()?)))
    }

    /// A table with a row per case and subject, in the order of their first figures, and a column per metric.
    fn table_of_figures(&self) -> String {
        let plain = || self.figures.iter().filter(|figure| figure.target.is_none());
        let metrics = distinct(plain().map(|figure| (figure.metric, figure.unit)));
        let keys = distinct(plain().map(|figure| (figure.case.as_str(), figure.subject.as_str())));
        let head: Vec<String> = metrics.iter().map(|(name, unit)| format!("{name} {unit}").trim().to_owned()).collect();
        let head: Vec<&str> = ["case", "subject"].into_iter().chain(head.iter().map(String::as_str)).collect();
        let cell = |(case, subject): (&str, &str), metric: &str| {
            let mut of_key = plain().filter(|figure| figure.case == case && figure.subject == subject);
            of_key.find(|figure| figure.metric == metric).map_or("-".to_owned(), |figure| number(figure.value))
        };
        let row = |&key: &(&str, &str)| {
            let names = [key.0.to_owned(), key.1.to_owned()].into_iter();
            names.chain(metrics.iter().map(|(metric, _)| cell(key, metric))).collect()
        };
        align(&head, &keys.iter().map(row).collect::<Vec<_>>(), 2)
    }

    fn table_of_bars(&self) -> String {
        let row = |(figure, target): (&Figure, &TargetResult)| {
            let verdict = if target.ok { "met" } else { "MISSED" };
            let names = [&figure.case, &figure.subject].map(String::clone);
            let rest = [figure.metric.to_owned(), verdict.to_owned(), number(figure.value), target.limit.clone()];
            names.into_iter().chain(rest).collect()
        };
        let rows: Vec<Vec<String>> = self.targets().map(row).collect();
        align(&["case", "subject", "figure", "target", "value", "limit"], &rows, 4)
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "# {note}"))?;
        writeln!(f, "# {}", self.stolen.note())?;
        writeln!(f, "\n{}", self.table_of_figures())?;
        if self.targets().next().is_some() {
            write!(f, "\n{}", self.table_of_bars())?;
        }
        Ok(())
    }
}

/// A quantity and its unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

impl Metric {
    pub(crate) const fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit }
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Formats at least three significant digits, with no more decimals than needed.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: Metric = Metric::new("cpu_ratio", "");

    #[test]
    fn target_is_in_the_json_of_its_figure_only() {
        let mut report = BenchReport::new("gateway");
        report.add("tidegate", "simple", RATIO, 0.95, Some(MetricTarget::AtMost(0.9)));
        report.add("tidegate", "simple", Metric::new("tps", ""), 100.0, None);
        let lines: Vec<String> = report.figures.iter().map(|figure| serde_json::to_string(figure).unwrap()).collect();
        assert!(
            lines[0].ends_with(r#""value":0.95,"unit":"","target":{"limit":"<= 0.90","ok":false}}"#),
            "{}",
            lines[0]
        );
        assert!(!lines[1].contains("target"));
        assert_eq!(report.missed(), 1);
    }

    #[test]
    fn missing_figure_is_a_dash() {
        let mut report = BenchReport::new("gateway");
        report.add("direct", "simple", Metric::new("tps", ""), 1.0, None);
        report.add("haproxy", "simple", Metric::new("rss", "MiB"), 2.0, None);
        assert!(report.table_of_figures().lines().nth(2).unwrap().ends_with('-'));
    }
}
