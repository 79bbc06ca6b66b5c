//! Time to start and to stop N children, compared with the alternative designs.
//!
//! `cargo bench -p tidegate-supervise --features tokio --bench stop -- [--quick] [--json FILE] [--check]`
//!
//! Every run has its own process, and rounds interleave sizes and designs. A figure is the best of its rounds, for all
//! designs alike, because other load on the machine only adds time. A ratio is the median of the rounds' ratios. Allocator:
//! mimalloc, with targets; the feature `bench-system-allocator` selects the system allocator, without targets.

mod beam;
mod steady;
mod subjects;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::ExitCode;

use subjects::Figures;
use tidegate_figures::{Figure, FigureTarget, Options, again, best, median, words};

#[cfg(not(feature = "bench-system-allocator"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HAS_TARGETS: bool = !cfg!(feature = "bench-system-allocator");
const ALLOCATOR_NAME: &str = if HAS_TARGETS { "mimalloc" } else { "system" };
const OURS: &str = "supervise";
/// Designs of this crate: one task per child, and bundled children.
const DESIGNS_OF_OURS: [&str; 2] = [OURS, "supervise, bundled"];
const FLOOR: &str = "bare spawn";
/// Maximum p99 lateness of an unrelated task during a stop.
const LATE_P99_MAX_US: f64 = 10_000.0;
const TOKENS: &str = "TaskTracker + child tokens";

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--one", design, children] => one(design, children.parse().expect("a number of children")),
        ["--steady", design] => println!("{}", on_workers(steady_of(design.to_owned()))),
        _ => return compare(),
    }
    ExitCode::SUCCESS
}

/// Runs on a worker of a runtime with one worker per core.
fn on_workers<F: Future<Output: Send> + Send + 'static>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { tokio::spawn(future).await.expect("the bench does not panic") })
}

async fn steady_of(design: String) -> f64 {
    steady::run(&design).await
}

/// Runs one design once in this process.
fn one(design: &str, children: u64) {
    let design = design.to_owned();
    let figures = on_workers(async move { subjects::run(&design, children).await });
    println!("{}", figures.to_line());
}

fn compare() -> ExitCode {
    let options =
        match Options::read("Cost of starting and stopping many children, compared with other designs.", false) {
            Ok(options) => options,
            Err(code) => return code,
        };
    let sizes: &[u64] = if options.is_quick() { &[10_000, 200_000] } else { &[10_000, 200_000, 500_000, 1_000_000] };
    let (rounds, turns) = if options.is_quick() { (3, 7) } else { (9, 31) };
    let mut figures = Vec::new();
    let mut runs = Runs::default();
    for _ in 0..rounds {
        runs.measure(sizes);
    }
    for &size in sizes {
        figures.extend(runs.figures(size));
    }
    figures.extend(runs.flatness(sizes));
    figures.extend(steady_figures(turns));
    figures.extend(beam_figures(&runs, &sizes[1..]));
    options.finish("supervise", &figures)
}

