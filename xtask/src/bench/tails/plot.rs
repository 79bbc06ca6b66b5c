//! A plot per protocol as SVG: transactions per second and the 99th percentile of the latency, by number of clients.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A measured point.
#[derive(Clone, Debug)]
pub(super) struct PlotPoint {
    /// Encryption and kind of connections: a row of the plot.
    pub(super) variant: &'static str,
    pub(super) subject: &'static str,
    pub(super) clients: u32,
    pub(super) tps: f64,
    pub(super) p99_ms: Option<f64>,
}

/// The points of all plots, by protocol.
#[derive(Default)]
pub(super) struct Plots(Vec<(&'static str, Vec<PlotPoint>)>);

impl Plots {
    pub(super) fn add(&mut self, protocol: &'static str, point: &PlotPoint) {
        match self.0.iter_mut().find(|(known, _)| *known == protocol) {
            Some((_, points)) => points.push(point.clone()),
            None => self.0.push((protocol, vec![point.clone()])),
        }
    }

    /// Writes `tails-PROTOCOL.svg` for each protocol. Returns the paths.
    pub(super) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let write = |(protocol, points): &(&str, Vec<PlotPoint>)| {
            let file = folder.join(format!("tails-{protocol}.svg"));
            fs::write(&file, svg(protocol, points)).with_context(|| format!("write {}", file.display()))?;
            Ok(file)
        };
        self.0.iter().map(write).collect()
    }
}

/// Colours for readers with a colour vision deficiency (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const PANEL_WIDTH: f64 = 360.0;
const PANEL_HEIGHT: f64 = 200.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 60.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 70.0;
const COLUMN_WIDTH: f64 = PANEL_WIDTH + 90.0;

/// The line of one subject in a panel: x and y as shares of the panel, and the value.
type Line = Vec<(f64, f64, f64)>;

fn svg(protocol: &str, points: &[PlotPoint]) -> String {
    let variants = distinct(points.iter().map(|point| point.variant));
    let subjects = distinct(points.iter().map(|point| point.subject));
    let (width, height) = (2.0 * COLUMN_WIDTH, TOP + ROW_HEIGHT * variants.len() as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{protocol} protocol, by number of clients</text>\n"
    );
    for (index, subject) in subjects.iter().enumerate() {
        let x = LEFT + 120.0 * index as f64;
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"41\">{subject}</text>",
            x + 17.0
        );
    }
    for (row, variant) in variants.iter().enumerate() {
        let of_row: Vec<&PlotPoint> = points.iter().filter(|point| point.variant == *variant).collect();
        let y = TOP + 20.0 + ROW_HEIGHT * row as f64;
        panel(&mut out, (LEFT, y), &format!("{variant}: transactions per second"), &subjects, &of_row, |point| {
            Some(point.tps)
        });
        if of_row.iter().any(|point| point.p99_ms.is_some()) {
            let place = (LEFT + COLUMN_WIDTH, y);
            panel(&mut out, place, &format!("{variant}: p99 in ms, logarithmic"), &subjects, &of_row, |point| {
                point.p99_ms.map(|ms| ms.max(0.01).log10())
            });
        }
    }
    out.push_str("</svg>\n");
    out
}

fn panel(
    out: &mut String,
    (left, top): (f64, f64),
    title: &str,
    subjects: &[&str],
    points: &[&PlotPoint],
    value: impl Fn(&PlotPoint) -> Option<f64>,
) {
    let is_log = title.contains("logarithmic");
    let values: Vec<f64> = points.iter().filter_map(|point| value(point)).collect();
    let lowest = if is_log { values.iter().copied().fold(f64::INFINITY, f64::min).floor() } else { 0.0 };
    let highest = values.iter().copied().fold(lowest, f64::max);
    let highest = if is_log { highest.ceil().max(lowest + 1.0) } else { (highest * 1.1).max(1.0) };
    let clients: Vec<u32> = points.iter().map(|point| point.clients).collect::<BTreeSet<_>>().into_iter().collect();
    let x_of = |index: usize| left + PANEL_WIDTH * (index as f64 + 0.5) / clients.len() as f64;
    let y_of = |value: f64| top + PANEL_HEIGHT * (1.0 - (value - lowest) / (highest - lowest));
    let shown = |value: f64| if is_log { label(10_f64.powf(value)) } else { label(value) };
    let _ = writeln!(out, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>", top - 8.0);
    let steps = if is_log { (highest - lowest).round().max(1.0) as usize } else { 4 };
    for step in 0..=steps {
        let value = lowest + (highest - lowest) * step as f64 / steps as f64;
        let y = y_of(value);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + PANEL_WIDTH,
            left - 6.0,
            y + 4.0,
            shown(value)
        );
    }
    for (index, count) in clients.iter().enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{count}</text>",
            x_of(index),
            top + PANEL_HEIGHT + 16.0
        );
    }
    for (number, subject) in subjects.iter().enumerate() {
        let place = |(index, count): (usize, &u32)| {
            let of_subject = points.iter().find(|point| point.subject == *subject && point.clients == *count)?;
            let value = value(of_subject).filter(|value| value.is_finite())?;
            Some((x_of(index), y_of(value), value))
        };
        let line: Line = clients.iter().enumerate().filter_map(place).collect();
        draw(out, &line, COLOURS[number % COLOURS.len()], subject, &shown);
    }
}

/// A line with a mark per value, which shows it when pointed at.
fn draw(out: &mut String, line: &Line, colour: &str, subject: &str, shown: &impl Fn(f64) -> String) {
    let path: Vec<String> = line.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let _ =
        writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", path.join(" "));
    for (x, y, value) in line {
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{subject}: {}</title></circle>",
            shown(*value)
        );
    }
}

/// `0.05`, `3.2`, `450`, `12k`.
fn label(value: f64) -> String {
    match value {
        _ if value >= 10_000.0 => format!("{:.0}k", value / 1_000.0),
        _ if value >= 1_000.0 => format!("{:.1}k", value / 1_000.0),
        _ if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_a_line_per_subject_and_panel() {
        let mut plots = Plots::default();
        for (subject, tps) in [("pgbouncer", 20_000.0), ("tidegate", 26_000.0)] {
            for clients in [1, 40] {
                let point = PlotPoint { variant: "plain", subject, clients, tps, p99_ms: Some(3.2) };
                plots.add("simple", &point);
            }
            plots.add(
                "simple",
                &PlotPoint { variant: "TLS, connect each time", subject, clients: 40, tps, p99_ms: None },
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let files = plots.write(folder.path()).unwrap();
        assert_eq!(files, [folder.path().join("tails-simple.svg")]);
        let text = fs::read_to_string(&files[0]).unwrap();
        assert_eq!((text.matches("<polyline").count(), text.matches("<circle").count()), (6, 10));
        assert!(text.contains("tidegate: 26k") && !text.contains("NaN") && text.ends_with("</svg>\n"), "{text}");
    }
}
