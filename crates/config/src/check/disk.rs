//! Files that a configuration names: they exist, can be read and have the right type.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Checker, SectionView};
use crate::{raw::RawValue, secret::Secret, setting::Setting};

/// Whether the check reads files that the configuration names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileAccess<'p> {
    /// Files are read; relative paths start at this folder.
    RelativeTo(&'p Path),
    /// Files are not read.
    None,
}

/// Maximum number of bytes that are read from a password file, which has one line.
const PASSWORD_FILE_BYTES_MAX: u64 = 64 << 10;

/// Permission of others to read.
const WORLD_READABLE: u32 = 0o004;

impl Checker<'_> {
    /// Makes a path absolute and checks that the file can be read. Returns whether it can.
    pub(super) fn file(&mut self, section: &SectionView<'_>, key: &str, path: &mut PathBuf) -> bool {
        self.check_path(section, key, path, |path| {
            // Opening a pipe could block.
            expect(path, Metadata::is_file, "it is not a file")?;
            File::open(path).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Makes a path absolute and checks that it is a folder.
    pub(super) fn folder(&mut self, section: &SectionView<'_>, key: &str, path: &mut PathBuf) -> bool {
        self.check_path(section, key, path, |path| expect(path, Metadata::is_dir, "it is not a folder"))
    }

    /// Makes a path absolute that may not exist yet; errors are reported when it is opened.
    pub(super) fn future_path(&self, path: &mut PathBuf) {
        if let (FileAccess::RelativeTo(folder), false) = (self.disk, path.as_os_str().is_empty()) {
            let joined = folder.join(&*path);
            *path = std::path::absolute(&joined).unwrap_or(joined);
        }
    }

    fn check_path(
        &mut self,
        section: &SectionView<'_>,
        key: &str,
        path: &mut PathBuf,
        test: fn(&Path) -> Result<(), String>,
    ) -> bool {
        let FileAccess::RelativeTo(folder) = self.disk else {
            return true;
        };
        if path.as_os_str().is_empty() {
            return true;
        }
        let joined = folder.join(&*path);
        *path = std::path::absolute(&joined).unwrap_or(joined);
        let Err(reason) = test(path) else { return true };
        let help = "relative paths start at the folder of the configuration file";
        let reason = format!("cannot use {}: {reason}", path.display());
        self.file_error(&section.locate(&[key, "url"]), reason, help);
        false
    }

    /// The password in a file; `None` if files are not read or the file cannot be used.
    pub(super) fn password_file(&mut self, section: &SectionView<'_>, mut path: PathBuf) -> Option<Secret> {
        if matches!(self.disk, FileAccess::None) || !self.file(section, "password_file", &mut path) {
            return None;
        }
        let location = section.locate(&["password_file"]);
        let (password, mode) = match read_password(&path) {
            Ok(read) => read,
            Err(reason) => {
                let reason = format!("cannot use {}: {reason}", path.display());
                self.file_error(&location, reason, "the first line of the file is the password");
                return None;
            }
        };
        if mode & WORLD_READABLE != 0 {
            let reason = format!("every user of this machine can read {}", path.display());
            self.warning(location, reason, format!("chmod 600 {}", path.display()));
        }
        Some(password)
    }
}

fn expect(path: &Path, kind: fn(&Metadata) -> bool, otherwise: &str) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if kind(&metadata) { Ok(()) } else { Err(otherwise.to_owned()) }
}

/// The first line of a password file, and the permissions of the file.
fn read_password(path: &Path) -> Result<(Secret, u32), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode();
    let mut text = String::new();
    let read = file.take(PASSWORD_FILE_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let line = text.lines().next().unwrap_or("");
    match String::read(&RawValue::Text(line.to_owned())) {
        Ok(line) if line.is_empty() => Err("its first line is empty".to_owned()),
        Ok(line) => Ok((Secret::new(line), mode)),
        Err(error) => Err(error.reason),
    }
}
