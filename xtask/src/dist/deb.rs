//! The packages of Debian and Ubuntu.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tarball::{architecture, checksums};
use super::{Release, Stage, sbom};
use crate::repository::{output_of, root, run as run_command};

/// Revision of the packaging.
const REVISION: &str = "1";
const MAINTAINER: &str = "The Tidegate developers <packages@tidegate.invalid>";

/// A package; the fields are those of `DEBIAN/control`.
struct Package {
    name: &'static str,
    depends: String,
    recommends: &'static str,
    summary: &'static str,
    description: &'static [&'static str],
    /// Files that keep the changes of the administrator.
    conffiles: &'static [&'static str],
    /// Maintainer scripts in `packaging/deb/NAME`.
    scripts: &'static [&'static str],
    /// The binary that a package of debug symbols belongs to.
    build_id: Option<String>,
}

/// Makes `tidegate` and `tidegate-pgbouncer`.
pub(super) fn make(release: &Release) -> Result<[PathBuf; 2]> {
    let made = [service(release)?, pgbouncer(release)?];
    checksums(release)?;
    Ok(made)
}

fn version(release: &Release) -> String {
    format!("{}-{REVISION}", release.version)
}

fn service(release: &Release) -> Result<PathBuf> {
    let stage = Stage::new()?;
    stage.add_binary(release, "usr/bin/tidegate")?;
    stage.add_documents(release)?;
    stage.add_completions(release, "usr/share/zsh/vendor-completions/_tidegate")?;
    sbom::add(release, &stage, "usr/share/doc/tidegate/tidegate.cdx.json")?;
    // Debian 12 has no merged /lib in the eyes of dpkg.
    stage.add_service("lib/systemd/system")?;
    let package = Package {
        name: "tidegate",
        depends: format!("adduser, {}", libraries(&stage.path().join("usr/bin/tidegate"))?),
        recommends: "logrotate",
        summary: "Postgres gateway: connection pooler, query log and ordered streams",
        description: &[
            "Tidegate is one binary between applications and Postgres. It pools",
            "connections like PgBouncer, logs every query without delaying clients,",
            "and delivers streams of records in order per key.",
        ],
        conffiles: &["/etc/logrotate.d/tidegate", "/etc/tidegate/tidegate.toml"],
        scripts: &["postinst", "prerm", "postrm"],
        build_id: None,
    };
    package.build(release, &stage)
}

/// `tidegate-dbgsym`, from a tree with the debug symbols of this build.
pub(super) fn symbols(release: &Release, stage: &Stage, build_id: &str) -> Result<PathBuf> {
    let package = Package {
        name: "tidegate-dbgsym",
        depends: format!("tidegate (= {})", version(release)),
        recommends: "",
        summary: "debug symbols for tidegate",
        description: &["Debuggers and perf find them by the build ID of the binary."],
        conffiles: &[],
        scripts: &[],
        build_id: Some(build_id.to_owned()),
    };
    package.build(release, stage)
}

fn pgbouncer(release: &Release) -> Result<PathBuf> {
    let stage = Stage::new()?;
    stage.link("usr/sbin/pgbouncer", "../bin/tidegate")?;
    let unit = "lib/systemd/system/pgbouncer.service.d/tidegate.conf";
    stage.copy("packaging/systemd/pgbouncer-tidegate.conf", unit, 0o644)?;
    let package = Package {
        name: "tidegate-pgbouncer",
        depends: format!("pgbouncer, tidegate (= {})", version(release)),
        recommends: "",
        summary: "Tidegate in place of PgBouncer, with its unit and files",
        description: &[
            "Installing this package lets pgbouncer.service run tidegate, with the",
            "files, the user, the sockets and the log of PgBouncer. Removing it runs",
            "PgBouncer again. No file of the package pgbouncer is changed.",
        ],
        conffiles: &[],
        scripts: &["preinst", "postinst", "postrm"],
        build_id: None,
    };
    package.build(release, &stage)
}

