//! The checkpoint file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::error::NdjsonError;
use super::generations::FilePosition;
use super::identity::{FileHead, FileId};

/// A line of fixed length: the position, the offset in the file, its device and inode, and the length and the hash of its
/// beginning. Earlier versions wrote the position only. It is overwritten in place: a crash leaves the old or
/// the new line, and a full disk does not matter. The file is locked while it is open.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: File,
}

/// Decimal digits of the largest number.
const DIGITS: usize = 20;
/// Length of the line without its end.
const LINE_LEN: usize = 5 * (DIGITS + 1) + 16;

/// The stored position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CheckpointPosition {
    /// No line was finished yet.
    Start,
    /// An offset, from a version that stored no more.
    Offset(u64),
    File(FilePosition),
}

impl Checkpoint {
    /// Opens the checkpoint and returns the stored position: the end of the last finished line.
    pub(super) fn open(path: PathBuf) -> Result<(Self, CheckpointPosition), NdjsonError> {
        let failed = |error| NdjsonError::Checkpoint { path: path.clone(), error };
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NdjsonError::CheckpointInUse { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let text = read(&mut file).map_err(failed)?;
        let checkpoint = Self { path, file };
        let stored = text.as_deref().and_then(parse).ok_or_else(|| checkpoint.foreign())?;
        Ok((checkpoint, stored))
    }

    pub(super) fn write(&self, place: &FilePosition) -> Result<(), NdjsonError> {
        let FilePosition { position, offset, id, head } = place;
        let text = format!("{position} {offset} {} {} {} {:016x}", id.device, id.inode, head.len, head.hash);
        let line = format!("{text:<LINE_LEN$}\n");
        self.file.write_all_at(line.as_bytes(), 0).map_err(|error| self.failed(error))
    }

    /// Makes the last write durable.
    pub(super) fn sync(&self) -> Result<(), NdjsonError> {
        self.file.sync_data().map_err(|error| self.failed(error))
    }

    /// The error for a file that does not hold a valid position.
    pub(super) fn foreign(&self) -> NdjsonError {
        NdjsonError::ForeignCheckpoint { path: self.path.clone() }
    }

    fn failed(&self, error: io::Error) -> NdjsonError {
        NdjsonError::Checkpoint { path: self.path.clone(), error }
    }
}

impl Drop for Checkpoint {
    /// Unlocks explicitly, because a child process between fork and exec shares the descriptor and the lock.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// `None` if the file is too long for a position or is not text.
fn read(file: &mut File) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(LINE_LEN as u64 + 2).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok().filter(|text| text.len() <= LINE_LEN + 1))
}

/// `None` if this is not a checkpoint.
fn parse(text: &str) -> Option<CheckpointPosition> {
    let line = text.trim();
    let numbers: Vec<&str> = line.split(' ').collect();
    match numbers.as_slice() {
        [""] => Some(CheckpointPosition::Start),
        [offset] if line.len() <= DIGITS => offset.parse().ok().map(CheckpointPosition::Offset),
        [position, offset, device, inode, len, hash] => {
            let number = |text: &str| text.parse::<u64>().ok();
            let (position, offset) = (number(position)?, number(offset)?);
            let id = FileId { device: number(device)?, inode: number(inode)? };
            let head = FileHead { len: len.parse().ok()?, hash: u64::from_str_radix(hash, 16).ok()? };
            (offset <= position).then_some(CheckpointPosition::File(FilePosition { position, offset, id, head }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_of_a_file_is_written_and_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("checkpoint");
        let open = || Checkpoint::open(path.clone()).expect("not in use");
        assert_eq!(open().1, CheckpointPosition::Start);
        let head = FileHead { len: u16::MAX, hash: u64::MAX };
        let longest = FilePosition {
            position: u64::MAX,
            offset: u64::MAX,
            id: FileId { device: u64::MAX, inode: u64::MAX },
            head,
        };
        for place in [longest, FilePosition { position: 7, offset: 3, ..longest }] {
            open().0.write(&place).expect("written");
            assert_eq!(open().1, CheckpointPosition::File(place));
        }
        for (text, stored) in [
            ("", Some(CheckpointPosition::Start)),
            ("6                   \n", Some(CheckpointPosition::Offset(6))),
            ("3 7 1 1 1 1", None),
            ("123456789012345678901", None),
            ("{}", None),
            ("7\n8", None),
        ] {
            assert_eq!(parse(text), stored, "{text}");
        }
    }

    #[test]
    fn dropped_checkpoint_is_free_despite_inherited_fd() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("checkpoint");
        let (checkpoint, _) = Checkpoint::open(path.clone()).expect("not in use");
        let inherited = checkpoint.file.try_clone().expect("a descriptor");
        assert!(matches!(Checkpoint::open(path.clone()), Err(NdjsonError::CheckpointInUse { .. })));
        drop(checkpoint);
        Checkpoint::open(path).expect("not in use");
        drop(inherited);
    }
}
