//! Figures as a table for people and as JSON lines for machines, with the bars that they are held to.

use std::fmt::Write as _;

use serde_json::json;

/// One figure, and the bar for it if there is one.
pub(crate) struct Figure {
    pub(crate) subject: String,
    pub(crate) case: String,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<Bar>,
}

/// A limit, and on which side of it is good.
#[derive(Clone, Copy)]
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
            "bench": "journal",
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
        let mut row = format!("{case:<16} {subject:<28} {metric:<26} {value:>12.2} {unit:<9}");
        if let Some(bar) = self.bar {
            let verdict = if self.is_ok() { "ok" } else { "MISSED" };
            let _ = write!(row, " bar {:<10} {verdict}", bar.limit());
        }
        row
    }
}

pub(crate) fn print(figures: &[Figure]) {
    for figure in figures {
        println!("{}", figure.row());
    }
}

pub(crate) fn write_json(figures: &[Figure], path: &str) -> std::io::Result<()> {
    let lines: String = figures.iter().map(|figure| figure.json() + "\n").collect();
    std::fs::write(path, lines)
}

pub(crate) fn best(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
