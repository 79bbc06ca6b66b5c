//! Records from a filled Kafka topic, through a subscription and through the client alone.
//!
//! `cargo bench -p tidegate-lanes --features kafka --bench kafka -- [--quick] [--json FILE] [--check] [--case PART]
//! [--rounds N]`
//!
//! The broker runs on the same machine as one process; each topic has three partitions. Every run is a process of its own
//! and reads its topic from the start with its own group. A figure is the best of all rounds, for every subject alike.
//! The client alone reads the topic once before, uncounted, because a freshly started broker compiles on the same cores.
//! Rate and CPU time (of the consuming process) cover the first to the last record; memory is the peak resident set. All
//! subjects use the same client settings.

mod cases;
#[path = "../throughput/floor.rs"]
mod floor;
#[path = "../throughput/load.rs"]
mod load;
#[path = "../throughput/precise.rs"]
mod precise;
mod subjects;
#[path = "../throughput/usage.rs"]
#[expect(dead_code, reason = "used by the other benchmark")]
mod usage;

use std::collections::BTreeMap;
use std::process::ExitCode;

use cases::{CASES, Case, METRICS};
use load::Load;
use subjects::Figures;
use tidegate_figures::{Figure, Options, again, best, words};
use tidegate_sandbox::kafka::Broker;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--one", subject, load, brokers, topic] => {
            let load = Load::from_word(load).expect("a load");
            println!("{}", subjects::run(subject, load, brokers, topic).to_line());
            ExitCode::SUCCESS
        }
        _ => compare(),
    }
}

fn compare() -> ExitCode {
    let options = match Options::read("Records from Kafka through lanes, and through the client alone.", true) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let is_quick = options.is_quick();
    let chosen = |case: &&Case| options.selects(case.name);
    let rounds = if is_quick { 1 } else { options.rounds().unwrap_or(5) };
    let broker = Broker::builder().long_lived().start().expect("a broker");
    let mut figures = Vec::new();
    for case in CASES.iter().filter(chosen) {
        let load = if is_quick { case.quick() } else { case.load };
        figures.extend(measure(&broker, case, load, rounds));
    }
    options.finish("lanes", &figures)
}

/// All rounds of a case, with its own topic.
fn measure(broker: &Broker, case: &Case, load: Load, rounds: usize) -> Vec<Figure> {
    let topic: String = case.name.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
    broker.create_topic(&topic, 3, &[]).expect("a topic");
    subjects::fill(broker, &topic, load);
    let run = |subject: &str| again(&["--one", subject, &load.to_word(), &broker.bootstrap(), &topic]);
    let _ = run(subjects::BASE);
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for _ in 0..rounds {
        for subject in case.subjects {
            let line = run(subject);
            runs.entry(subject).or_default().push(Figures::from_line(&line).expect("line of figures"));
        }
    }
    let figure = |subject: &&str| {
        METRICS.map(|(metric, unit, of)| Figure {
            subject: (*subject).to_owned(),
            case: case.name.to_owned(),
            metric: metric.to_owned(),
            value: if metric == cases::RATE {
                -best(runs[subject].iter().map(|run| -of(run)))
            } else if metric == cases::VIOLATIONS {
                runs[subject].iter().map(of).sum()
            } else {
                best(runs[subject].iter().map(of))
            },
            unit,
            target: case.target(subject, metric),
        })
    };
    case.subjects.iter().flat_map(figure).collect()
}
