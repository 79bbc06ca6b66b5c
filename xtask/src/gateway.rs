//! The gateway as a program: build, configure, start, stop.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::repository::{PUBLISHED, cargo, run, target_dir};
use crate::tests::{Io, features};

const START_LIMIT: Duration = Duration::from_secs(30);

/// The build profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    /// The profile of the tests, which CI has already built.
    Dev,
    /// The profile of published binaries and measurements.
    Dist,
}

/// Builds the binary and returns its path.
pub(crate) fn build(profile: BuildProfile) -> Result<PathBuf> {
    let mut command = cargo();
    let folder = match profile {
        // Builds one test target, so that its features are those of the tests. A build of the binary alone would
        // compile its dependencies again, with fewer features.
        BuildProfile::Dev => {
            command.args(["test", "--no-run", "--workspace", "--test", "chaos"]).args(features());
            "debug"
        }
        BuildProfile::Dist => {
            command.args(["build", "-p", "tidegate", "--bin", "tidegate", "--profile", "dist"]).args(PUBLISHED);
            "dist"
        }
    };
    run(command.arg("--quiet"))?;
    Ok(target_dir()?.join(folder).join("tidegate"))
}

/// Builds the binary without counters in a folder of its own, and returns its path.
pub(crate) fn build_uncounted() -> Result<PathBuf> {
    let dir = target_dir()?.join("uncounted");
    let mut command = cargo();
    command.args(["build", "--quiet", "--profile", "dist", "-p", "tidegate", "--bin", "tidegate"]);
    run(command.args(PUBLISHED).args(["--features", "uncounted", "--target-dir"]).arg(&dir))?;
    Ok(dir.join("dist/tidegate"))
}

/// The settings that differ between gateways. A certificate allows TLS.
#[derive(Debug)]
pub(crate) struct GatewayConfig<'a> {
    pub(crate) mode: &'a str,
    /// Authentication of clients; the password is the user name.
    pub(crate) auth: &'a str,
    pub(crate) io: Option<Io>,
    pub(crate) pool_size: u32,
    pub(crate) postgres_port: u16,
    pub(crate) user: &'a str,
    pub(crate) database: &'a str,
    /// Paths of certificate and key.
    pub(crate) tls: Option<(&'a Path, &'a Path)>,
    /// Folder of the query log.
    pub(crate) journal: Option<&'a Path>,
}

impl GatewayConfig<'_> {
    fn toml(&self, port: u16) -> String {
        let Self { mode, auth, pool_size, postgres_port, user, database, .. } = self;
        let io = self.io.map_or("auto", Io::name);
        let tls = self.tls.map_or(String::new(), |(certificate, key)| {
            format!("tls = \"allow\"\ntls_cert = {certificate:?}\ntls_key = {key:?}\n")
        });
        // The defaults of the query log: every query, with its text.
        let journal = self.journal.map_or(String::new(), |folder| format!("\n[journal]\nfolder = {folder:?}\n"));
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\nmax_clients = 100000\n{tls}\n\
             [auth]\nmethod = \"{auth}\"\n\n\
             [pool]\nmode = \"{mode}\"\nsize = {pool_size}\n\n\
             [databases.{database}]\nhost = \"127.0.0.1\"\nport = {postgres_port}\nsslmode = \"disable\"\n\n\
             [users.{user}]\npassword = \"{user}\"\n\n\
             [log]\nconnections = false\ndisconnections = false\n\n\
             [runtime]\nio = \"{io}\"\n{journal}"
        )
    }
}

/// A running program with a port; killed on drop.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    child: Child,
    pub(crate) port: u16,
    log: PathBuf,
}

impl RunningProgram {
    /// Starts `tidegate run` in the folder `dir`, which also holds its configuration and log.
    pub(crate) fn gateway(binary: &Path, dir: &Path, name: &str, config: &GatewayConfig<'_>) -> Result<Self> {
        let port = free_port()?;
        let file = dir.join(format!("{name}.toml"));
        fs::write(&file, config.toml(port)).with_context(|| format!("write {}", file.display()))?;
        Self::start(Command::new(binary).arg("run").arg("-c").arg(&file), dir, name, port)
    }

    /// Starts a program and waits until its port accepts connections.
    pub(crate) fn start(command: &mut Command, dir: &Path, name: &str, port: u16) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let out = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let err = out.try_clone().context("share a log")?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.with_context(|| format!("start {command:?}"))?;
        let mut running = Self { child, port, log };
        running.wait_until_accepting(name)?;
        Ok(running)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_accepting(&mut self, name: &str) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended || Instant::now() > deadline {
                bail!("{name} does not accept connections:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A port without a listener.
pub(crate) fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}
