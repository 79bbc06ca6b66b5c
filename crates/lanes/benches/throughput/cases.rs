//! Cases: loads, subjects and bars.

use crate::floor::{SLEEPERS, TOKIO_SLEEPERS};
use crate::load::{Handler, Keys, Load};
use crate::subjects::{BARE, BARE_CORES, BARE_THREADS, BUFFERED, HASHED, OURS, OURS_CORES, OURS_THREADS, TASK_PER_KEY};
use tidegate_figures::FigureTarget;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    pub(crate) subjects: &'static [&'static str],
    pub(crate) per_second: Option<FigureTarget>,
    pub(crate) cpu_us: Option<FigureTarget>,
}

/// Subjects with order per key, and without.
const ALL: &[&str] = &[OURS, OURS_CORES, HASHED, TASK_PER_KEY, BARE, BARE_CORES, BUFFERED];
// `buffer_unordered` is left out: it polls 100,000 sleepers again and again and takes minutes for a tenth of the records.
const SLEEPING: &[&str] = &[OURS, OURS_CORES, BARE, BARE_CORES, TASK_PER_KEY];
const STEADILY: &[&str] = &[OURS, OURS_CORES, BARE];
const IN_TURN: &[&str] = &[OURS, OURS_CORES, HASHED, TASK_PER_KEY, SLEEPERS, TOKIO_SLEEPERS];
const ORDERED: &[&str] = &[OURS, HASHED, TASK_PER_KEY];

const IN_FLIGHT: usize = 100_000;

fn case(name: &'static str, records: u32, keys: Keys, handler: Handler, subjects: &'static [&'static str]) -> Case {
    let in_flight = if handler == Handler::Nothing { 10_000 } else { IN_FLIGHT };
    Case { name, load: Load { records, keys, handler, in_flight }, subjects, per_second: None, cpu_us: None }
}

/// The cases with the memory source. A quick run takes a tenth of the records.
pub(crate) fn cases(quick: bool) -> Vec<Case> {
    let part = if quick { 10 } else { 1 };
    let (million, some) = (1_000_000 / part, 200_000 / part);
    let sleeps = |ms: u64| Handler::Sleeps(5, 1000 * ms);
    let at_least = |limit| Some(FigureTarget::AtLeast(limit));
    vec![
        Case {
            per_second: at_least(2_000_000.0),
            ..case("no-op, 10,000 keys", million, Keys::Uniform(10_000), Handler::Nothing, ALL)
        },
        case(
            "no-op, unique keys",
            million,
            Keys::Unique,
            Handler::Nothing,
            &[OURS, OURS_CORES, HASHED, BARE, BARE_CORES],
        ),
        case("no-op, Zipf 1.1 over 100,000", million, Keys::Zipf(100_000), Handler::Nothing, ORDERED),
        Case {
            per_second: at_least(95_000.0),
            ..case("10 ms, 1,000 keys in turn", 5 * some, Keys::InTurn(1000), Handler::Precise(10_000), IN_TURN)
        },
        case("5 x 0 ms, unique keys", some, Keys::Unique, sleeps(0), STEADILY),
        case("5 x 2 ms, unique keys", million, Keys::Unique, sleeps(2), STEADILY),
        Case {
            per_second: at_least(350_000.0),
            cpu_us: Some(FigureTarget::AtMost(5.0)),
            ..case("5 x 4 ms, unique keys", million, Keys::Unique, sleeps(4), SLEEPING)
        },
        case("5 x 10 ms, unique keys", million, Keys::Unique, sleeps(10), STEADILY),
        case("5 x 20 ms, unique keys", million, Keys::Unique, sleeps(20), STEADILY),
        case("5 x 40 ms, unique keys", million, Keys::Unique, sleeps(40), STEADILY),
        case("5 x 4 ms, 10,000 keys", some, Keys::Uniform(10_000), sleeps(4), ORDERED),
        Case {
            per_second: at_least(40_000.0),
            cpu_us: Some(FigureTarget::AtMost(25.0)),
            load: Load { records: some, keys: Keys::Unique, handler: sleeps(4), in_flight: 900 },
            ..case("5 x 4 ms, 900 threads", some, Keys::Unique, sleeps(4), &[OURS_THREADS, BARE_THREADS])
        },
    ]
}

/// Cases whose rate is compared with that of 5 x 4 ms.
pub(crate) const STEADY: &[&str] =
    &["5 x 2 ms, unique keys", "5 x 10 ms, unique keys", "5 x 20 ms, unique keys", "5 x 40 ms, unique keys"];
pub(crate) const STEADY_AGAINST: &str = "5 x 4 ms, unique keys";
