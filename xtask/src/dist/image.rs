//! The container image, as an OCI layout in a tar: a base made of Debian packages without a shell, and a layer with the binary.
//!
//! The layout is a few JSON documents (<https://github.com/opencontainers/image-spec>), so no daemon and no builder is needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tarball::{architecture, archive, checksums};
use super::{Release, Stage, sbom};
use crate::repository::{output_of, run as run_command};

/// Programs that make the image.
pub(super) const TOOLS: [&str; 6] = ["apt-get", "dpkg-deb", "tar", "gzip", "strip", "sha256sum"];

/// Packages of the base: glibc, certificates of authorities, time zones, names of services.
const BASE: [&str; 6] = ["base-files", "ca-certificates", "libc6", "libgcc-s1", "netbase", "tzdata"];

/// User and group of the process. Kubernetes cannot check `runAsNonRoot` with names.
pub(super) const USER: &str = "65532:65532";

/// Most bytes of the layer with the binary.
pub(super) const LAYER_BYTES_MAX: u64 = 30_000_000;

/// A blob of the layout.
struct Blob {
    digest: String,
    size: u64,
    /// Digest of the layer before compression.
    diff_id: String,
}

/// Makes `tidegate-VERSION-image-ARCH.tar`.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let layout = Stage::new()?;
    layout.folder("blobs/sha256")?;
    let base = layer(release, &layout, &base(release)?)?;
    let own = layer(release, &layout, &own(release)?)?;
    ensure!(own.size <= LAYER_BYTES_MAX, "the layer with the binary has {} bytes of {LAYER_BYTES_MAX}", own.size);
    let config = document(&layout, &image_config(release, &[&base.diff_id, &own.diff_id])?)?;
    let layer_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    let described = |blob: &Blob| json!({ "mediaType": layer_type, "digest": blob.digest, "size": blob.size });
    let manifest = document(
        &layout,
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.digest, "size": config.size,
            },
            "layers": [described(&base), described(&own)],
            "annotations": labels(release)?,
        }),
    )?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest.digest,
            "size": manifest.size,
            "platform": { "architecture": architecture(), "os": "linux" },
            "annotations": { "org.opencontainers.image.ref.name": release.version },
        }],
    });
    layout.write("index.json", 0o644, index.to_string())?;
    layout.write("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let file = release.out.join(format!("tidegate-{}-image-{}.tar", release.version, architecture()));
    let mut command = release.command("tar");
    command.args(["--create", "--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    command.arg(format!("--mtime=@{}", release.epoch)).arg("--file").arg(&file).arg("--directory").arg(layout.path());
    run_command(command.args(["blobs", "index.json", "oci-layout"]))?;
    checksums(release)?;
    println!("image: our layer has {} bytes, the base {}", own.size, base.size);
    Ok(file)
}

fn labels(release: &Release) -> Result<BTreeMap<String, String>> {
    let mut date = release.command("date");
    let created = output_of(date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", &format!("--date=@{}", release.epoch)]))?;
    let labels = [
        ("title", "tidegate"),
        ("description", "Postgres gateway: connection pooler, query log and ordered streams"),
        ("licenses", "MIT OR Apache-2.0"),
        ("version", &release.version),
        ("revision", &crate::repository::commit()),
        ("created", created.trim()),
    ];
    Ok(labels.into_iter().map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned())).collect())
}

fn image_config(release: &Release, diff_ids: &[&str]) -> Result<Value> {
    let labels = labels(release)?;
    Ok(json!({
        "created": labels["org.opencontainers.image.created"],
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": USER,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": ["/usr/bin/tidegate"],
            "Cmd": ["container"],
            "WorkingDir": "/",
            "ExposedPorts": { "6432/tcp": {}, "5432/tcp": {} },
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": [
            { "created": labels["org.opencontainers.image.created"], "created_by": "packages of Debian" },
            { "created": labels["org.opencontainers.image.created"], "created_by": "cargo xtask dist" },
        ],
    }))
}

