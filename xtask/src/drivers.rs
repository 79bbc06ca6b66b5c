//! `cargo xtask drivers`: nine real drivers do the same things directly and through the gateway, and one table says
//! which of them fail where. What fails directly too is the script's fault, not the gateway's.

mod suite;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tidegate_figures::align;
use tidegate_sandbox::{Major, Postgres};

use crate::gateway::{Config, Profile, Running, build};
use crate::step::Outcome;
use crate::tests::Io;
use suite::{SUITES, Suite, Verdicts};

const USER: &str = "driver";

/// Fewer servers than the suites open connections, so that they must share.
const POOL_SIZE: u32 = 4;

/// What each suite checks, in this order, under these names.
const CHECKS: &[&str] = &[
    "connect",
    "simple",
    "prepared",
    "pipeline",
    "copy",
    "cancel",
    "errors",
    "transaction",
    "tls",
    "large",
    "parameters",
];

/// What stands between the driver and Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    Direct,
    Session,
    Transaction,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Session => "session",
            Self::Transaction => "transaction",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only these drivers (repeatable)
    #[arg(long)]
    driver: Vec<String>,
    /// Only these ways (repeatable); all three unless told
    #[arg(long)]
    way: Vec<Way>,
    /// Major version of Postgres
    #[arg(long, default_value_t = 18)]
    postgres: u8,
    /// I/O mode of the gateway; its own choice unless told
    #[arg(long)]
    io: Option<Io>,
    /// A gateway instead of a fresh `dist` build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match run_all(arguments, Profile::Dist)? {
        Outcome::Passed | Outcome::Flaky(_) | Outcome::Missing(_) => Ok(()),
        Outcome::Failed(why) => bail!(why),
    }
}

/// Fetches and builds what the suites need, as far as it can be had.
pub(crate) fn prepare() {
    SUITES.iter().for_each(|suite| drop(suite.prepare()));
}

/// As a step of CI: both modes of the gateway.
pub(crate) fn run_for_ci() -> Outcome {
    let way = vec![Way::Session, Way::Transaction];
    let arguments = Arguments { driver: Vec::new(), way, postgres: 18, io: None, tidegate: None };
    run_all(&arguments, Profile::Dev).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

fn run_all(arguments: &Arguments, profile: Profile) -> Result<Outcome> {
    if let Some(name) = arguments.driver.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("there is no driver {name:?}: one of {}", names.join(", "));
    }
    let wanted = |suite: &&Suite| arguments.driver.is_empty() || arguments.driver.iter().any(|name| name == suite.name);
    let ways = [Way::Direct, Way::Session, Way::Transaction];
    let ways = ways.into_iter().filter(|way| arguments.way.is_empty() || arguments.way.contains(way));
    let ways: Vec<Way> = ways.collect();
    let through = ways.iter().any(|way| *way != Way::Direct);
    let binary = match &arguments.tidegate {
        Some(named) => named.clone(),
        None if through => build(profile)?,
        None => PathBuf::new(),
    };
    let doors = ways.into_iter().map(|way| Door::open(way, &binary, arguments)).collect::<Result<Vec<_>>>()?;
    let mut results = Vec::new();
    for suite in SUITES.iter().filter(wanted) {
        eprintln!("preparing {}", suite.name);
        let prepared = suite.prepare();
        for door in &doors {
            let verdicts = match &prepared {
                Ok(command) => suite::run(suite, command, &door.url(), door.way.name()),
                Err(error) => Verdicts::Missing(format!("{error:#}")),
            };
            results.push(Line { driver: suite.name, way: door.way, verdicts });
        }
    }
    doors.iter().try_for_each(Door::check_sharing)?;
    Ok(summary(&results))
}

/// A driver on one way.
struct Line {
    driver: &'static str,
    way: Way,
    verdicts: Verdicts,
}

