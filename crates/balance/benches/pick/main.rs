//! Cost of a pick, compared with other ways to choose.
//!
//! `cargo bench -p tidegate-balance --bench pick -- [--quick] [--json FILE] [--check]`. Figures are nanoseconds of one
//! thread per pick: medians over batches of 2,048 picks, and over rounds that interleave the subjects. With two threads, only
//! batches count in which both threads ran. With too few of them the figure is reported as missing, and its bar as missed.

mod beam;
mod subjects;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use subjects::{ARC_SWAP, BY_THREAD, Cell, FLOOR, Measured, PICK_WITH, SUBJECTS, on_tasks};
use tidegate_figures::{Figure, FigureTarget, Options, median};

const BACKENDS: [usize; 5] = [1, 3, 10, 100, 1000];
const OURS: &str = "tidegate-balance";

/// Measurements of all rounds, by subject, backends, threads and updates.
type Runs = BTreeMap<(&'static str, usize, usize, bool), Vec<Measured>>;

fn main() -> ExitCode {
    let options = match Options::read("Cost of a pick, compared with other ways to choose a backend.", false) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let (rounds, millis) = if options.is_quick() { (3, 20) } else { (7, 100) };
    let time = Duration::from_millis(millis);
    let mut runs = Runs::new();
    for _ in 0..rounds {
        for backends in BACKENDS {
            // Each subject with one thread and with two.
            let cell = |threads| Cell { backends, threads, time, updated: false };
            measure(&mut runs, &[cell(1), cell(2)]);
        }
        measure(&mut runs, &[Cell { backends: 10, threads: 1, time, updated: true }]);
    }
    let mut figures = plain(&runs);
    figures.extend(ratios(&runs));
    figures.extend(tasks(time * 5));
    figures.extend(beam_figures(&runs));
    options.finish("balance", &figures)
}

fn measure(runs: &mut Runs, cells: &[Cell]) {
    for subject in &SUBJECTS {
        for &cell in cells {
            let measured = (subject.measure)(cell);
            runs.entry((subject.name, cell.backends, cell.threads, cell.updated)).or_default().push(measured);
        }
    }
}

fn figure(
    subject: &str,
    case: String,
    metric: &str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    Figure { subject: subject.to_owned(), case, metric: metric.to_owned(), value, unit, target }
}

fn ns(runs: &[Measured]) -> Vec<f64> {
    runs.iter().map(|run| run.ns).collect()
}

fn plain(runs: &Runs) -> Vec<Figure> {
    let figure_of =
        |(&(name, backends, threads, updated), runs): (&(&'static str, usize, usize, bool), &Vec<Measured>)| {
            let suffix = if updated { ", replaced every 1 ms" } else { "" };
            let case = format!("{backends} backends, {threads} thr{suffix}");
            let target = (matches!(name, PICK_WITH | BY_THREAD) && threads == 1 && !updated)
                .then_some(FigureTarget::AtMost(8.0));
            figure(name, case, "pick", median(ns(runs)), "ns", target)
        };
    let mut figures: Vec<_> = runs.iter().map(figure_of).collect();
    figures.sort_by_key(|figure| figure.case.len());
    figures.sort_by(|one, other| one.case.cmp(&other.case));
    figures
}

/// The median of the ratios by round: measurements within one second see the same state of the machine. A round in which the
/// threads did not run together has no figure.
fn ratio(runs: &Runs, top: (&'static str, usize, usize), bottom: (&'static str, usize, usize)) -> f64 {
    let of = |(name, backends, threads)| &runs[&(name, backends, threads, false)];
    median(of(top).iter().zip(of(bottom)).map(|(top, bottom)| top.ns / bottom.ns).collect())
}

/// Throughput of two threads together, relative to one of them alone.
fn scale(runs: &Runs, subject: &'static str, backends: usize) -> f64 {
    let runs = &runs[&(subject, backends, 2, false)];
    median(runs.iter().map(|run| 2.0 * run.alone_ns / run.ns).collect())
}

fn ratios(runs: &Runs) -> Vec<Figure> {
    let flat = ratio(runs, (PICK_WITH, 1000, 1), (PICK_WITH, 3, 1));
    let mut figures =
        vec![figure(OURS, "1000 / 3 backends".to_owned(), "pick_with", flat, "x", Some(FigureTarget::AtMost(1.2)))];
    for backends in BACKENDS {
        let case = format!("{backends} backends");
        let (ours, machine) = (scale(runs, PICK_WITH, backends), scale(runs, FLOOR, backends));
        figures.push(figure(OURS, case.clone(), "2 threads / 1", ours, "x", Some(FigureTarget::AtLeast(1.9))));
        figures.push(figure(FLOOR, case.clone(), "2 threads / 1", machine, "x", None));
        let faster = ratio(runs, (ARC_SWAP, backends, 2), (PICK_WITH, backends, 2));
        figures.push(figure(OURS, case, "faster than ArcSwap, 2 thr", faster, "x", Some(FigureTarget::AtLeast(3.0))));
    }
    figures
}

fn tasks(time: Duration) -> Vec<Figure> {
    let mut figures = Vec::new();
    for backends in [3, 100] {
        let cell = Cell { backends, threads: 2, time, updated: false };
        let case = format!("{backends} backends, 32 tasks");
        for (name, tower) in [("pick (lease)", false), ("tower p2c behind Buffer", true)] {
            figures.push(figure(name, case.clone(), "in all", on_tasks(cell, tower) / 1e6, "M picks/s", None));
        }
    }
    figures
}

fn beam_figures(runs: &Runs) -> Vec<Figure> {
    let Some(measured) = beam::run(&[3, 10, 100]) else {
        println!("missing: Erlang is not installed, so the pick on the BEAM was not measured");
        return Vec::new();
    };
    let mut figures = Vec::new();
    for run in &measured {
        let case = format!("{} backends, {} proc", run.backends, run.processes);
        figures.push(figure("BEAM ets + atomics", case, "pick", run.ns, "ns", None));
    }
    for (backends, least) in [(3, 30.0), (10, 30.0), (100, 300.0)] {
        // Both are medians of an uninterrupted process or thread. For the BEAM, two processes are assumed not to slow each
        // other down, which favours it.
        let theirs =
            measured.iter().filter(|run| run.backends == backends).map(|run| run.ns).fold(f64::INFINITY, f64::min);
        let ours = median(ns(&runs[&(PICK_WITH, backends, 2, false)]));
        let target = (backends != 10).then_some(FigureTarget::AtLeast(least));
        let case = format!("{backends} backends");
        figures.push(figure(OURS, case, "faster than the BEAM, in all", theirs / ours, "x", target));
    }
    figures
}
