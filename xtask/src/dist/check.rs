//! Checks of the packages: OP-01 to OP-21 of the tested cases, as far as a machine without a running systemd and without
//! Kubernetes allows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::image::{LAYER_BYTES_MAX, USER};
use super::{Release, Stage, deb, debug, image, install, rpm, sbom, tarball, tool};
use crate::repository::{output_of, root, run as run_command};
use crate::step::{StepOutcome, Steps};

/// Exposure of the unit that `systemd-analyze security` may report at most, in tenths.
const EXPOSURE_MAX: u32 = 25;

/// Every check.
pub(super) fn run(release: &Release, steps: &mut Steps) {
    run_quick(release, steps);
    steps.run("reproducible-image", || {
        tool::with(&[&image::TOOLS[..], &debug::TOOLS].concat(), || reproducible_image(release))
    });
    let needed = ["mmdebstrap", "chroot", "dpkg"];
    steps.run("install", || tool::with(&needed, || install::check(release)));
    steps.run("image-check", || tool::with(&["skopeo", "umoci"], || image_contents(release)));
    steps.run("image-run", || tool::with(&["umoci", "runc", "systemd-analyze"], || install::run_image(release)));
}

/// The checks that take seconds and need no network.
pub(super) fn run_quick(release: &Release, steps: &mut Steps) {
    steps.run("reproducible", || tool::with(&["dpkg-deb", "rpmbuild"], || reproducible(release)));
    steps.run("units", || tool::with(&["systemd-analyze"], || units(release)));
    steps.run("lintian", || tool::with(&["lintian"], || lintian(release)));
    steps.run("rpm-check", || tool::with(&["rpm"], || rpm_contents(release)));
    steps.run("logrotate", || tool::with(&["logrotate"], logrotate));
    for shell in ["bash", "zsh", "fish"] {
        let name = match shell {
            "bash" => "completions-bash",
            "zsh" => "completions-zsh",
            _ => "completions-fish",
        };
        steps.run(name, || tool::with(&[shell], || completions(release, shell)));
    }
    steps.run("chart-check", || chart(release));
}

/// The only file of a folder whose name starts and ends like this.
pub(super) fn package(release: &Release, start: &str, end: &str) -> Result<PathBuf> {
    let names = fs::read_dir(&release.out)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(start) && name.ends_with(end)).collect();
    found.sort();
    let name = found.first().with_context(|| format!("there is no {start}*{end} in {}", release.out.display()))?;
    Ok(release.out.join(name))
}

/// Makes the packages once more and compares every byte.
fn reproducible(release: &Release) -> Result<()> {
    again(release, |second| {
        let mut made = vec![tarball::make(second)?, rpm::make(second)?];
        made.extend(deb::make(second)?);
        Ok(made)
    })
}

/// The files that CI does not make: they need minutes, or a network.
fn reproducible_image(release: &Release) -> Result<()> {
    again(release, |second| {
        let mut made = vec![image::make(second)?, super::chart(second)?, sbom::make(second)?];
        made.extend(debug::make(second)?);
        Ok(made)
    })
}

fn again(release: &Release, make: impl FnOnce(&Release) -> Result<Vec<PathBuf>>) -> Result<()> {
    let again = Stage::new()?;
    let second = Release { out: again.path().to_owned(), ..release.clone() };
    for file in make(&second)? {
        let name = file.file_name().context("a package has a name")?;
        ensure!(fs::read(&file)? == fs::read(release.out.join(name))?, "{} differs in a second run", name.display());
    }
    Ok(())
}

/// OP-07. The unit is valid, and its exposure bounded. A binary and pages in a temporary root stand for those of a package.
fn units(release: &Release) -> Result<()> {
    let stage = Stage::new()?;
    run_command(Command::new("dpkg-deb").arg("-x").arg(package(release, "tidegate_", ".deb")?).arg(stage.path()))?;
    let folder = stage.path().join("lib/systemd/system");
    // The path of the binary exists on machines with the package only.
    let binary = stage.path().join("usr/bin/tidegate").display().to_string();
    for unit in ["tidegate.service", "tidegate.socket"] {
        let file = folder.join(unit);
        let text = fs::read_to_string(&file)?.replace("/usr/bin/tidegate", &binary);
        let documented = |line: &&str| {
            !line.starts_with("Documentation=") && !line.starts_with("User=") && !line.starts_with("Group=")
        };
        fs::write(&file, text.lines().filter(documented).collect::<Vec<_>>().join("\n") + "\n")?;
    }
    let version = output_of(Command::new("systemd-analyze").arg("--version"))?;
    let version: u32 = version.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    let verified = verify.args(["tidegate.service", "tidegate.socket"].map(|unit| folder.join(unit))).output()?;
    let errors = String::from_utf8_lossy(&verified.stderr).into_owned();
    let unknown = |line: &str| version < 253 && line.contains("ignoring: notify-reload");
    let other: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty() && !unknown(line)).collect();
    let passed = verified.status.success() || errors.lines().any(unknown);
    ensure!(passed && other.is_empty(), "systemd-analyze verify ({}):\n{}", verified.status, other.join("\n"));
    let unit = root().join("packaging/systemd/tidegate.service");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let mut security = Command::new("systemd-analyze");
    let printed = output_of(security.args(["security", "--offline=true", "--no-pager", &threshold]).arg(unit))?;
    let exposure = printed.lines().find(|line| line.contains("Overall exposure")).unwrap_or_default();
    println!("{}", exposure.trim());
    Ok(())
}

