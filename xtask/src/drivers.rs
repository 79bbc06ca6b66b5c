//! `cargo xtask drivers`: nine real drivers run the same checks directly and through the gateway, clients of live queries run
//! checks of their own, and tables show the failures. A check that also fails directly is a fault of its script.

mod electric;
mod suite;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tidegate_figures::align;
use tidegate_sandbox::{Major, Postgres};

use crate::gateway::{BuildProfile, GatewayConfig, RunningProgram, build};
use crate::step::StepOutcome;
use crate::tests::Io;
use electric::ShapeRun;
pub(crate) use suite::install_packages;
use suite::{SUITES, ScriptResult, Suite};

const USER: &str = "driver";

/// Fewer servers than the suites open connections, so that connections share them.
const POOL_SIZE: u32 = 4;

/// The checks of every suite, in order.
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

/// The path from a driver to Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DriverPath {
    Direct,
    Session,
    Transaction,
}

impl DriverPath {
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
    /// Only these paths (repeatable) [default: all three]
    #[arg(long)]
    way: Vec<DriverPath>,
    /// Major version of Postgres
    #[arg(long, default_value_t = 18)]
    postgres: u8,
    /// I/O mode of the gateway [default: the gateway's own]
    #[arg(long)]
    io: Option<Io>,
    /// A Tidegate binary instead of a new `dist` build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match run_all(arguments, BuildProfile::Dist)? {
        StepOutcome::Passed | StepOutcome::Flaky(_) | StepOutcome::Missing(_) => Ok(()),
        StepOutcome::Failed(why) => bail!(why),
    }
}

/// Downloads and builds the requirements of the suites, as far as possible.
pub(crate) fn prepare() {
    SUITES.iter().for_each(|suite| drop(suite.prepare()));
}

/// The step of CI: both pool modes of the gateway.
pub(crate) fn run_for_ci() -> StepOutcome {
    let way = vec![DriverPath::Session, DriverPath::Transaction];
    let arguments = Arguments { driver: Vec::new(), way, postgres: 18, io: None, tidegate: None };
    run_all(&arguments, BuildProfile::Dev).unwrap_or_else(|error| StepOutcome::Failed(format!("{error:#}")))
}

fn run_all(arguments: &Arguments, profile: BuildProfile) -> Result<StepOutcome> {
    let shape_names = || electric::SUITES.iter().map(|suite| suite.name);
    let is_known = |name: &str| shape_names().chain(SUITES.iter().map(|suite| suite.name)).any(|known| known == name);
    if let Some(name) = arguments.driver.iter().find(|name| !is_known(name)) {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).chain(shape_names()).collect();
        bail!("unknown driver {name:?}, expected one of {}", names.join(", "));
    }
    let is_selected = |name: &str| arguments.driver.is_empty() || arguments.driver.iter().any(|known| known == name);
    let selected = |suite: &&Suite| is_selected(suite.name);
    let ways = [DriverPath::Direct, DriverPath::Session, DriverPath::Transaction];
    let ways = ways.into_iter().filter(|way| arguments.way.is_empty() || arguments.way.contains(way));
    let ways: Vec<DriverPath> = ways.collect();
    let through = shape_names().any(is_selected) || ways.iter().any(|way| *way != DriverPath::Direct);
    let binary = match &arguments.tidegate {
        Some(named) => named.clone(),
        None if through => build(profile)?,
        None => PathBuf::new(),
    };
    let shapes = electric::run(&binary, arguments.postgres, is_selected)?;
    let doors = ways.into_iter().map(|way| DriverTarget::open(way, &binary, arguments)).collect::<Result<Vec<_>>>()?;
    let mut results = Vec::new();
    for suite in SUITES.iter().filter(selected) {
        eprintln!("preparing {}", suite.name);
        let prepared = suite.prepare();
        for door in &doors {
            let verdicts = match &prepared {
                Ok(command) => suite::run(suite.name, command, &door.url(), door.way.name()),
                Err(error) => ScriptResult::Missing(format!("{error:#}")),
            };
            results.push(DriverRun { driver: suite.name, way: door.way, verdicts });
        }
    }
    doors.iter().try_for_each(DriverTarget::check_sharing)?;
    Ok(summary(&results, &shapes))
}

/// The results of a driver on one path.
struct DriverRun {
    driver: &'static str,
    way: DriverPath,
    verdicts: ScriptResult,
}

