//! A tree of files that becomes a package.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Release;
use crate::repository::{root, run as run_command};

/// A temporary tree; removed when dropped.
#[derive(Debug)]
pub(super) struct Stage(tempfile::TempDir);

impl Stage {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("make a temporary folder")?;
        // Every path of a package is readable.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in the tree, whose folders are made.
    pub(super) fn file(&self, path: &str) -> Result<PathBuf> {
        let file = self.0.path().join(path);
        let mut made = self.0.path().to_owned();
        for folder in Path::new(path).parent().unwrap_or(Path::new("")).components() {
            made.push(folder);
            if !made.is_dir() {
                fs::create_dir(&made).with_context(|| format!("create {}", made.display()))?;
                fs::set_permissions(&made, Permissions::from_mode(0o755))?;
            }
        }
        Ok(file)
    }

    pub(super) fn write(&self, path: &str, mode: u32, bytes: impl AsRef<[u8]>) -> Result<()> {
        let file = self.file(path)?;
        fs::write(&file, bytes).with_context(|| format!("write {}", file.display()))?;
        Ok(fs::set_permissions(file, Permissions::from_mode(mode))?)
    }

    /// Copies a file of the repository.
    pub(super) fn copy(&self, from: &str, path: &str, mode: u32) -> Result<()> {
        self.write(path, mode, fs::read(root().join(from)).with_context(|| format!("read {from}"))?)
    }

    pub(super) fn link(&self, path: &str, target: &str) -> Result<()> {
        symlink(target, self.file(path)?).with_context(|| format!("link {path}"))
    }

    pub(super) fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        Ok(fs::set_permissions(self.0.path().join(path), Permissions::from_mode(mode))?)
    }

    /// An empty folder.
    pub(super) fn folder(&self, path: &str) -> Result<()> {
        self.file(&format!("{path}/any"))?;
        Ok(())
    }

    /// Copies the files below a folder.
    pub(super) fn add_tree(&self, from: &Path, path: &str) -> Result<()> {
        for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let target = format!("{path}/{}", name.to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.add_tree(&entry.path(), &target)?;
            } else {
                self.write(&target, 0o644, fs::read(entry.path())?)?;
            }
        }
        Ok(())
    }

    /// Compresses a file without its time and name.
    pub(super) fn compress(&self, path: &str) -> Result<()> {
        run_command(Command::new("gzip").args(["-9", "-n"]).arg(self.0.path().join(path)))
    }

    /// The binary without symbols.
    pub(super) fn add_binary(&self, release: &Release, path: &str) -> Result<()> {
        let file = self.file(path)?;
        run_command(Command::new("strip").arg("--strip-all").arg("-o").arg(&file).arg(&release.binary))?;
        Ok(fs::set_permissions(file, Permissions::from_mode(0o755))?)
    }

    /// Manual pages below `man`, and completions, which the binary itself prints.
    pub(super) fn add_documents(&self, release: &Release) -> Result<()> {
        let pages = tempfile::tempdir()?;
        run_command(release.command(&release.binary.display().to_string()).arg("man").arg(pages.path()))?;
        for entry in fs::read_dir(pages.path())? {
            let page = entry?;
            let name = page.file_name().to_string_lossy().into_owned();
            let section = name.rsplit('.').next().unwrap_or("1").to_owned();
            let path = format!("usr/share/man/man{section}/{name}");
            self.write(&path, 0o644, fs::read(page.path())?)?;
            self.compress(&path)?;
        }
        Ok(())
    }

    /// Completions of the three shells, where the packages of distributions have them.
    pub(super) fn add_completions(&self, release: &Release, zsh: &str) -> Result<()> {
        let places = [
            ("bash", "usr/share/bash-completion/completions/tidegate"),
            ("zsh", zsh),
            ("fish", "usr/share/fish/vendor_completions.d/tidegate.fish"),
        ];
        for (shell, path) in places {
            let mut command = release.command(&release.binary.display().to_string());
            self.write(path, 0o644, crate::repository::output_of(command.args(["completions", shell]))?)?;
        }
        Ok(())
    }

    /// Configuration, log rotation and units, which deb and rpm share.
    pub(super) fn add_service(&self, units: &str) -> Result<()> {
        self.copy("packaging/common/tidegate.toml", "etc/tidegate/tidegate.toml", 0o640)?;
        self.copy("packaging/common/logrotate", "etc/logrotate.d/tidegate", 0o644)?;
        for unit in ["tidegate.service", "tidegate.socket"] {
            self.copy(&format!("packaging/systemd/{unit}"), &format!("{units}/{unit}"), 0o644)?;
        }
        self.copy("packaging/systemd/tidegate.tmpfiles", "usr/lib/tmpfiles.d/tidegate.conf", 0o644)?;
        self.copy("tidegate.example.toml", "usr/share/doc/tidegate/tidegate.example.toml", 0o644)
    }
}