/// OP-02.
fn lintian(release: &Release) -> Result<()> {
    for name in ["tidegate_", "tidegate-pgbouncer_"] {
        let mut command = Command::new("lintian");
        command.args(["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root", "--suppress-tags"]);
        // About uploads to Debian, and an address that is a placeholder.
        command.arg("initial-upload-closes-no-bugs,bogus-mail-host");
        run_command(command.arg(package(release, name, ".deb")?))?;
    }
    Ok(())
}

/// OP-06.
fn rpm_contents(release: &Release) -> Result<()> {
    let file = package(release, "tidegate-", ".rpm")?;
    let rpm = |arguments: &[&str]| output_of(Command::new("rpm").arg("--nosignature").args(arguments).arg(&file));
    let listed = rpm(&[
        "-qp",
        "--qf",
        "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]",
    ])?;
    for line in [
        "/usr/bin/tidegate -rwxr-xr-x root:root ",
        "/etc/tidegate/tidegate.toml -rw-r----- root:tidegate cn",
        "/usr/lib/systemd/system/tidegate.service -rw-r--r-- root:root ",
        "/var/lib/tidegate drwxr-x--- tidegate:tidegate ",
    ] {
        ensure!(listed.lines().any(|known| known == line), "`{line}` is not in\n{listed}");
    }
    for page in ["man1/tidegate.1.gz", "man5/tidegate.toml.5.gz"] {
        ensure!(listed.contains(page), "{page} is not in\n{listed}");
    }
    let scripts = rpm(&["-qp", "--scripts"])?;
    ensure!(scripts.contains("useradd") && scripts.contains("try-restart"), "scripts:\n{scripts}");
    let mut installed = Command::new("rpm");
    let folder = Stage::new()?;
    let database = format!("{}/db", folder.path().display());
    installed.args(["--dbpath", &database, "-qp", "--requires", "--nosignature"]).arg(&file);
    ensure!(output_of(&mut installed)?.contains("libc.so.6"), "the package requires no libc");
    Ok(())
}

/// The rotation is valid; what it does at a rotation is a part of the tests of the log.
fn logrotate() -> Result<()> {
    let stage = Stage::new()?;
    let text = fs::read_to_string(root().join("packaging/common/logrotate"))?;
    // The user of the package does not exist here.
    stage.write("logrotate", 0o644, text.replace("0640 tidegate tidegate", "0640"))?;
    let program = tool::find("logrotate").context("logrotate was found before")?;
    let mut command = Command::new(program);
    command.args(["--debug", "--state"]).arg(stage.path().join("state")).arg(stage.path().join("logrotate"));
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && !printed.contains("error"), "{printed}");
    Ok(())
}

/// OP-14. The shell reads the script without an error.
fn completions(release: &Release, shell: &str) -> Result<()> {
    let stage = Stage::new()?;
    let script = output_of(Command::new(&release.binary).args(["completions", shell]))?;
    stage.write("script", 0o644, script)?;
    let file = stage.path().join("script");
    match shell {
        "bash" => {
            let source = format!(". {} && complete -p tidegate", file.display());
            let printed = output_of(Command::new("bash").args(["--norc", "-c", &source]))?;
            ensure!(printed.contains("_tidegate"), "{printed}");
            Ok(())
        }
        other => run_command(Command::new(other).arg("-n").arg(&file)),
    }
}

/// OP-20, OP-21.
fn chart(release: &Release) -> StepOutcome {
    let helm = std::env::var_os("TIDEGATE_HELM").map(PathBuf::from).or_else(|| tool::find("helm"));
    let Some(helm) = helm else { return tool::with(&["helm"], || Ok(())) };
    chart_with(&helm, release).into()
}

/// Version of Kubernetes for which the chart is rendered; without one, helm assumes the version of its own libraries.
const KUBERNETES: [&str; 2] = ["--kube-version", "1.32.0"];

