//! The files that a configuration names: found, readable, and of the right kind.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Checker, Section};
use crate::{raw::Value, secret::Secret, setting::Setting};

/// Whether files that the configuration names are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disk<'p> {
    /// They are; relative paths begin at this folder.
    Folder(&'p Path),
    /// They are not.
    Untouched,
}

/// A password file has one line; what follows these bytes is not read.
const PASSWORD_FILE_BYTES_MAX: u64 = 64 << 10;

/// Others than the owner's group may read.
const WORLD_READABLE: u32 = 0o004;

impl Checker<'_> {
    /// Makes a path absolute and sees that its file can be read; whether it can.
    pub(super) fn file(&mut self, section: &Section<'_>, key: &str, path: &mut PathBuf) -> bool {
        self.on_disk(section, key, path, |path| {
            // Opening anything else than a file (a pipe) might wait for ever.
            expect(path, Metadata::is_file, "it is not a file")?;
            File::open(path).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Makes a path absolute and sees that it is a folder.
    pub(super) fn folder(&mut self, section: &Section<'_>, key: &str, path: &mut PathBuf) -> bool {
        self.on_disk(section, key, path, |path| expect(path, Metadata::is_dir, "it is not a folder"))
    }

    /// Makes a path absolute; whether it can be used is seen when it is opened, as it is made then.
    pub(super) fn future_path(&self, path: &mut PathBuf) {
        if let (Disk::Folder(folder), false) = (self.disk, path.as_os_str().is_empty()) {
            let joined = folder.join(&*path);
            *path = std::path::absolute(&joined).unwrap_or(joined);
        }
    }

    fn on_disk(
        &mut self,
        section: &Section<'_>,
        key: &str,
        path: &mut PathBuf,
        test: fn(&Path) -> Result<(), String>,
    ) -> bool {
        let Disk::Folder(folder) = self.disk else {
            return true;
        };
        if path.as_os_str().is_empty() {
            return true;
        }
        let joined = folder.join(&*path);
        *path = std::path::absolute(&joined).unwrap_or(joined);
        let Err(reason) = test(path) else { return true };
        let help = "relative paths begin at the folder of the configuration file";
        let reason = format!("cannot use {}: {reason}", path.display());
        self.unusable(&section.place(&[key, "url"]), reason, help);
        false
    }

    /// The password in a file, unless files are not read or this one cannot be.
    pub(super) fn password_file(&mut self, section: &Section<'_>, mut path: PathBuf) -> Option<Secret> {
        if matches!(self.disk, Disk::Untouched) || !self.file(section, "password_file", &mut path) {
            return None;
        }
        let place = section.place(&["password_file"]);
        let (password, mode) = match read_password(&path) {
            Ok(read) => read,
            Err(reason) => {
                let reason = format!("cannot use {}: {reason}", path.display());
                self.unusable(&place, reason, "its first line is the password");
                return None;
            }
        };
        if mode & WORLD_READABLE != 0 {
            let reason = format!("everybody on this machine can read {}", path.display());
            self.warning(place, reason, format!("chmod 600 {}", path.display()));
        }
        Some(password)
    }
}

fn expect(path: &Path, kind: fn(&Metadata) -> bool, otherwise: &str) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if kind(&metadata) { Ok(()) } else { Err(otherwise.to_owned()) }
}

/// The first line of a password file, and the file's permissions.
fn read_password(path: &Path) -> Result<(Secret, u32), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode();
    let mut text = String::new();
    let read = file.take(PASSWORD_FILE_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let line = text.lines().next().unwrap_or("");
    match String::read(&Value::Text(line.to_owned())) {
        Ok(line) if line.is_empty() => Err("its first line is empty".to_owned()),
        Ok(line) => Ok((Secret::new(line), mode)),
        Err(wrong) => Err(wrong.reason),
    }
}