/// The shared libraries of the binary as dependencies: glibc in the version of its newest symbol, and libgcc.
fn libraries(binary: &Path) -> Result<String> {
    let symbols = output_of(Command::new("readelf").args(["--version-info", "--wide"]).arg(binary))?;
    let versions = symbols.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let parsed = versions.filter_map(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    });
    let (major, minor) = parsed.max().context("the binary names no version of glibc")?;
    let mut libraries = format!("libc6 (>= {major}.{minor})");
    let needed = output_of(Command::new("readelf").args(["--dynamic", "--wide"]).arg(binary))?;
    for (library, package) in
        [("libgcc_s", "libgcc-s1 (>= 3.0)"), ("libpam.so", "libpam0g"), ("libssl.so.3", "libssl3 (>= 3.0.0)")]
    {
        if needed.lines().any(|line| line.contains("(NEEDED)") && line.contains(library)) {
            // Writing to a string does not fail.
            let _ = write!(libraries, ", {package}");
        }
    }
    Ok(libraries)
}

impl Package {
    fn build(&self, release: &Release, stage: &Stage) -> Result<PathBuf> {
        let doc = format!("usr/share/doc/{}", self.name);
        stage.copy("packaging/common/copyright", &format!("{doc}/copyright"), 0o644)?;
        let changelog = format!("{doc}/changelog.Debian");
        stage.write(&changelog, 0o644, self.changelog(release)?)?;
        stage.compress(&changelog)?;
        let overrides = root().join(format!("packaging/deb/{}/lintian-overrides", self.name));
        if overrides.is_file() {
            stage.write(&format!("usr/share/lintian/overrides/{}", self.name), 0o644, fs::read(overrides)?)?;
        }
        let installed = size_kib(stage.path())?;
        stage.write("DEBIAN/md5sums", 0o644, md5sums(stage.path())?)?;
        stage.write("DEBIAN/control", 0o644, self.control(release, installed))?;
        if !self.conffiles.is_empty() {
            stage.write("DEBIAN/conffiles", 0o644, self.conffiles.join("\n") + "\n")?;
        }
        for script in self.scripts {
            let path = format!("packaging/deb/{}/{script}", self.name);
            stage.copy(&path, &format!("DEBIAN/{script}"), 0o755)?;
        }
        let file = release.out.join(format!("{}_{}_{}.deb", self.name, version(release), architecture()));
        let mut command = release.command("dpkg-deb");
        command
            // The output of xz depends on the number of threads.
            .args(["--root-owner-group", "--threads-max=1", "-Zxz", &format!("-z{}", release.level), "--build"])
            .arg(stage.path())
            .arg(&file);
        run_command(&mut command)?;
        Ok(file)
    }

    fn control(&self, release: &Release, installed: u64) -> String {
        let recommends = match self.recommends {
            "" => String::new(),
            packages => format!("Recommends: {packages}\n"),
        };
        let (section, build_id) = match &self.build_id {
            Some(id) => ("debug", format!("Auto-Built-Package: debug-symbols\nBuild-Ids: {id}\n")),
            None => ("database", String::new()),
        };
        format!(
            "Package: {}\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {installed}\n\
             Depends: {}\n{recommends}{build_id}Section: {section}\nPriority: optional\nDescription: {}\n {}\n",
            self.name,
            version(release),
            architecture(),
            self.depends,
            self.summary,
            self.description.join("\n ")
        )
    }

    fn changelog(&self, release: &Release) -> Result<String> {
        let mut date = release.command("date");
        let date = output_of(date.args(["-u", "-R", &format!("--date=@{}", release.epoch)]))?;
        Ok(format!(
            "{} ({}) unstable; urgency=medium\n\n  * Release {}; CHANGELOG.md of the project has the changes.\n\n -- \
             {MAINTAINER}  {}\n",
            self.name,
            version(release),
            release.version,
            date.trim()
        ))
    }
}

/// Every file below a folder, relative and sorted.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(folder)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn size_kib(folder: &Path) -> Result<u64> {
    let sizes = files_below(folder)?.into_iter().map(|file| fs::metadata(folder.join(file)).map(|found| found.len()));
    Ok(sizes.sum::<std::io::Result<u64>>()?.div_ceil(1024))
}

fn md5sums(folder: &Path) -> Result<String> {
    output_of(Command::new("md5sum").args(files_below(folder)?).current_dir(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintainer_scripts_exist_and_stop_at_errors() {
        for (package, scripts) in [
            ("tidegate", &["postinst", "prerm", "postrm"][..]),
            ("tidegate-pgbouncer", &["preinst", "postinst", "postrm"]),
        ] {
            for script in scripts {
                let path = root().join(format!("packaging/deb/{package}/{script}"));
                let text = fs::read_to_string(&path).expect("the script exists");
                assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{}", path.display());
            }
        }
    }
}