fn chart_with(helm: &Path, release: &Release) -> Result<()> {
    let chart = root().join("packaging/helm/tidegate");
    let described = fs::read_to_string(chart.join("Chart.yaml"))?;
    for line in [format!("version: {}", release.version), format!("appVersion: \"{}\"", release.version)] {
        ensure!(described.lines().any(|known| known == line), "`{line}` is not in Chart.yaml");
    }
    let lint = ["lint", "--strict", "--quiet", "--values"];
    let full = chart.join("ci/full-values.yaml");
    run_command(Command::new(helm).args(lint).arg(full).args(KUBERNETES).arg(&chart))?;
    let template = |arguments: &[&str]| {
        let mut command = Command::new(helm);
        command.args(["template", "t"]).arg(&chart).args(KUBERNETES).args(arguments);
        command
    };
    let render = |arguments: &[&str]| output_of(&mut template(arguments));
    let mut files: Vec<PathBuf> =
        fs::read_dir(chart.join("ci"))?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    ensure!(!files.is_empty(), "the chart has no ci/*-values.yaml");
    for file in files {
        let text = render(&["--values", &file.display().to_string()])?;
        let has_workload = ["kind: Deployment", "kind: DaemonSet"].iter().any(|kind| text.contains(kind));
        ensure!(has_workload, "{}: no workload\n{text}", file.display());
    }
    let database = "config.databases.shop.host=db";
    let config = |size: &str| render(&["--set", &format!("{database},config.pool.size={size}")]);
    let checksum = |text: &str| text.lines().find(|line| line.contains("checksum/config")).map(str::to_owned);
    let (one, other) = (checksum(&config("1")?), checksum(&config("2")?));
    ensure!(one.is_some() && one != other, "a changed configuration does not change the pods: {one:?}");
    accepted_by_binary(release, &config("40")?)?;
    let secret = render(&["--set", &format!("{database},config.users.app.password=hunter2")])?;
    for document in secret.split("\n---").filter(|document| document.contains("hunter2")) {
        ensure!(document.contains("kind: Secret"), "a password is outside of a Secret:\n{document}");
    }
    for refused in ["replicaCount=many", "replicas=2", "kind=StatefulSet"] {
        let output = template(&["--set", &format!("{database},{refused}")]).output()?;
        ensure!(!output.status.success(), "values.schema.json accepts {refused}");
    }
    ensure!(!template(&[]).output()?.status.success(), "the chart renders without a database");
    Ok(())
}

/// The configuration in the rendered Secret is accepted by the gateway.
fn accepted_by_binary(release: &Release, rendered: &str) -> Result<()> {
    let (_, after) = rendered.split_once("tidegate.toml: |\n").context("the chart renders a configuration")?;
    let lines = after.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: String = lines.map(|line| format!("{}\n", line.trim_start())).collect();
    let stage = Stage::new()?;
    stage.write("tidegate.toml", 0o600, &text)?;
    let checked = Command::new(&release.binary).arg("check").arg(stage.path().join("tidegate.toml")).output()?;
    ensure!(checked.status.success(), "{}\n{text}", String::from_utf8_lossy(&checked.stdout));
    Ok(())
}

/// OP-15.
fn image_contents(release: &Release) -> Result<()> {
    let file = package(release, "tidegate-", &format!("-image-{}.tar", tarball::architecture()))?;
    let inspected =
        output_of(Command::new("skopeo").args(["inspect", "--config"]).arg(format!("oci-archive:{}", file.display())))?;
    let config: Value = serde_json::from_str(&inspected).context("skopeo prints JSON")?;
    ensure!(config["config"]["User"] == USER, "the user is {}", config["config"]["User"]);
    ensure!(config["config"]["StopSignal"] == "SIGTERM", "the signal is {}", config["config"]["StopSignal"]);
    ensure!(config["config"]["Entrypoint"][0] == "/usr/bin/tidegate", "{}", config["config"]["Entrypoint"]);
    let layers =
        output_of(Command::new("skopeo").args(["inspect", "--raw"]).arg(format!("oci-archive:{}", file.display())))?;
    let manifest: Value = serde_json::from_str(&layers).context("skopeo prints JSON")?;
    let size = manifest["layers"][1]["size"].as_u64().unwrap_or(u64::MAX);
    ensure!(size <= LAYER_BYTES_MAX, "the layer with the binary has {size} bytes");
    let labels = manifest["annotations"].as_object().context("the manifest has annotations")?;
    for label in ["title", "version", "revision", "licenses", "created"] {
        ensure!(labels.contains_key(&format!("org.opencontainers.image.{label}")), "the label {label} is missing");
    }
    Ok(())
}
