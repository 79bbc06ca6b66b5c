//! Benchmark: time to write the records of many producers, and the latency and memory that it costs them.
//!
//! `cargo bench -p tidegate-journal --bench drain -- [--quick] [--rounds N] [--case TEXT] [--json FILE] [--check]`
//!
//! A million records, from start to drained: all in the file (written), or all synced (durable). Every run is a process
//! of its own, and rounds interleave the subjects. A figure is the best of its rounds, for all subjects alike, since
//! other load on the machine only adds to it. A ratio is the median of the ratios of the rounds. Allocator: mimalloc with
//! small pages, so that memory is what was touched. A subject with "tick" uses
//! [`TimestampPrecision::Tick`](tidegate_journal::TimestampPrecision::Tick). The folder is `TMPDIR`, or `/tmp`.

mod beam;
mod floor;
mod load;
mod process;
mod special;
mod subjects;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use load::{Figures, Load};
use special::Commits;
use subjects::{ALL, APPENDER, JOURNAL_SUBJECTS, NEVER, NEVER_TICK};
use tidegate_figures::{Figure, FigureTarget, Options, best, median, words};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RECORDS: usize = 1_000_000;
/// The memory limit in KiB: the bound of the journal, and overhead.
const MEMORY_KIB: f64 = 10.0 * 1024.0;

/// A kind of load: the size of a record, from tasks or from threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Case {
    bytes: usize,
    tasks: bool,
}

impl Case {
    fn name(self) -> String {
        let Self { bytes, tasks } = self;
        if tasks { format!("{bytes} B 1000 tasks") } else { format!("{bytes} B 16 threads") }
    }
}

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--one", subject, bytes, from] => one(subject, bytes.parse().expect("a number of bytes"), from == "tasks"),
        ["--special", what] => special(what, 1),
        ["--special", what, stripes] => special(what, stripes.parse().expect("a number of stripes")),
        _ => return compare(),
    }
    ExitCode::SUCCESS
}

fn folder() -> tempfile::TempDir {
    tempfile::TempDir::new().expect("create a folder")
}

fn one(subject: &str, bytes: usize, tasks: bool) {
    let folder = folder();
    let producers = if tasks { 1000 } else { 16 };
    let load = Load { subject, records: RECORDS, bytes, tasks, producers };
    println!("{}", load::run(&load, folder.path()).to_line());
}

fn special(what: &str, stripes: usize) {
    let folder = folder();
    let usual = Commits { producers: 1000, per_task: 1, records: 200, stripes, ring: false, sync: Duration::ZERO };
    let durable = |commits| special::durable(folder.path(), commits).into();
    let numbers = match what {
        "durable" => durable(usual),
        "ring" => durable(Commits { ring: true, ..usual }),
        "gathered" => durable(Commits { per_task: 250, ..usual }),
        "1 ms" => durable(Commits { sync: Duration::from_millis(1), records: 100, ..usual }),
        "5 ms" => durable(Commits { sync: Duration::from_millis(5), records: 30, ..usual }),
        "floor" => floor::durable(folder.path(), true, 1000, 200).into(),
        "wakes" => floor::durable(folder.path(), false, 1000, 200).into(),
        "unblocked" => latency(&special::unblocked(folder.path(), 400_000)),
        _ => latency(&special::stalled(folder.path())),
    };
    println!("{}", numbers.map(|number| number.to_string()).join(" "));
}

fn latency(latency: &special::Latency) -> [f64; 3] {
    [latency.p50_ns, latency.p99_ns, latency.memory_kib]
}