/// The files of the packages, extracted and not configured, with what their scripts would make.
fn base(release: &Release) -> Result<Stage> {
    let (downloads, stage) = (Stage::new()?, Stage::new()?);
    // The user of apt's sandbox has to be able to write.
    let mut download = release.command("apt-get");
    download.args(["download", "-qq", "-o", "APT::Sandbox::User=root"]).args(BASE).current_dir(downloads.path());
    run_command(&mut download)?;
    let mut debs: Vec<PathBuf> = fs::read_dir(downloads.path())?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    debs.sort();
    for deb in debs {
        run_command(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(stage.path()))?;
        // Scanners of vulnerabilities find the packages here.
        let control = output_of(Command::new("dpkg-deb").arg("--field").arg(&deb))?;
        let name = control.lines().find_map(|line| line.strip_prefix("Package: ")).context("a package has a name")?;
        stage.write(&format!("var/lib/dpkg/status.d/{name}"), 0o644, &control)?;
    }
    let authorities = stage.path().join("usr/share/ca-certificates/mozilla");
    let mut names: Vec<PathBuf> = fs::read_dir(&authorities)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    let certificates = names.iter().map(fs::read_to_string).collect::<std::io::Result<Vec<_>>>()?;
    stage.write("etc/ssl/certs/ca-certificates.crt", 0o644, certificates.concat())?;
    stage.write(
        "etc/passwd",
        0o644,
        "root:x:0:0:root:/root:/sbin/nologin\ntidegate:x:65532:65532::/:/sbin/nologin\n",
    )?;
    stage.write("etc/group", 0o644, "root:x:0:\ntidegate:x:65532:\n")?;
    stage.write("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n")?;
    for folder in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"] {
        keep_copyright(&stage.path().join(folder))?;
    }
    Ok(stage)
}

/// Removes documentation but the licences.
fn keep_copyright(folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            keep_copyright(&entry.path())?;
        } else if entry.file_name() != "copyright" {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The binary under its name and under PgBouncer's, where operators start it.
fn own(release: &Release) -> Result<Stage> {
    let stage = Stage::new()?;
    stage.add_binary(release, "usr/bin/tidegate")?;
    stage.link("usr/bin/pgbouncer", "tidegate")?;
    sbom::add(release, &stage, "usr/share/doc/tidegate/tidegate.cdx.json")?;
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        stage.copy(license, &format!("usr/share/doc/tidegate/{license}"), 0o644)?;
    }
    Ok(stage)
}

fn layer(release: &Release, layout: &Stage, tree: &Stage) -> Result<Blob> {
    let work = Stage::new()?;
    let packed = work.path().join("layer.tar.gz");
    archive(release, tree.path(), &packed)?;
    let raw = work.path().join("layer.tar");
    fs::write(&raw, Command::new("gzip").args(["-dc"]).arg(&packed).output()?.stdout)?;
    let diff_id = digest(&raw)?;
    let blob = store(layout, &packed)?;
    Ok(Blob { diff_id, ..blob })
}

fn document(layout: &Stage, value: &Value) -> Result<Blob> {
    let work = Stage::new()?;
    work.write("document", 0o644, value.to_string())?;
    store(layout, &work.path().join("document"))
}

fn store(layout: &Stage, file: &Path) -> Result<Blob> {
    let digest = digest(file)?;
    let name = digest.strip_prefix("sha256:").context("a digest names its algorithm")?;
    layout.write(&format!("blobs/sha256/{name}"), 0o644, fs::read(file)?)?;
    Ok(Blob { digest: digest.clone(), size: fs::metadata(file)?.len(), diff_id: String::new() })
}

fn digest(file: &Path) -> Result<String> {
    let printed = output_of(Command::new("sha256sum").arg(file))?;
    let sum = printed.split_whitespace().next().context("sha256sum prints a sum")?;
    Ok(format!("sha256:{sum}"))
}