/// All runs by size and design, in round order.
#[derive(Default)]
struct Runs(BTreeMap<(u64, &'static str), Vec<Figures>>);

impl Runs {
    /// Runs one round.
    fn measure(&mut self, sizes: &[u64]) {
        for &size in sizes {
            for design in subjects::DESIGNS {
                let line = again(&["--one", design, &size.to_string()]);
                let figures = Figures::from_line(&line).expect("a line of figures");
                self.0.entry((size, design)).or_default().push(figures);
            }
        }
    }

    fn of(&self, size: u64, design: &'static str, what: impl Fn(&Figures) -> f64) -> f64 {
        best(self.0[&(size, design)].iter().map(what))
    }

    fn ratio_of(&self, run: (u64, &'static str), over: (u64, &'static str), what: fn(&Figures) -> f64) -> f64 {
        let pairs = self.0[&run].iter().zip(&self.0[&over]);
        median(pairs.map(|(run, over)| what(run) / what(over)).collect())
    }

    fn figures(&self, size: u64) -> Vec<Figure> {
        let mut figures = Vec::new();
        for design in subjects::DESIGNS {
            let mut add = |metric, unit, target, what: fn(&Figures) -> f64| {
                figures.push(figure(design, size, metric, self.of(size, design, what), unit, target));
            };
            let is_ours = DESIGNS_OF_OURS.contains(&design);
            let target = stop_target(size).filter(|_| is_ours);
            add("start", "ms", None, |run| run.start_ms);
            add("stop", "ms", target, |run| run.stop_ms);
            add("start CPU per child", "ns", None, |run| run.start_cpu_ns);
            add("stop CPU per child", "ns", None, |run| run.stop_cpu_ns);
            add("memory per child", "B", None, |run| run.bytes_per_child);
            let target = is_ours.then_some(FigureTarget::AtMost(LATE_P99_MAX_US));
            add("p99 lateness during stop", "us", target, |run| run.late_p99_us);
        }
        figures.extend(DESIGNS_OF_OURS.into_iter().flat_map(|design| self.ratios(size, design)));
        figures
    }

    /// Ratios of a design of this crate to the other designs.
    fn ratios(&self, size: u64, ours: &'static str) -> [Figure; 5] {
        // Targets apply to large sizes; the start target against child tokens applies to a million children only.
        let target = |limit, from| (size >= from).then_some(FigureTarget::AtMost(limit));
        let ratio = |metric, other, target, what: fn(&Figures) -> f64| {
            figure(ours, size, metric, self.ratio_of((size, ours), (size, other), what), "x", target)
        };
        let more = self.of(size, ours, |run| run.bytes_per_child) - self.of(size, FLOOR, |run| run.bytes_per_child);
        [
            ratio("stop / bare spawn", FLOOR, target(1.2, 200_000), |run| run.stop_ms),
            ratio("stop / child tokens", TOKENS, target(1.15, 200_000), |run| run.stop_ms),
            ratio("start / bare spawn", FLOOR, target(1.5, 200_000), |run| run.start_ms),
            ratio("start / child tokens", TOKENS, target(0.5, 1_000_000), |run| run.start_ms),
            figure(ours, size, "memory over bare spawn", more, "B", target(128.0, 200_000)),
        ]
    }

    /// CPU time per child at the largest size divided by that at the smallest.
    fn flatness(&self, sizes: &[u64]) -> [Figure; subjects::DESIGNS.len()] {
        let (small, large) = (sizes[0], sizes[sizes.len() - 1]);
        subjects::DESIGNS.map(|design| {
            let ratio = self.ratio_of((large, design), (small, design), |run| run.stop_cpu_ns);
            let target = DESIGNS_OF_OURS.contains(&design).then_some(FigureTarget::AtMost(1.2));
            figure(design, large, "stop CPU / that of 10k", ratio, "x", target)
        })
    }
}

fn stop_target(size: u64) -> Option<FigureTarget> {
    let limits = [(200_000, 45.0), (500_000, 110.0), (1_000_000, 220.0)];
    let limit = limits.iter().find(|(at, _)| *at == size)?.1;
    Some(FigureTarget::AtMost(limit))
}

fn figure(
    design: &str,
    size: u64,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    figure_of(&format!("{}k", size / 1000), design, metric, value, unit, target)
}

fn figure_of(
    case: &str,
    subject: &str,
    metric: &str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    let (case, target) = (format!("{case} {ALLOCATOR_NAME}"), target.filter(|_| HAS_TARGETS));
    Figure { subject: subject.to_owned(), case, metric: metric.to_owned(), value, unit, target }
}

fn steady_figures(rounds: usize) -> Vec<Figure> {
    let mut turns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for design in steady::DESIGNS {
            let ns = again(&["--steady", design]).parse().expect("a number of nanoseconds");
            turns.entry(design).or_default().push(ns);
        }
    }
    let turn = |design: &str| best(turns[design].iter().copied());
    let over = |design: &str| turn(design) - turn("no check");
    let steady = |subject: &str, metric: &str, value, unit, target| {
        figure_of("4096 x select", subject, metric, value, unit, target)
    };
    let mut figures = Vec::new();
    for design in steady::DESIGNS {
        figures.push(steady(design, "turn", turn(design), "ns", None));
    }
    figures.push(steady("one token", "check", over("one token"), "ns", None));
    figures.push(steady("child tokens", "check", over("child tokens"), "ns", None));
    figures.push(steady(OURS, "check", over(OURS), "ns", Some(FigureTarget::AtMost(10.0))));
    let ratio = over(OURS) / over("child tokens");
    figures.push(steady(OURS, "check / child tokens", ratio, "x", Some(FigureTarget::AtMost(0.35))));
    figures
}

fn beam_figures(ours: &Runs, sizes: &[u64]) -> Vec<Figure> {
    let Some(runs) = beam::run(sizes) else {
        println!("missing: elixir is not installed, BEAM supervisors are not measured");
        return Vec::new();
    };
    let mut figures = Vec::new();
    for run in &runs {
        let subject = format!("BEAM {}", run.variant);
        figures.push(figure(&subject, run.children, "start", run.start_ms, "ms", None));
        figures.push(figure(&subject, run.children, "stop", run.stop_ms, "ms", None));
    }
    for &size in sizes {
        let theirs = best(runs.iter().filter(|run| run.children == size).map(|run| run.stop_ms));
        for design in DESIGNS_OF_OURS {
            let faster = theirs / ours.of(size, design, |run| run.stop_ms);
            figures.push(figure(design, size, "faster than best BEAM", faster, "x", Some(FigureTarget::AtLeast(12.0))));
        }
    }
    figures
}
