//! A driver's script: its requirements, its command and its output.
//!
//! A script has the arguments URL and MODE. It prints a line per check: the name, a tab, `ok`, `FAIL` or `skip`, and
//! after another tab the reason. A check without a line has failed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::repository::{cargo, output_of, root, target_dir};

/// A driver that hangs has failed.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(180);

/// A driver and its requirements.
pub(super) struct Suite {
    pub(super) name: &'static str,
    prepare: fn(&ScriptFolders) -> Result<Vec<String>>,
}

impl Suite {
    /// Downloads and builds the requirements. Returns the command that starts the script.
    pub(super) fn prepare(&self) -> Result<Vec<String>> {
        (self.prepare)(&ScriptFolders::create()?)
    }
}

/// The folders of the scripts and of their requirements.
struct ScriptFolders {
    scripts: PathBuf,
    built: PathBuf,
}

impl ScriptFolders {
    fn create() -> Result<Self> {
        let folders = Self { scripts: root().join("drivers"), built: target_dir()?.join("drivers") };
        fs::create_dir_all(&folders.built).context("create a folder for drivers")?;
        Ok(folders)
    }

    fn script(&self, path: &str) -> String {
        self.scripts.join(path).display().to_string()
    }

    fn built(&self, path: &str) -> String {
        self.built.join(path).display().to_string()
    }
}

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "psycopg 3", prepare: |folders| python(folders, "psycopg.py") },
    Suite { name: "asyncpg", prepare: |folders| python(folders, "asyncpg.py") },
    Suite { name: "node-postgres", prepare: |folders| node(folders, "node/node_postgres.mjs") },
    Suite { name: "postgres.js", prepare: |folders| node(folders, "node/postgres_js.mjs") },
    Suite { name: "pgx", prepare: go },
    Suite { name: "pgjdbc", prepare: java },
    Suite { name: "PDO", prepare: php },
    Suite { name: "sqlx", prepare: |folders| rust(folders, "sqlx") },
    Suite { name: "tokio-postgres", prepare: |folders| rust(folders, "tokio_postgres") },
];