fn summary(lines: &[Line]) -> Outcome {
    let head: Vec<&str> = ["driver", "way"].into_iter().chain(CHECKS.iter().copied()).collect();
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    println!("\n{}\n", align(&head, &rows, head.len()));
    let notes: Vec<String> = lines.iter().flat_map(notes).collect();
    notes.iter().for_each(|note| println!("{note}"));
    let failed: Vec<String> = lines.iter().filter(|line| line.verdicts.failed(CHECKS)).map(label).collect();
    let missing: Vec<String> =
        lines.iter().filter(|line| matches!(line.verdicts, Verdicts::Missing(_))).map(label).collect();
    match (failed.is_empty(), missing.is_empty()) {
        (false, _) => Outcome::Failed(format!("drivers that fail: {}", failed.join(", "))),
        (true, false) => Outcome::Missing(missing.join(", ")),
        (true, true) => Outcome::Passed,
    }
}

fn label(line: &Line) -> String {
    format!("{} ({})", line.driver, line.way.name())
}

fn row(line: &Line) -> Vec<String> {
    let cells = CHECKS.iter().map(|check| line.verdicts.cell(check).to_owned());
    [line.driver.to_owned(), line.way.name().to_owned()].into_iter().chain(cells).collect()
}

fn notes(line: &Line) -> Vec<String> {
    let text = |note: &String| format!("{}: {note}", label(line));
    line.verdicts.notes().iter().map(text).collect()
}

/// Where a driver knocks: a Postgres of its own, with a gateway before it or without.
struct Door {
    way: Way,
    // The gateway goes before the server behind it.
    gateway: Option<Running>,
    _dir: tempfile::TempDir,
    postgres: Postgres,
}

impl Door {
    fn open(way: Way, binary: &Path, arguments: &Arguments) -> Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let identity = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
        let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
        let version = Major(arguments.postgres);
        // Passwords on both sides of the gateway, as in earnest.
        let rules = "host all all 127.0.0.1/32 scram-sha-256";
        let postgres = Postgres::builder().version(version).tls(&certificate, &key).hba(rules).start()?;
        postgres.ensure_role(USER, USER)?;
        postgres.ensure_database(USER, USER)?;
        let dir = tempfile::tempdir_in(postgres.socket_dir()).context("create a folder")?;
        let files = (dir.path().join("server.crt"), dir.path().join("server.key"));
        std::fs::write(&files.0, certificate).context("write the certificate")?;
        std::fs::write(&files.1, key).context("write the key")?;
        let config = Config {
            mode: way.name(),
            auth: "scram-sha-256",
            io: arguments.io,
            // A session keeps its server: there must be one for each of a suite's connections.
            pool_size: if way == Way::Session { 50 } else { POOL_SIZE },
            postgres_port: postgres.port(),
            user: USER,
            database: USER,
            tls: Some((&files.0, &files.1)),
            journal: None,
        };
        let gateway = match way {
            Way::Direct => None,
            Way::Session | Way::Transaction => Some(Running::gateway(binary, dir.path(), way.name(), &config)?),
        };
        // Should this process be killed, the gateway goes with its server.
        gateway.as_ref().map_or(Ok(()), |gateway| postgres.register_process(gateway.pid()))?;
        Ok(Self { way, gateway, _dir: dir, postgres })
    }

    /// A table of "ok" means nothing if the drivers did not share the few servers of a pool.
    fn check_sharing(&self) -> Result<()> {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}'");
        let rows = self.postgres.simple_query(&sql)?;
        let servers: u32 = rows[0][0].as_deref().unwrap_or_default().parse().context("a count is a number")?;
        if self.way == Way::Transaction && !(1..=POOL_SIZE).contains(&servers) {
            bail!("{servers} server connections behind the gateway, where 1 to {POOL_SIZE} were due");
        }
        Ok(())
    }

    fn url(&self) -> String {
        let port = self.gateway.as_ref().map_or(self.postgres.port(), |gateway| gateway.port);
        format!("postgres://{USER}:{USER}@127.0.0.1:{port}/{USER}")
    }
}
