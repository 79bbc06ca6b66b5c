//! Finds the files into which a log was rotated, by the names that logrotate and similar programs give them.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::identity::{FileHead, FileId};

/// Files of a directory that are looked at.
const FILES_MAX: usize = 10_000;

/// A file that was read up to an offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownFile {
    pub(super) id: FileId,
    pub(super) head: FileHead,
    pub(super) offset: u64,
}

/// The rotated files of `path`, with the oldest first: `orders.log.1` and `orders.log-20260131`, and not `orders.log.1.gz`.
fn rotated_files(path: &Path) -> Vec<(PathBuf, Metadata)> {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else { return Vec::new() };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_rotated = |other: &std::ffi::OsStr| {
        let suffix = other.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()).unwrap_or_default();
        suffix.len() > 1
            && b".-_".contains(&suffix[0])
            && suffix[1..].iter().all(|byte| byte.is_ascii_digit() || b".-_T".contains(byte))
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let named = entries.take(FILES_MAX).filter_map(Result::ok).filter(|entry| is_rotated(&entry.file_name()));
    let files = named.filter_map(|entry| Some((entry.path(), entry.metadata().ok().filter(Metadata::is_file)?)));
    let mut files: Vec<_> = files.collect();
    files.sort_by_key(|(_, metadata)| modified(metadata));
    files
}

fn modified(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// The rotated file that is the known one (renamed), or else one with its content (copied before a truncation).
pub(super) fn find(path: &Path, known: KnownFile) -> io::Result<Option<File>> {
    let mut copy = None;
    for (rotated, metadata) in rotated_files(path) {
        let is_same = FileId::of(&metadata) == known.id;
        let may_be_copy = known.head.len > 0 && copy.is_none();
        if metadata.len() < known.offset || !(is_same || may_be_copy) {
            continue;
        }
        let file = File::open(&rotated)?;
        if known.head.matches(&file)? {
            if is_same {
                return Ok(Some(file));
            }
            copy = Some(file);
        }
    }
    Ok(copy)
}

/// The rotated files that are newer than `file`, except `path` itself and files that were read: the log was rotated more than
/// once. /// Clocks of file systems are coarse, so files of the same moment are newer, too.
pub(super) fn newer_than(path: &Path, file: &Metadata, read: &[FileId]) -> io::Result<Vec<File>> {
    let current = fs::metadata(path).ok().map(|metadata| FileId::of(&metadata));
    let is_newer = |metadata: &Metadata| {
        let id = FileId::of(metadata);
        modified(metadata) >= modified(file) && id != FileId::of(file) && Some(id) != current && !read.contains(&id)
    };
    let files = rotated_files(path).into_iter().filter(|(_, metadata)| is_newer(metadata));
    files.map(|(path, _)| File::open(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_found_by_name() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.log");
        for name in ["a.log", "a.log.1", "a.log-20260131", "a.log.2.gz", "a.log.lock", "b.log.1", "a.log."] {
            fs::write(folder.path().join(name), name).expect("written");
        }
        let mut names: Vec<String> = rotated_files(&path)
            .iter()
            .filter_map(|(path, _)| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["a.log-20260131", "a.log.1"]);
    }
}
