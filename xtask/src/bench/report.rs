//! What a benchmark found: figures, some with a bar; as tables for people and JSON lines for machines.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tidegate_figures::{Stolen, align};

use crate::machine;

/// A bound that an issue sets for a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Bar {
    limit: String,
    ok: bool,
}

/// Which side of the bound is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn judge(self, value: f64) -> Bar {
        match self {
            Self::AtMost(most) => Bar { limit: format!("<= {most:.2}"), ok: value <= most },
            Self::AtLeast(least) => Bar { limit: format!(">= {least:.2}"), ok: value >= least },
        }
    }
}

/// One number of one subject in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    bench: &'static str,
    subject: String,
    case: String,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bar: Option<Bar>,
}

/// Everything of one run.
#[derive(Debug)]
pub(crate) struct Report {
    bench: &'static str,
    /// Machine, versions, commit, load.
    notes: Vec<String>,
    stolen: Stolen,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(bench: &'static str) -> Self {
        let notes = vec![
            format!("machine: {}; load average before the run {}", machine::describe(), machine::load_average()),
            format!("commit: {}", crate::repository::commit()),
        ];
        Self { bench, notes, stolen: Stolen::begin(), figures: Vec::new() }
    }

    /// A line above the tables.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn add(&mut self, subject: &str, case: &str, metric: Metric, value: f64, limit: Option<Limit>) {
        self.figures.push(Figure {
            bench: self.bench,
            subject: subject.to_owned(),
            case: case.to_owned(),
            metric: metric.name,
            value,
            unit: metric.unit,
            bar: limit.map(|limit| limit.judge(value)),
        });
    }

    /// How many bars were missed.
    pub(crate) fn missed(&self) -> usize {
        self.bars().filter(|(_, bar)| !bar.ok).count()
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<()> {
        let lines: Result<Vec<String>, _> = self.figures.iter().map(serde_json::to_string).collect();
        let text = lines.context("figures are plain values")?.join("\n") + "\n";
        fs::write(file, text).with_context(|| format!("write {}", file.display()))
    }

    fn bars(&self) -> impl Iterator<Item = (&Figure, &Bar)> {
        self.figures.iter().filter_map(|figure| Some((figure, figure.bar.as_ref()?)))
    }

    /// Rows are case and subject in the order of their first figure, columns the metrics.
    fn table_of_figures(&self) -> String {
        let plain = || self.figures.iter().filter(|figure| figure.bar.is_none());
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
        let row = |(figure, bar): (&Figure, &Bar)| {
            let verdict = if bar.ok { "met" } else { "MISSED" };
            let names = [&figure.case, &figure.subject].map(String::clone);
            let rest = [figure.metric.to_owned(), verdict.to_owned(), number(figure.value), bar.limit.clone()];
            names.into_iter().chain(rest).collect()
        };
        let rows: Vec<Vec<String>> = self.bars().map(row).collect();
        align(&["case", "subject", "figure", "bar", "value", "limit"], &rows, 4)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "# {note}"))?;
        writeln!(f, "# {}", self.stolen.note())?;
        writeln!(f, "\n{}", self.table_of_figures())?;
        if self.bars().next().is_some() {
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

/// Three significant digits at least, no more decimals than they need.
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
    fn a_bar_is_in_the_json_of_its_figure_only() {
        let mut report = Report::new("gateway");
        report.add("tidegate", "simple", RATIO, 0.95, Some(Limit::AtMost(0.9)));
        report.add("tidegate", "simple", Metric::new("tps", ""), 100.0, None);
        let lines: Vec<String> = report.figures.iter().map(|figure| serde_json::to_string(figure).unwrap()).collect();
        assert!(lines[0].ends_with(r#""value":0.95,"unit":"","bar":{"limit":"<= 0.90","ok":false}}"#), "{}", lines[0]);
        assert!(!lines[1].contains("bar"));
        assert_eq!(report.missed(), 1);
    }

    #[test]
    fn a_figure_that_a_subject_lacks_is_a_dash() {
        let mut report = Report::new("gateway");
        report.add("direct", "simple", Metric::new("tps", ""), 1.0, None);
        report.add("haproxy", "simple", Metric::new("rss", "MiB"), 2.0, None);
        assert!(report.table_of_figures().lines().nth(2).unwrap().ends_with('-'));
    }
}