/// Runs this program with `args`, and returns its output.
fn run_self(args: &[&str]) -> String {
    let program: PathBuf = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    // Large pages: memory would be reported in steps of 2 MiB.
    let output = command.args(args).env("MIMALLOC_ALLOW_THP", "0").output().expect("run this program");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn compare() -> ExitCode {
    let options = match Options::read(
        "Time to write the records of many producers, and the latency and memory that it costs them.",
        true,
    ) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let tasks = Case { bytes: 100, tasks: true };
    let cases =
        [tasks, Case { tasks: false, ..tasks }, Case { bytes: 1024, ..tasks }, Case { bytes: 1024, tasks: false }];
    let (cases, rounds) = if options.is_quick() { (&cases[..1], 3) } else { (&cases[..], 5) };
    let rounds = options.rounds().unwrap_or(rounds);
    let mut figures = Vec::new();
    for case in cases.iter().filter(|case| options.selects(&case.name())) {
        let mut runs = Runs::default();
        for _ in 0..rounds {
            runs.round(*case);
        }
        figures.extend(runs.figures(*case));
    }
    for name in ["quill", "spdlog"] {
        println!("missing: {name} is not available, so it was not measured");
    }
    if options.selects("special") {
        figures.extend(special_figures(rounds));
    }
    options.finish("journal", &figures)
}

/// All runs of one case, round by round.
#[derive(Default)]
struct Runs {
    subjects: BTreeMap<&'static str, Vec<Figures>>,
    beam: BTreeMap<String, Vec<Figures>>,
}

impl Runs {
    fn round(&mut self, case: Case) {
        for name in ALL.into_iter().filter(|name| case.tasks || ![NEVER, NEVER_TICK].contains(name)) {
            let from = if case.tasks { "tasks" } else { "threads" };
            let line = run_self(&["--one", name, &case.bytes.to_string(), from]);
            let figures = Figures::from_line(&line).expect("a line of figures");
            self.subjects.entry(name).or_default().push(figures);
        }
        if !case.tasks {
            return;
        }
        let Some(runs) = beam::run(folder().path(), RECORDS, 1000, case.bytes) else {
            return println!("missing: erl is not installed, so disk_log was not measured");
        };
        for beam::Run { mode, written_ms, durable_ms, queue_records } in runs {
            let queue_bytes = queue_records * case.bytes as f64;
            let figures = Figures { written_ms, durable_ms, queue_bytes, ..Figures::default() };
            self.beam.entry(format!("disk_log {mode}")).or_default().push(figures);
        }
    }

    fn figures(&self, case: Case) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (name, runs) in &self.subjects {
            figures.extend(way_figures(case, name, runs));
        }
        for (name, runs) in &self.beam {
            let mut add = |metric, unit, what: fn(&Figures) -> f64| {
                figures.push(figure(case, name, metric, best(runs.iter().map(what)), unit, None));
            };
            add("written", "ms", |run| run.written_ms);
            add("durable", "ms", |run| run.durable_ms);
            add("queue", "KiB", |run| run.queue_bytes / 1024.0);
        }
        figures.extend(self.ratios(case));
        figures
    }

    /// The speed relative to the best of the others, in the same round.
    fn ratios(&self, case: Case) -> Vec<Figure> {
        let has_target = case == Case { bytes: 100, tasks: true };
        let mut figures = Vec::new();
        for (ours, _) in JOURNAL_SUBJECTS {
            let Some(own) = self.subjects.get(ours) else { continue };
            let mut ratio = |metric, theirs: &dyn Fn(usize) -> f64, limit: f64| {
                let rounds = own.iter().enumerate().map(|(round, run)| theirs(round) / run.written_ms).collect();
                let target = has_target.then_some(FigureTarget::AtLeast(limit));
                figures.push(figure(case, ours, metric, median(rounds), "x", target));
            };
            ratio("faster than tracing-appender", &|round| self.subjects[APPENDER][round].written_ms, 8.0);
            if !self.beam.is_empty() {
                let best_of = |round: usize| best(self.beam.values().map(|runs| runs[round].written_ms));
                ratio("faster than best disk_log", &best_of, 7.0);
            }
        }
        figures
    }
}