fn python(folders: &ScriptFolders, script: &str) -> Result<Vec<String>> {
    let venv = folders.built("venv");
    let python = folders.built("venv/bin/python");
    if !Path::new(&python).is_file() {
        output_of(Command::new("python3").args(["-m", "venv", &venv]))?;
    }
    let requirements = folders.script("python/requirements.txt");
    output_of(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r", &requirements]))?;
    // `-P`: no imports from the folder of the script, which contains modules with the names of the drivers.
    Ok(vec![python, "-P".to_owned(), folders.script(&format!("python/check_{script}"))])
}

fn node(folders: &ScriptFolders, script: &str) -> Result<Vec<String>> {
    let dir = folders.scripts.join(script);
    install_packages(dir.parent().context("a script has a folder")?)?;
    Ok(vec!["node".to_owned(), folders.script(script)])
}

/// Installs the packages of a lock file, unless they are the installed ones.
pub(crate) fn install_packages(dir: &Path) -> Result<()> {
    let lock = fs::read(dir.join("package-lock.json")).context("read a lock file")?;
    let installed = dir.join("node_modules/.tidegate-lock");
    if fs::read(&installed).is_ok_and(|known| known == lock) {
        return Ok(());
    }
    output_of(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(dir))?;
    fs::write(installed, lock).context("record the installed packages")
}

/// Downloads the requirements of Electric's client. Returns the command that starts the script.
pub(super) fn prepare_electric() -> Result<Vec<String>> {
    node(&ScriptFolders::create()?, "electric/check_electric.mjs")
}

/// As [`prepare_electric`], for TanStack DB.
pub(super) fn prepare_tanstack() -> Result<Vec<String>> {
    node(&ScriptFolders::create()?, "electric/check_tanstack.mjs")
}

/// Builds the example of live queries. Returns the command of the script that opens it in a browser.
pub(super) fn prepare_example() -> Result<Vec<String>> {
    output_of(Command::new("chromium").arg("--version")).context("Debian: chromium")?;
    let example = root().join("examples/shapes");
    install_packages(&example)?;
    output_of(Command::new("npm").args(["run", "build"]).current_dir(example))?;
    let mut command = node(&ScriptFolders::create()?, "electric/check_example.mjs")?;
    command.insert(1, "--experimental-websocket".to_owned());
    Ok(command)
}

fn go(folders: &ScriptFolders) -> Result<Vec<String>> {
    let binary = folders.built("pgx");
    output_of(Command::new("go").args(["build", "-o", &binary, "."]).current_dir(folders.scripts.join("pgx")))?;
    Ok(vec![binary])
}

fn java(folders: &ScriptFolders) -> Result<Vec<String>> {
    let jars = folders.built("jars");
    if !Path::new(&jars).is_dir() {
        let output = format!("-DoutputDirectory={jars}");
        let goal = ["-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies", &output];
        output_of(Command::new("mvn").args(goal).current_dir(folders.scripts.join("pgjdbc")))?;
    }
    let path = format!("{jars}/*");
    Ok(vec!["java".to_owned(), "-cp".to_owned(), path, folders.script("pgjdbc/Check.java")])
}

fn php(folders: &ScriptFolders) -> Result<Vec<String>> {
    let extensions = output_of(Command::new("php").arg("-m"))?;
    ensure!(extensions.lines().any(|line| line == "pdo_pgsql"), "php has no pdo_pgsql (Debian: php-pgsql)");
    Ok(vec!["php".to_owned(), folders.script("php/check_pdo.php")])
}

fn rust(folders: &ScriptFolders, name: &str) -> Result<Vec<String>> {
    let manifest = folders.script("rust/Cargo.toml");
    let target = folders.built("rust");
    output_of(cargo().args(["build", "--quiet", "--manifest-path", &manifest, "--target-dir", &target]))?;
    Ok(vec![format!("{target}/debug/{name}")])
}

/// The results of a script by check, or the reason why it could not start.
pub(super) enum ScriptResult {
    Missing(String),
    Finished { checks: BTreeMap<String, (String, String)>, failure: Option<String> },
}

impl ScriptResult {
    /// The cell of the table.
    pub(super) fn cell(&self, check: &str) -> &str {
        match self {
            Self::Missing(_) => "MISSING",
            Self::Finished { checks, .. } => checks.get(check).map_or("FAIL", |(verdict, _)| match verdict.as_str() {
                "ok" => "ok",
                "skip" => "-",
                _ => "FAIL",
            }),
        }
    }

    pub(super) fn failed(&self, checks: &[&str]) -> bool {
        checks.iter().any(|check| self.cell(check) == "FAIL")
    }

    /// The reasons of failed, skipped and missing checks.
    pub(super) fn notes(&self) -> Vec<String> {
        match self {
            Self::Missing(why) => vec![format!("missing: {why}")],
            Self::Finished { checks, failure } => {
                let failed = checks.iter().filter(|(_, (verdict, _))| verdict != "ok");
                let failed = failed.map(|(check, (verdict, why))| format!("{check}: {verdict}: {why}"));
                failed.chain(failure.clone()).collect()
            }
        }
    }
}

/// Runs a script and collects its results.
pub(super) fn run(name: &str, command: &[String], url: &str, mode: &str) -> ScriptResult {
    eprintln!("running {name} ({mode})");
    match run_script(command, url, mode) {
        Ok(verdicts) => verdicts,
        Err(error) => ScriptResult::Finished { checks: BTreeMap::new(), failure: Some(format!("{error:#}")) },
    }
}

fn run_script(command: &[String], url: &str, mode: &str) -> Result<ScriptResult> {
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
    let failure = wait(&mut child)?;
    let read = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let failure = failure.map(|failure| format!("{failure}\n{}", read(&err).trim()));
    Ok(ScriptResult::Finished { checks: parse(&read(&out)), failure })
}

/// Waits until a script exits. Returns the reason of a failure.
fn wait(child: &mut Child) -> Result<Option<String>> {
    let deadline = Instant::now() + SCRIPT_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().context("wait for a driver")? {
            return Ok((!status.success()).then(|| format!("exited with {status}")));
        }
        if Instant::now() > deadline {
            child.kill().context("kill a driver that hangs")?;
            child.wait().context("wait for a driver")?;
            return Ok(Some(format!("did not exit within {} s", SCRIPT_TIMEOUT.as_secs())));
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
    fn check_without_a_line_has_failed() {
        let verdicts = ScriptResult::Finished { checks: parse("connect\tok\ncopy\tskip\thas none\n"), failure: None };
        assert_eq!(verdicts.cell("connect"), "ok");
        assert_eq!(verdicts.cell("copy"), "-");
        assert_eq!(verdicts.cell("cancel"), "FAIL");
        assert!(!verdicts.failed(&["connect", "copy"]));
    }
}
