//! Installation, upgrade, removal and purge in a root of its own, the swap with PgBouncer, and a run of the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::check::package;
use super::{Release, Stage, seccomp, tarball};
use crate::machine;
use crate::repository::{output_of, run as run_command};

/// Packages of the root: what `tidegate` depends on, and the package that `tidegate-pgbouncer` replaces.
const INCLUDED: &str = "adduser,logrotate,pgbouncer";

/// A Debian without systemd.
struct Root(Stage);

impl Root {
    fn make() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "run this check as root: it uses chroot");
        let stage = Stage::new()?;
        let release = output_of(Command::new("sh").args(["-c", ". /etc/os-release && echo $VERSION_CODENAME"]))?;
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--mode=root", "--variant=minbase", "--include", INCLUDED, release.trim()]);
        run_command(command.arg(stage.path()))?;
        Ok(Self(stage))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.path()).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        output_of(&mut self.command(arguments))
    }

    fn copy(&self, file: &Path) -> Result<String> {
        let name = file.file_name().context("a package has a name")?.to_string_lossy().into_owned();
        fs::copy(file, self.path().join(&name))?;
        Ok(format!("/{name}"))
    }

    /// Every path but those that any installation changes, with the content of files.
    fn listing(&self) -> Result<String> {
        let find = "find / -xdev \\( -path /proc -o -path /sys -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \
                    -o -path /run -o -name '*.deb' -o -name 'passwd*' -o -name 'group*' -o -name 'shadow*' -o -name 'gshadow*' \
                    -o -name 'subuid*' -o -name 'subgid*' -o -name .pwd.lock -o -path /var/lib/systemd \\) -prune \
                    -o -type f -exec md5sum {} + -o -printf '%y %p %l\\n' | sort";
        self.run(&["sh", "-c", find])
    }
}

/// OP-01, OP-03, OP-04, OP-05.
pub(super) fn check(release: &Release) -> Result<()> {
    let root = Root::make()?;
    let tidegate = root.copy(&package(release, "tidegate_", ".deb")?)?;
    let swap = root.copy(&package(release, "tidegate-pgbouncer_", ".deb")?)?;
    service(&root, &tidegate)?;
    swapped(&root, &tidegate, &swap)
}

/// Installs, upgrades, removes and purges `tidegate`.
fn service(root: &Root, deb: &str) -> Result<()> {
    let before = root.listing()?;
    root.run(&["dpkg", "--install", deb])?;
    let file = "/etc/tidegate/tidegate.toml";
    let mode = root.run(&["stat", "--format", "%a %U:%G", file])?;
    ensure!(mode.trim() == "640 root:tidegate", "{file} has {mode}");
    let checked = root.run(&["su", "-s", "/bin/sh", "tidegate", "-c", &format!("tidegate check {file}")])?;
    ensure!(checked.contains("good: 1 database"), "{checked}");
    let edited = "[databases.\"*\"]\nhost = \"10.0.0.7\"\n";
    fs::write(root.path().join(&file[1..]), edited)?;
    // The same version again runs the scripts of an upgrade.
    root.run(&["dpkg", "--install", deb])?;
    ensure!(fs::read_to_string(root.path().join(&file[1..]))? == edited, "an upgrade has changed {file}");
    root.run(&["dpkg", "--remove", "tidegate"])?;
    ensure!(root.path().join(&file[1..]).exists(), "a removal has deleted {file}");
    root.run(&["dpkg", "--purge", "tidegate"])?;
    let after = root.listing()?;
    if before != after {
        let lines: Vec<&str> = before.lines().collect();
        let left: Vec<&str> = after.lines().filter(|line| !lines.contains(line)).collect();
        bail!("a purge leaves or changes:\n{}", left.join("\n"));
    }
    ensure!(root.run(&["getent", "passwd", "tidegate"]).is_err(), "a purge leaves the user");
    Ok(())
}

