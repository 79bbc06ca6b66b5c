//! `bench parts`: CPU cost of the query log and of the counters, each beside a gateway without it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tidegate_sandbox::Postgres;

use super::Pace;
use super::load;
use super::pairs::{AGAIN, PairedComparison, Times};
use super::report::{BenchReport, Metric, MetricTarget};
use super::subject::{Subject, USER, config, fill, start_postgres};
use crate::gateway::{BuildProfile, GatewayConfig, RunningProgram, build, build_uncounted};
use crate::machine::{allows_io_uring, version_of};
use crate::tests::Io;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A Tidegate binary instead of a new `dist` build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// Only these parts (repeatable); `counters` builds a second binary without counters
    #[arg(long)]
    part: Vec<Part>,
    /// Clients of each gateway
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Server connections of each gateway
    #[arg(long, default_value_t = 20)]
    pool_size: u32,
    #[command(flatten)]
    times: Times,
    /// Major version of Postgres; Debian's build of it is used if installed
    #[arg(long, default_value_t = 15)]
    postgres: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Journal,
    Counters,
}

const PROTOCOLS: &[&str] = &["simple", "extended", "prepared"];
const PLAIN: &str = "tidegate";
const JOURNAL: &str = "with the query journal";
const UNCOUNTED: &str = "without counters";
const COUNTED: &str = "with counters";
const JOURNAL_RATIO: Metric = Metric::new("cpu per tx / no journal", "");
const COUNTERS_RATIO: Metric = Metric::new("cpu per tx / uncounted", "");

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<BenchReport> {
    let pgbench = load::pgbench()?;
    let postgres = start_postgres(arguments.postgres)?;
    fill(&postgres, &pgbench)?;
    let binary = arguments.tidegate.clone().map_or_else(|| build(BuildProfile::Dist), Ok)?;
    let times = arguments.times.at(pace);
    let mut report = BenchReport::new("parts");
    report.note(format!("tidegate: {}", version_of(&binary, "--version")));
    report.note(format!(
        "load: pgbench -S, scale 10, {} clients and pools of {} for each",
        arguments.clients, arguments.pool_size
    ));
    report.note(times.note());
    let stage = Testbed { postgres: &postgres, pool_size: arguments.pool_size };
    let selects = |part| arguments.part.is_empty() || arguments.part.contains(&part);
    let compare = |ratio| PairedComparison { pgbench: &pgbench, times, clients: arguments.clients, ratio };
    if selects(Part::Journal) {
        let others = [(AGAIN, None), (JOURNAL, Some(MetricTarget::AtMost(1.10)))];
        let start = || {
            let names = [(PLAIN, false), (AGAIN, false), (JOURNAL, true)];
            names.into_iter().map(|(name, journal)| stage.start(&binary, name, journal)).collect()
        };
        compare(JOURNAL_RATIO).run(PROTOCOLS, &others, start, &mut report)?;
    }
    if selects(Part::Counters) {
        let without = build_uncounted()?;
        let others = [(COUNTED, Some(MetricTarget::AtMost(1.02)))];
        let start = || Ok(vec![stage.start(&without, UNCOUNTED, false)?, stage.start(&binary, COUNTED, false)?]);
        compare(COUNTERS_RATIO).run(PROTOCOLS, &others, start, &mut report)?;
    }
    Ok(report)
}

/// The shared state of all gateways.
struct Testbed<'a> {
    postgres: &'a Postgres,
    pool_size: u32,
}

impl Testbed<'_> {
    fn start(&self, binary: &Path, name: &'static str, journal: bool) -> Result<Subject> {
        let stem = name.replace(' ', "-");
        // Inside the sandbox folder, so that its watchdog can find the gateway by its command line.
        let dir = self.postgres.socket_dir().join(&stem);
        let folder = dir.join("journal");
        std::fs::create_dir_all(&dir)?;
        let io = if allows_io_uring() { Io::Uring } else { Io::Epoll };
        let config =
            GatewayConfig { journal: journal.then_some(&*folder), ..config(self.postgres, self.pool_size, io) };
        let running = RunningProgram::gateway(binary, &dir, &stem, &config)?;
        self.postgres.register_process(running.pid())?;
        Ok(Subject::gateway(name, &[USER], running))
    }
}
