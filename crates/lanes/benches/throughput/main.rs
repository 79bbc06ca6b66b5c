//! Records per second and cost per record, compared with other designs.
//!
//! `cargo bench -p tidegate-lanes --bench throughput -- [--quick] [--json FILE] [--check] [--case PART] [--rounds N]`
//!
//! The records are in memory before the clock starts. Every run is a process of its own, and rounds interleave the
//! subjects. A figure is the best of all rounds, for every subject alike, because other load on the machine only adds to
//! it. Every handler checks the order of its key; `order violations` counts records that start before or during an
//! earlier record of their key. Allocator: mimalloc.

mod cases;
mod dispatch;
mod floor;
mod load;
mod precise;
mod subjects;
mod usage;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::{Command, ExitCode};

use cases::{Case, STEADY, STEADY_AGAINST, cases};
use load::{Keys, Load};
use subjects::{Figures, OURS};
use tidegate_figures::{Figure, FigureTarget, Options, again, words};

const DISPATCH: &str = "1 ms, 20,000/s, cold keys";

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--one", subject, load] => one(subject, Load::from_word(load).expect("a load")),
        ["--dispatch", keys, seconds] => dispatch_of(keys, seconds.parse().expect("seconds")),
        ["--memory"] => println!("{}", on_workers(dispatch::bytes_per_key())),
        _ => return compare(),
    }
    ExitCode::SUCCESS
}

/// Runs on a runtime with one worker per core.
fn on_workers<F: Future<Output: Send> + Send + 'static>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { tokio::spawn(future).await.expect("benchmark panicked") })
}

/// Runs one subject in this process.
fn one(subject: &str, load: Load) {
    let subject = subject.to_owned();
    println!("{}", on_workers(async move { subjects::run(&subject, load).await }).to_line());
}

fn dispatch_of(keys: &str, seconds: u32) {
    let keys = if keys == "zipf" { Keys::Zipf(100_000) } else { Keys::Uniform(100_000) };
    println!("{}", on_workers(dispatch::cold_p99_ms(keys, seconds)));
}

fn compare() -> ExitCode {
    let options =
        match Options::read("Records per second and cost per record of lanes, compared with other designs.", true) {
            Ok(options) => options,
            Err(code) => return code,
        };
    let rounds = options.rounds().unwrap_or(3);
    let cases = cases(options.is_quick());
    let mut figures = Vec::new();
    let mut rates = BTreeMap::new();
    for case in cases.iter().filter(|case| options.selects(case.name)) {
        figures.extend(measure(case, rounds, &mut rates));
    }
    figures.extend(steadiness(&rates));
    if options.selects(DISPATCH) {
        figures.extend(dispatch_figures(options.is_quick(), rounds));
    }
    options.finish("lanes", &figures)
}

/// Runs the subjects in turn and returns their best figures.
fn measure(case: &Case, rounds: usize, rates: &mut BTreeMap<&'static str, f64>) -> Vec<Figure> {
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for _ in 0..rounds {
        for subject in case.subjects {
            let line = again(&["--one", subject, &case.load.to_word()]);
            runs.entry(subject).or_default().push(Figures::from_line(&line).expect("line of figures"));
        }
    }
    let mut figures = Vec::new();
    for subject in case.subjects {
        let of = |what: fn(&Figures) -> f64| runs[subject].iter().map(what);
        let is_ours = subject.starts_with(OURS);
        let target = |target: Option<FigureTarget>| target.filter(|_| is_ours);
        let mut add =
            |metric, value, unit, target| figures.push(figure(subject, case.name, metric, value, unit, target));
        let rate = of(|run| run.per_second).fold(0.0, f64::max);
        add("records", rate, "1/s", target(case.per_second));
        add("CPU per record", of(|run| run.cpu_us).fold(f64::MAX, f64::min), "us", target(case.cpu_us));
        add("peak memory", of(|run| run.memory_mib).fold(f64::MAX, f64::min), "MiB", None);
        let violations = of(|run| run.violations).fold(0.0, f64::max);
        add("order violations", violations, "", target(Some(FigureTarget::AtMost(0.0))));
        if *subject == OURS {
            rates.insert(case.name, rate);
        }
    }
    figures
}

/// Rates at other latencies, relative to 5 x 4 ms.
fn steadiness(rates: &BTreeMap<&'static str, f64>) -> Vec<Figure> {
    let Some(against) = rates.get(STEADY_AGAINST) else { return Vec::new() };
    let ratio = |name: &&'static str| {
        let value = rates.get(name)? / against;
        Some(figure(OURS, name, "records / those of 5 x 4 ms", value, "x", Some(FigureTarget::AtLeast(0.85))))
    };
    STEADY.iter().filter_map(ratio).collect()
}

fn dispatch_figures(quick: bool, rounds: usize) -> Vec<Figure> {
    let seconds = if quick { "2" } else { "10" };
    let number = |args: &[&str]| again(args).parse::<f64>().expect("a number");
    let best = |keys: &str| (0..rounds).map(|_| number(&["--dispatch", keys, seconds])).fold(f64::MAX, f64::min);
    let (uniform, zipf) = (best("uniform"), best("zipf"));
    let case = DISPATCH;
    let target = Some(FigureTarget::AtMost(2.0));
    let memory = |huge: &str| memory_per_key(huge).parse().expect("a number");
    vec![
        figure(OURS, case, "p99 of dispatch, uniform", uniform, "ms", None),
        figure(OURS, case, "p99 of dispatch, Zipf 1.1", zipf, "ms", None),
        figure(OURS, case, "p99, Zipf / uniform", zipf / uniform, "x", target),
        figure(OURS, "300,000 live keys", "memory per key", memory("0"), "B", Some(FigureTarget::AtMost(150.0))),
        figure(OURS, "300,000 live keys", "memory per key, with huge pages", memory("1"), "B", None),
    ]
}

/// Runs in another process, whose allocator may use huge pages. With huge pages the figure depends on how the allocator
/// fills its 2 MiB pages: it is a third higher and varies by a tenth.
fn memory_per_key(huge_pages: &str) -> String {
    let program = std::env::current_exe().expect("path of this program");
    let output = Command::new(program).arg("--memory").env("MIMALLOC_ALLOW_THP", huge_pages).output();
    String::from_utf8_lossy(&output.expect("cannot run this program").stdout).trim().to_owned()
}

fn figure(
    subject: &str,
    case: &str,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    Figure { subject: subject.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value, unit, target }
}