/// Puts tidegate in the place of PgBouncer, runs it with PgBouncer's files, and swaps back.
fn swapped(root: &Root, tidegate: &str, swap: &str) -> Result<()> {
    let before = root.listing()?;
    let ini = "/etc/pgbouncer/pgbouncer.ini";
    root.run(&["dpkg", "--install", tidegate, swap])?;
    ensure!(root.run(&["readlink", "-f", "/usr/sbin/pgbouncer"])?.trim() == "/usr/bin/tidegate", "no swap");
    ensure!(root.run(&["pgbouncer", "--version"])?.contains("Tidegate"), "the path runs another program");
    // As the unit of the package starts it: the process has the pid file, the log and the socket of PgBouncer.
    run_command(
        root.command(&["install", "-d", "-o", "postgres", "-m", "2775", "/run/postgresql"]).stdout(Stdio::null()),
    )?;
    root.run(&["chown", "postgres:postgres", "/run/postgresql", "/var/log/postgresql"])?;
    let start = format!("exec /usr/sbin/pgbouncer -q {ini}");
    let mut pooler =
        root.command(&["su", "-s", "/bin/sh", "postgres", "-c", &start]).spawn().context("start the pooler")?;
    let answered = until_ok(|| root.run(&["tidegate", "healthcheck", "--config", ini]));
    let pid = fs::read_to_string(root.path().join("run/postgresql/pgbouncer.pid"));
    let log = fs::read_to_string(root.path().join("var/log/postgresql/pgbouncer.log"));
    let stopped = root.run(&["sh", "-c", "kill -INT $(cat /run/postgresql/pgbouncer.pid)"]);
    if stopped.is_err() {
        pooler.kill()?;
    }
    let status = pooler.wait()?;
    answered.context("the pooler does not answer")?;
    pid.context("there is no pid file where PgBouncer's is")?;
    ensure!(status.success(), "the pooler ends with {status}");
    ensure!(log?.contains("listening"), "there is no log where PgBouncer's is");
    root.run(&["dpkg", "--remove", "tidegate-pgbouncer"])?;
    root.run(&["dpkg", "--purge", "tidegate", "tidegate-pgbouncer"])?;
    ensure!(root.listing()? == before, "swapping back does not restore every file");
    Ok(())
}

/// Repeats a check while a process starts, for ten seconds at most.
fn until_ok(check: impl Fn() -> Result<String>) -> Result<String> {
    for _ in 0..50 {
        if let Ok(output) = check() {
            return Ok(output);
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    check()
}

/// OP-08, OP-16, OP-17, OP-19. Runs the image read-only, without capabilities and as an arbitrary user: it serves from
/// `DATABASE_URL` alone, and its password is in no log and no argument. The second run has the system calls of the unit, the
/// third one no io_uring.
pub(super) fn run_image(release: &Release) -> Result<()> {
    let io = if machine::allows_io_uring() { "io_uring" } else { "epoll" };
    run_image_with(release, "image", None, io)?;
    run_image_with(release, "filter", Some(seccomp::unit()?), io)?;
    run_image_with(release, "epoll", Some(seccomp::without_io_uring()), "epoll")
}

/// Unpacks the image. `seccomp` filters its system calls.
fn bundle(release: &Release, stage: &Stage, seccomp: Option<Value>) -> Result<PathBuf> {
    let file = package(release, "tidegate-", &format!("-image-{}.tar", tarball::architecture()))?;
    let layout = stage.path().join("layout");
    fs::create_dir(&layout)?;
    run_command(Command::new("tar").arg("--extract").arg("--file").arg(&file).arg("--directory").arg(&layout))?;
    let bundle = stage.path().join("bundle");
    let image = format!("{}:{}", layout.display(), release.version);
    run_command(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle))?;
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    config["root"]["readonly"] = json!(true);
    config["process"]["terminal"] = json!(false);
    config["process"]["user"] = json!({ "uid": 1_000_770_000, "gid": 0 });
    config["process"]["capabilities"] = json!({});
    config["process"]["noNewPrivileges"] = json!(true);
    if let Some(seccomp) = seccomp {
        config["linux"]["seccomp"] = seccomp;
    }
    let url = "DATABASE_URL=postgres://app:hunter2@127.0.0.1:1/shop";
    config["process"]["env"].as_array_mut().context("a bundle has variables")?.push(json!(url));
    fs::write(&path, config.to_string())?;
    Ok(bundle)
}

fn run_image_with(release: &Release, run: &str, seccomp: Option<Value>, io: &str) -> Result<()> {
    let stage = Stage::new()?;
    let bundle = bundle(release, &stage, seccomp)?;
    let name = format!("tidegate-{run}-{}", std::process::id());
    let log = fs::File::create(stage.path().join("log"))?;
    let mut container = Command::new("runc");
    container.args(["run", "--bundle"]).arg(&bundle).arg(&name).stdin(Stdio::null());
    let mut container = container.stdout(log.try_clone()?).stderr(log).spawn().context("start runc")?;
    let check = || output_of(Command::new("runc").args(["exec", &name, "/usr/bin/tidegate", "healthcheck"]));
    let answered = until_ok(check);
    let arguments = output_of(Command::new("ps").args(["-eo", "args"]));
    let stopped = output_of(Command::new("runc").args(["kill", &name, "TERM"]));
    let status = if stopped.is_ok() { Some(container.wait()?) } else { None };
    let log = fs::read_to_string(stage.path().join("log"))?;
    answered.with_context(|| format!("{run}: the container does not answer:\n{log}"))?;
    ensure!(status.is_some_and(|status| status.success()), "{run}: the container ends with {status:?}:\n{log}");
    ensure!(!log.contains("hunter2") && !arguments?.contains("hunter2"), "the password is shown:\n{log}");
    let start: Vec<&str> = log.lines().filter(|line| line.contains("tidegate started")).collect();
    ensure!(start.len() == 1 && start[0].contains(&format!("io={io} ")), "{run}: not {io}:\n{log}");
    Ok(())
}
