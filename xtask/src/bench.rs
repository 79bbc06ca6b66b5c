//! `cargo xtask bench NAME`: measures an area beside its peers, in interleaved rounds. Only ratios within a run are
//! comparable. A benchmark is not a test, and a test asserts no duration.

mod crates;
mod gateway;
mod hosts;
mod idle;
pub(crate) mod load;
mod logins;
mod pairs;
mod parts;
pub(crate) mod process;
mod report;
mod rounds;
mod sample;
pub(crate) mod subject;
mod tails;

use std::path::PathBuf;

use anyhow::{Result, bail};

use report::BenchReport;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    area: Area,
    /// Also write the figures as JSON lines
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with 1 when a target is missed
    #[arg(long, global = true)]
    check: bool,
    /// Take a tenth of the time
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Area {
    /// Queries, logins and large results against PgBouncer, HAProxy and no proxy at all
    Gateway(gateway::Arguments),
    /// Throughput and tail latency by number of clients, beside PgBouncer, Odyssey and pg_doorman
    Tails(tails::Arguments),
    /// CPU cost of choosing among three servers
    Hosts(hosts::Arguments),
    /// CPU cost of the query log and of the counters
    Parts(parts::Arguments),
    /// Resident memory of 10,000 idle clients
    Idle(idle::Arguments),
    /// Checkout and release, beside other ways to share connections
    Pool(crates::Arguments),
    /// Start and stop of many supervised tasks
    Supervise(crates::Arguments),
    /// A million records from many producers, beside other logs
    Journal(crates::Arguments),
    /// Picks (pick), and calls while backends come and go (calls)
    Balance(crates::Arguments),
    /// Records through lanes from memory (throughput) and from a Kafka broker (kafka)
    Lanes(crates::Arguments),
    /// Changes from a replication slot: a backlog beside `pg_recvlogical` and Debezium (drain); latency, JSON, copies and
    /// restarts (changes)
    Changes(crates::Arguments),
    /// Live queries: the router alone (router), and from Postgres to HTTP clients (shapes)
    Shapes(crates::Arguments),
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Full,
    /// A tenth of the time: checks that the bench works, not the figures.
    Quick,
}

impl Pace {
    /// `full`, or a tenth of it, but at least 1.
    fn scale(self, full: u32) -> u32 {
        match self {
            Self::Full => full,
            Self::Quick => full.div_ceil(10),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let pace = if arguments.quick { Pace::Quick } else { Pace::Full };
    let report = match &arguments.area {
        Area::Gateway(options) => gateway::run(options, pace)?,
        Area::Tails(options) => tails::run(options, pace)?,
        Area::Hosts(options) => hosts::run(options, pace)?,
        Area::Parts(options) => parts::run(options, pace)?,
        Area::Idle(options) => idle::run(options, pace)?,
        Area::Pool(options) => return crates::run(crates::POOL, options, arguments),
        Area::Supervise(options) => return crates::run(crates::SUPERVISE, options, arguments),
        Area::Journal(options) => return crates::run(crates::JOURNAL, options, arguments),
        Area::Balance(options) => return crates::run(crates::BALANCE, options, arguments),
        Area::Lanes(options) => return crates::run(crates::LANES, options, arguments),
        Area::Changes(options) => return crates::run(crates::CHANGES, options, arguments),
        Area::Shapes(options) => return crates::run(crates::SHAPES, options, arguments),
    };
    finish(&report, arguments)
}

fn finish(report: &BenchReport, arguments: &Arguments) -> Result<()> {
    println!("{report}");
    if let Some(file) = &arguments.json {
        report.write_json(file)?;
    }
    let missed = report.missed();
    if arguments.check && missed > 0 {
        bail!("{missed} targets missed");
    }
    Ok(())
}
