//! One driver's script: how it is brought, started, and what it says.
//!
//! A script is called with a URL and a mode, and prints a line per check: its name, a tab, `ok`, `FAIL` or `skip`, and
//! after another tab why. What it does not print failed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::repository::{cargo, output_of, root, target_dir};

/// A driver that waits for ever is a failure, too.
const LIMIT: Duration = Duration::from_secs(180);

/// A driver and how its script is made ready.
pub(super) struct Suite {
    pub(super) name: &'static str,
    prepare: fn(&Places) -> Result<Vec<String>>,
}

impl Suite {
    /// Fetches and builds what the script needs; returns the command line that starts it.
    pub(super) fn prepare(&self) -> Result<Vec<String>> {
        let places = Places { scripts: root().join("drivers"), built: target_dir()?.join("drivers") };
        fs::create_dir_all(&places.built).context("create a folder for drivers")?;
        (self.prepare)(&places)
    }
}

/// Where the scripts lie, and where what they need goes.
struct Places {
    scripts: PathBuf,
    built: PathBuf,
}

impl Places {
    fn script(&self, path: &str) -> String {
        self.scripts.join(path).display().to_string()
    }

    fn built(&self, path: &str) -> String {
        self.built.join(path).display().to_string()
    }
}

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "psycopg 3", prepare: |places| python(places, "psycopg.py") },
    Suite { name: "asyncpg", prepare: |places| python(places, "asyncpg.py") },
    Suite { name: "node-postgres", prepare: |places| node(places, "node_postgres.mjs") },
    Suite { name: "postgres.js", prepare: |places| node(places, "postgres_js.mjs") },
    Suite { name: "pgx", prepare: go },
    Suite { name: "pgjdbc", prepare: java },
    Suite { name: "PDO", prepare: php },
    Suite { name: "sqlx", prepare: |places| rust(places, "sqlx") },
    Suite { name: "tokio-postgres", prepare: |places| rust(places, "tokio_postgres") },
];

fn python(places: &Places, script: &str) -> Result<Vec<String>> {
    let venv = places.built("venv");
    let python = places.built("venv/bin/python");
    if !Path::new(&python).is_file() {
        output_of(Command::new("python3").args(["-m", "venv", &venv]))?;
    }
    let requirements = places.script("python/requirements.txt");
    output_of(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r", &requirements]))?;
    // `-P`: the folder of the script, which is named like the driver, is no place to import from.
    Ok(vec![python, "-P".to_owned(), places.script(&format!("python/check_{script}"))])
}

fn node(places: &Places, script: &str) -> Result<Vec<String>> {
    let dir = places.scripts.join("node");
    if !dir.join("node_modules/.package-lock.json").is_file() {
        output_of(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&dir))?;
    }
    Ok(vec!["node".to_owned(), places.script(&format!("node/{script}"))])
}

fn go(places: &Places) -> Result<Vec<String>> {
    let binary = places.built("pgx");
    output_of(Command::new("go").args(["build", "-o", &binary, "."]).current_dir(places.scripts.join("pgx")))?;
    Ok(vec![binary])
}

fn java(places: &Places) -> Result<Vec<String>> {
    let jars = places.built("jars");
    if !Path::new(&jars).is_dir() {
        let output = format!("-DoutputDirectory={jars}");
        let goal = ["-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies", &output];
        output_of(Command::new("mvn").args(goal).current_dir(places.scripts.join("pgjdbc")))?;
    }
    let path = format!("{jars}/*");
    Ok(vec!["java".to_owned(), "-cp".to_owned(), path, places.script("pgjdbc/Check.java")])
}

fn php(places: &Places) -> Result<Vec<String>> {
    let extensions = output_of(Command::new("php").arg("-m"))?;
    ensure!(extensions.lines().any(|line| line == "pdo_pgsql"), "php has no pdo_pgsql (Debian: php-pgsql)");
    Ok(vec!["php".to_owned(), places.script("php/check_pdo.php")])
}