fn summary(lines: &[DriverRun], shapes: &[ShapeRun]) -> StepOutcome {
    let head: Vec<&str> = ["driver", "way"].into_iter().chain(CHECKS.iter().copied()).collect();
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    println!("\n{}\n", align(&head, &rows, head.len()));
    let notes: Vec<String> = lines.iter().flat_map(notes).collect();
    notes.iter().for_each(|note| println!("{note}"));
    let mut failed: Vec<String> = lines.iter().filter(|line| line.verdicts.failed(CHECKS)).map(label).collect();
    let mut missing: Vec<String> =
        lines.iter().filter(|line| matches!(line.verdicts, ScriptResult::Missing(_))).map(label).collect();
    for ShapeRun { suite, result } in shapes {
        let (name, checks) = (suite.name, suite.checks);
        let row: Vec<String> = checks.iter().map(|check| result.cell(check).to_owned()).collect();
        println!("{name}:\n{}\n", align(checks, &[row], checks.len()));
        result.notes().iter().for_each(|note| println!("{name}: {note}"));
        match result {
            ScriptResult::Missing(_) => missing.push(name.to_owned()),
            ScriptResult::Finished { .. } if result.failed(checks) => failed.push(name.to_owned()),
            ScriptResult::Finished { .. } => {}
        }
    }
    match (failed.is_empty(), missing.is_empty()) {
        (false, _) => StepOutcome::Failed(format!("drivers that fail: {}", failed.join(", "))),
        (true, false) => StepOutcome::Missing(missing.join(", ")),
        (true, true) => StepOutcome::Passed,
    }
}

fn label(line: &DriverRun) -> String {
    format!("{} ({})", line.driver, line.way.name())
}

fn row(line: &DriverRun) -> Vec<String> {
    let cells = CHECKS.iter().map(|check| line.verdicts.cell(check).to_owned());
    [line.driver.to_owned(), line.way.name().to_owned()].into_iter().chain(cells).collect()
}

fn notes(line: &DriverRun) -> Vec<String> {
    let text = |note: &String| format!("{}: {note}", label(line));
    line.verdicts.notes().iter().map(text).collect()
}

/// The target of a driver: a private Postgres, with or without a gateway in front.
struct DriverTarget {
    way: DriverPath,
    // The gateway is dropped before the server behind it.
    gateway: Option<RunningProgram>,
    _dir: tempfile::TempDir,
    postgres: Postgres,
}

impl DriverTarget {
    fn open(way: DriverPath, binary: &Path, arguments: &Arguments) -> Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let identity = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
        let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
        let version = Major(arguments.postgres);
        // Passwords on both sides of the gateway, as in production.
        let rules = "host all all 127.0.0.1/32 scram-sha-256";
        let postgres = Postgres::builder().version(version).tls(&certificate, &key).hba(rules).start()?;
        postgres.ensure_role(USER, USER)?;
        postgres.ensure_database(USER, USER)?;
        let dir = tempfile::tempdir_in(postgres.socket_dir()).context("create a folder")?;
        let files = (dir.path().join("server.crt"), dir.path().join("server.key"));
        std::fs::write(&files.0, certificate).context("write the certificate")?;
        std::fs::write(&files.1, key).context("write the key")?;
        let config = GatewayConfig {
            mode: way.name(),
            auth: "scram-sha-256",
            io: arguments.io,
            // A session in session mode keeps its server, so the pool needs one per connection of a suite.
            pool_size: if way == DriverPath::Session { 50 } else { POOL_SIZE },
            postgres_port: postgres.port(),
            user: USER,
            database: USER,
            tls: Some((&files.0, &files.1)),
            journal: None,
        };
        let gateway = match way {
            DriverPath::Direct => None,
            DriverPath::Session | DriverPath::Transaction => {
                Some(RunningProgram::gateway(binary, dir.path(), way.name(), &config)?)
            }
        };
        // If this process is killed, the sandbox also kills the gateway.
        gateway.as_ref().map_or(Ok(()), |gateway| postgres.register_process(gateway.pid()))?;
        Ok(Self { way, gateway, _dir: dir, postgres })
    }

    /// Checks that the drivers shared the few servers of the pool; otherwise a table of "ok" proves nothing.
    fn check_sharing(&self) -> Result<()> {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}'");
        let rows = self.postgres.simple_query(&sql)?;
        let servers: u32 = rows[0][0].as_deref().unwrap_or_default().parse().context("a count is a number")?;
        if self.way == DriverPath::Transaction && !(1..=POOL_SIZE).contains(&servers) {
            bail!("{servers} server connections behind the gateway, expected 1 to {POOL_SIZE}");
        }
        Ok(())
    }

    fn url(&self) -> String {
        let port = self.gateway.as_ref().map_or(self.postgres.port(), |gateway| gateway.port);
        format!("postgres://{USER}:{USER}@127.0.0.1:{port}/{USER}")
    }
}
