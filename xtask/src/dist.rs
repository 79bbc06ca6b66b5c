//! `cargo xtask dist`: the packages of a release, byte for byte the same from the same commit and binary: a tar.gz with
//! checksums, `tidegate` as deb and rpm, `tidegate-pgbouncer` as deb, an image, a Helm chart, debug symbols and a bill of
//! materials.
//!
//! The tools of the distributions make the packages (dpkg-deb, rpmbuild, tar); see
//! docs/src/internals/decisions/packages.md.

mod check;
mod deb;
mod debug;
mod image;
mod install;
mod rpm;
mod sbom;
mod seccomp;
mod stage;
mod tarball;
mod tool;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::repository::{PUBLISHED, cargo, metadata, output_of, root, run as run_command, target_dir};
use crate::step::{StepOutcome, Steps};
use stage::Stage;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Package this binary instead of building one with the profile `dist`
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,

    /// Check the packages too: lintian, units, installation in a root of its own, rpm, image, chart
    #[arg(long)]
    check: bool,

    /// Folder for the packages [default: target/dist-packages]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Only this step (repeatable): tarball, deb, rpm, image, chart, debug, sbom, and with --check reproducible, units,
    /// lintian, rpm-check, logrotate, completions-bash, completions-zsh, completions-fish, chart-check,
    /// reproducible-image, install, image-check, image-run
    #[arg(long)]
    only: Vec<String>,
}

/// The input of all packages.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    /// The binary.
    binary: PathBuf,
    /// Version of the workspace.
    version: String,
    /// Seconds since 1970 that every file gets as its time.
    epoch: u64,
    /// Folder of the packages.
    out: PathBuf,
    /// Level of compression: 9 for a release, 1 in CI, where only the content matters.
    level: u8,
}

impl Release {
    fn new(binary: &Path, out: &Path) -> Result<Self> {
        ensure!(binary.is_file(), "{} is not a file; build it first", binary.display());
        fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
        let binary = binary.canonicalize()?;
        Ok(Self { binary, version: version()?, epoch: epoch()?, out: out.canonicalize()?, level: 9 })
    }

    /// A command whose files get the time of the release.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SOURCE_DATE_EPOCH", self.epoch.to_string()).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command
    }
}

fn version() -> Result<String> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let package = packages.iter().find(|package| package["name"] == "tidegate");
    let version = package.and_then(|package| package["version"].as_str());
    version.map(str::to_owned).context("cargo metadata names the version of tidegate")
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn epoch() -> Result<u64> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().context("SOURCE_DATE_EPOCH is a number of seconds");
    }
    let commit = output_of(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()))?;
    commit.trim().parse().context("git prints the time of the last commit")
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let out = arguments.out.clone().map_or_else(|| Ok(target_dir()?.join("dist-packages")), anyhow::Ok)?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build()?,
    };
    let release = Release::new(&binary, &out)?;
    let mut steps = Steps::only(&arguments.only);
    make(&release, &mut steps);
    if arguments.check {
        check::run(&release, &mut steps);
    }
    steps.finish()?;
    println!("\npackages in {}", release.out.display());
    Ok(())
}

fn make(release: &Release, steps: &mut Steps) {
    steps.run("tarball", || tarball::make(release).map(drop));
    steps.run("deb", || tool::with(&["dpkg-deb", "gzip", "strip"], || deb::make(release).map(drop)));
    steps.run("rpm", || tool::with(&["rpmbuild", "gzip", "strip"], || rpm::make(release).map(drop)));
    steps.run("image", || tool::with(&image::TOOLS, || image::make(release).map(drop)));
    steps.run("chart", || make_chart(release));
    steps.run("debug", || tool::with(&debug::TOOLS, || debug::make(release).map(drop)));
    steps.run("sbom", || sbom::make(release).map(drop));
}

/// The chart as an archive that `helm install` takes.
fn make_chart(release: &Release) -> StepOutcome {
    tool::with(&["tar", "gzip"], || chart(release).map(drop))
}

fn chart(release: &Release) -> Result<PathBuf> {
    let stage = Stage::new()?;
    stage.add_tree(&root().join("packaging/helm/tidegate"), "tidegate")?;
    let archive = release.out.join(format!("tidegate-chart-{}.tgz", release.version));
    tarball::archive(release, stage.path(), &archive)?;
    Ok(archive)
}

/// Builds the binary of a release.
fn build() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["rustc", "--profile", "dist", "--locked", "-p", "tidegate", "--bin", "tidegate"]).args(PUBLISHED);
    // Debian's linker adds no build ID of its own, by which debuggers find the separate symbols.
    run_command(command.args(["--", "-C", "link-arg=-Wl,--build-id"]))?;
    Ok(target_dir()?.join("dist/tidegate"))
}

/// The step of CI: makes and checks the packages with the binary that the tests have built. Checks that need a network or
/// minutes are left to `cargo xtask dist --check`.
pub(crate) fn run_for_ci() -> Result<()> {
    let binary = target_dir()?.join("debug/tidegate");
    if !binary.is_file() {
        run_command(cargo().args(["build", "-p", "tidegate"]).args(crate::repository::FEATURES))?;
    }
    let release = Release { level: 1, ..Release::new(&binary, &target_dir()?.join("dist-ci"))? };
    let mut steps = Steps::default();
    steps.run("tarball", || tarball::make(&release).map(drop));
    steps.run("deb", || tool::with(&["dpkg-deb", "gzip", "strip"], || deb::make(&release).map(drop)));
    steps.run("rpm", || tool::with(&["rpmbuild", "gzip", "strip"], || rpm::make(&release).map(drop)));
    check::run_quick(&release, &mut steps);
    steps.finish()
}