fn rust(places: &Places, name: &str) -> Result<Vec<String>> {
    let manifest = places.script("rust/Cargo.toml");
    let target = places.built("rust");
    output_of(cargo().args(["build", "--quiet", "--manifest-path", &manifest, "--target-dir", &target]))?;
    Ok(vec![format!("{target}/debug/{name}")])
}

/// What a script said, by check; or why it could not be started here.
pub(super) enum Verdicts {
    Missing(String),
    Said { checks: BTreeMap<String, (String, String)>, trouble: Option<String> },
}

impl Verdicts {
    /// The word for the table.
    pub(super) fn cell(&self, check: &str) -> &str {
        match self {
            Self::Missing(_) => "MISSING",
            Self::Said { checks, .. } => checks.get(check).map_or("FAIL", |(verdict, _)| match verdict.as_str() {
                "ok" => "ok",
                "skip" => "-",
                _ => "FAIL",
            }),
        }
    }

    pub(super) fn failed(&self, checks: &[&str]) -> bool {
        checks.iter().any(|check| self.cell(check) == "FAIL")
    }

    /// Why what failed, was skipped or is missing.
    pub(super) fn notes(&self) -> Vec<String> {
        match self {
            Self::Missing(why) => vec![format!("missing: {why}")],
            Self::Said { checks, trouble } => {
                let told = checks.iter().filter(|(_, (verdict, _))| verdict != "ok");
                let told = told.map(|(check, (verdict, why))| format!("{check}: {verdict}: {why}"));
                told.chain(trouble.clone()).collect()
            }
        }
    }
}

/// Runs a script and gathers what it says.
pub(super) fn run(suite: &Suite, command: &[String], url: &str, mode: &str) -> Verdicts {
    eprintln!("running {} ({mode})", suite.name);
    match run_script(command, url, mode) {
        Ok(verdicts) => verdicts,
        Err(error) => Verdicts::Said { checks: BTreeMap::new(), trouble: Some(format!("{error:#}")) },
    }
}

fn run_script(command: &[String], url: &str, mode: &str) -> Result<Verdicts> {
    let dir = tempfile::tempdir().context("create a folder")?;
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let [program, arguments @ ..] = command else { bail!("a command has a program") };
    let mut child = Command::new(program)
        .args(arguments)
        .args([url, mode])
        .stdin(Stdio::null())
        .stdout(File::create(&out).context("create a file")?)
        .stderr(File::create(&err).context("create a file")?)
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let trouble = wait(&mut child)?;
    let read = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let trouble = trouble.map(|trouble| format!("{trouble}\n{}", read(&err).trim()));
    Ok(Verdicts::Said { checks: parse(&read(&out)), trouble })
}

/// Waits for the end of a script; says what was wrong with it.
fn wait(child: &mut Child) -> Result<Option<String>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().context("wait for a driver")? {
            return Ok((!status.success()).then(|| format!("ended with {status}")));
        }
        if Instant::now() > deadline {
            child.kill().context("kill a driver that hangs")?;
            child.wait().context("wait for a driver")?;
            return Ok(Some(format!("did not end within {} s", LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn parse(out: &str) -> BTreeMap<String, (String, String)> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, '\t');
        let (check, verdict) = (parts.next()?, parts.next()?);
        Some((check.to_owned(), (verdict.to_owned(), parts.next().unwrap_or_default().to_owned())))
    };
    out.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_does_not_say_failed() {
        let verdicts = Verdicts::Said { checks: parse("connect\tok\ncopy\tskip\thas none\n"), trouble: None };
        assert_eq!(verdicts.cell("connect"), "ok");
        assert_eq!(verdicts.cell("copy"), "-");
        assert_eq!(verdicts.cell("cancel"), "FAIL");
        assert!(!verdicts.failed(&["connect", "copy"]));
    }
}
