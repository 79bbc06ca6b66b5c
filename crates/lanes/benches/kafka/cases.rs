//! Cases: loads, subjects and bars.

use crate::floor::{SLEEPERS, TOKIO_SLEEPERS};
use crate::load::{Handler, Keys, Load};
use crate::subjects::{BASE, CORES, Figures, OURS, STREAM, THREADS};
use tidegate_figures::FigureTarget;

pub(crate) const RATE: &str = "records per second";
pub(crate) const CPU: &str = "CPU per record";
pub(crate) const MEMORY: &str = "peak memory";
pub(crate) const VIOLATIONS: &str = "order violations";

/// Name, unit and accessor of a figure.
type Metric = (&'static str, &'static str, fn(&Figures) -> f64);

pub(crate) const METRICS: [Metric; 4] = [
    (RATE, "1/s", |run| run.per_second),
    (CPU, "us", |run| run.cpu_us),
    (MEMORY, "MiB", |run| run.memory_mib),
    (VIOLATIONS, "", |run| run.violations),
];

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    pub(crate) subjects: &'static [&'static str],
    targets: &'static [(&'static str, FigureTarget)],
}

const NOTHING: [&str; 4] = [OURS, CORES, BASE, STREAM];
const UNIQUE: Keys = Keys::Unique;
const UNIFORM: Keys = Keys::Uniform(10_000);
const ZIPF: Keys = Keys::Zipf(100_000);

/// A handler that does nothing, on a million records.
const fn nothing(name: &'static str, keys: Keys, targets: &'static [(&'static str, FigureTarget)]) -> Case {
    let load = Load { records: 1_000_000, keys, handler: Handler::Nothing, in_flight: 20_000 };
    Case { name, load, subjects: &NOTHING, targets }
}

/// Five sleeps, of unique keys.
const fn sleeps(
    name: &'static str,
    millis: u64,
    records: u32,
    targets: &'static [(&'static str, FigureTarget)],
) -> Case {
    let load = Load { records, keys: UNIQUE, handler: Handler::Sleeps(5, 1_000 * millis), in_flight: 100_000 };
    Case { name, load, subjects: &[OURS, CORES], targets }
}

pub(crate) const CASES: [Case; 10] = [
    nothing(
        "nothing, 10,000 keys",
        UNIFORM,
        &[
            (RATE, FigureTarget::AtLeast(1_000_000.0)),
            (CPU, FigureTarget::AtMost(1.5)),
            (MEMORY, FigureTarget::AtMost(64.0)),
        ],
    ),
    nothing("nothing, Zipf 1.1", ZIPF, &[(RATE, FigureTarget::AtLeast(1_000_000.0))]),
    nothing("nothing, unique keys", UNIQUE, &[]),
    Case {
        name: "10 ms, 1,000 keys in turn",
        load: Load {
            records: 200_000,
            keys: Keys::InTurn(1_000),
            handler: Handler::Precise(10_000),
            in_flight: 20_000,
        },
        subjects: &[OURS, CORES, SLEEPERS, TOKIO_SLEEPERS],
        targets: &[(RATE, FigureTarget::AtLeast(95_000.0))],
    },
    sleeps(
        "5 x 4 ms, unique keys",
        4,
        1_000_000,
        &[
            (RATE, FigureTarget::AtLeast(250_000.0)),
            (CPU, FigureTarget::AtMost(6.5)),
            (MEMORY, FigureTarget::AtMost(200.0)),
        ],
    ),
    sleeps("5 x 2 ms, unique keys", 2, 1_000_000, &[]),
    sleeps("5 x 10 ms, unique keys", 10, 1_000_000, &[]),
    sleeps("5 x 20 ms, unique keys", 20, 1_000_000, &[]),
    sleeps("5 x 40 ms, unique keys", 40, 1_000_000, &[]),
    Case {
        name: "blocking 5 x 4 ms, 900 threads",
        load: Load { records: 200_000, keys: UNIQUE, handler: Handler::Sleeps(5, 4_000), in_flight: 900 },
        subjects: &[THREADS],
        targets: &[(RATE, FigureTarget::AtLeast(40_000.0)), (CPU, FigureTarget::AtMost(25.0))],
    },
];

impl Case {
    /// A tenth of the load.
    pub(crate) fn quick(&self) -> Load {
        Load { records: self.load.records / 10, ..self.load }
    }

    pub(crate) fn target(&self, subject: &str, metric: &str) -> Option<FigureTarget> {
        let is_ours = [OURS, THREADS, CORES].contains(&subject);
        let target = self.targets.iter().find(|(of, _)| *of == metric).map(|(_, target)| *target);
        let none = (metric == VIOLATIONS).then_some(FigureTarget::AtMost(0.0));
        target.or(none).filter(|_| is_ours)
    }
}