fn way_figures(case: Case, name: &str, runs: &[Figures]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |metric, unit, target: Option<FigureTarget>, what: fn(&Figures) -> f64| {
        let value = best(runs.iter().map(what));
        if !value.is_infinite() {
            figures.push(figure(case, name, metric, value, unit, target));
        }
    };
    let has_target = case == Case { bytes: 100, tasks: true };
    let ours = JOURNAL_SUBJECTS.into_iter().find(|(ours, _)| *ours == name);
    let drained = ours.filter(|_| has_target);
    add("written", "ms", drained.map(|(_, limit)| FigureTarget::AtMost(limit)), |run| run.written_ms);
    add("durable", "ms", None, |run| run.durable_ms);
    add("CPU", "ms", None, |run| run.cpu_ms);
    add("append p50", "ns", None, |run| run.p50_ns);
    add("append p99", "ns", None, |run| run.p99_ns);
    add("append p99.9", "ns", None, |run| run.p999_ns);
    add("queue", "KiB", None, |run| run.queue_bytes / 1024.0);
    add("memory over idle", "KiB", None, |run| run.memory_kib);
    // The worst round, as the bound must always hold.
    let worst = runs.iter().map(|run| run.memory_kib).fold(0.0, f64::max);
    if ours.is_some() {
        figures.push(figure(case, name, "memory, worst round", worst, "KiB", None));
    }
    figures
}

/// A thousand producers with one durable append outstanding each: on the local disk, over preallocated files, and on
/// disks with slower syncs.
const DURABLE: [(&str, [&str; 2]); 6] = [
    ("1000 dur., 1 str.", ["durable", "1"]),
    ("1000 dur., 2 str.", ["durable", "2"]),
    ("1000 dur., 4 str.", ["durable", "4"]),
    ("1000 dur., ring", ["ring", "1"]),
    ("1000 dur., 1 ms", ["1 ms", "1"]),
    ("1000 dur., 5 ms", ["5 ms", "1"]),
];

fn special_figures(rounds: usize) -> Vec<Figure> {
    let once = |what: &[&str]| -> Vec<f64> {
        let line = run_self(&[&["--special"], what].concat());
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    };
    let numbers = |what: &str| -> Vec<Vec<f64>> { (0..rounds).map(|_| once(&[what])).collect() };
    let column = |runs: &[Vec<f64>], at: usize| -> Vec<f64> { runs.iter().map(|run| run[at]).collect() };
    let row = |case: &str, metric: &str, value, unit, target| Figure {
        subject: "journal".to_owned(),
        case: case.to_owned(),
        metric: metric.to_owned(),
        value,
        unit,
        target,
    };
    let mut figures = Vec::new();
    let mut durable = DURABLE.map(|_| Vec::new());
    for _ in 0..rounds {
        for (runs, (_, args)) in durable.iter_mut().zip(DURABLE) {
            runs.push(once(&args));
        }
    }
    for (runs, (case, _)) in durable.iter().zip(DURABLE) {
        let shares = median(runs.iter().map(|run| run[0] * run[1] / 1000.0).collect());
        figures.push(row(case, "records per second", median(column(runs, 0)), "/s", None));
        figures.push(row(case, "sync of a batch", median(column(runs, 1)) * 1e6, "us", None));
        figures.push(row(case, "records per sync", median(column(runs, 2)), "", None));
        figures.push(row(case, "of producers / sync time", shares, "x", Some(FigureTarget::AtLeast(0.6))));
    }
    for (case, what, limit) in [("paced", "unblocked", 2000.0), ("disk hangs", "stalled", 5000.0)] {
        let runs = numbers(what);
        let p99 = best(column(&runs, 1).into_iter());
        figures.push(row(case, "append p50", best(column(&runs, 0).into_iter()), "ns", None));
        figures.push(row(case, "append p99", p99, "ns", Some(FigureTarget::AtMost(limit))));
        let memory = column(&runs, 2).into_iter().fold(0.0, f64::max);
        figures.push(row(case, "memory, worst round", memory, "KiB", Some(FigureTarget::AtMost(MEMORY_KIB))));
    }
    figures
}

fn figure(
    case: Case,
    subject: &str,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    Figure { subject: subject.to_owned(), case: case.name(), metric: metric.to_owned(), value, unit, target }
}
