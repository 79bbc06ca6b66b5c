//! Identifies a file across renames, copies, truncation and replacement.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

/// Bytes at the start of a file by which its content is recognised.
const HEAD_BYTES_MAX: usize = 1024;
/// Bytes before the position that are compared, too, while the file is open.
const TAIL_BYTES_MAX: usize = 64;

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// A hash of the first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileHead {
    pub(super) len: u16,
    pub(super) hash: u64,
}

/// FNV-1a: a checkpoint stores the hash, so it must be the same in every version.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl Default for FileHead {
    fn default() -> Self {
        Self { len: 0, hash: FNV_OFFSET }
    }
}

impl FileHead {
    /// Adds bytes that follow those seen so far, up to the limit.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES_MAX.saturating_sub(self.len.into());
        let bytes = &bytes[..bytes.len().min(room)];
        self.hash = bytes.iter().fold(self.hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        self.len += bytes.len() as u16;
    }

    pub(super) fn is_full(self) -> bool {
        usize::from(self.len) >= HEAD_BYTES_MAX
    }

    /// The head of the first `bytes` of a file.
    pub(super) fn read(file: &File, bytes: u64) -> io::Result<Self> {
        let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX).min(HEAD_BYTES_MAX)];
        let mut head = Self::default();
        if read_at(file, &mut buffer, 0)? {
            head.add(&buffer);
        }
        Ok(head)
    }

    /// Whether the file begins with these bytes.
    pub(super) fn matches(self, file: &File) -> io::Result<bool> {
        Ok(Self::read(file, self.len.into())? == self)
    }
}

/// The last bytes that were read.
#[derive(Clone, Default, Debug)]
pub(super) struct FileTail(Vec<u8>);

impl FileTail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..]);
        self.0.drain(..self.0.len().saturating_sub(TAIL_BYTES_MAX));
    }

    /// Whether the last byte is not the end of a line.
    pub(super) fn is_inside_line(&self) -> bool {
        self.0.last().is_some_and(|last| *last != b'\n')
    }

    /// Whether the bytes before `at` are these.
    pub(super) fn matches(&self, file: &File, at: u64) -> io::Result<bool> {
        let mut buffer = vec![0; self.0.len()];
        let Some(from) = at.checked_sub(buffer.len() as u64) else { return Ok(false) };
        Ok(read_at(file, &mut buffer, from)? && buffer == self.0)
    }
}

/// Fills the buffer. `false` if the file is too short.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn head_and_tail_recognise_a_file() {
        let mut file = tempfile::tempfile().expect("temporary file");
        let text: Vec<u8> = (0..3000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&text).expect("written");
        let (mut head, mut tail) = (FileHead::default(), FileTail::default());
        for chunk in text[..2000].chunks(300) {
            head.add(chunk);
            tail.add(chunk);
        }
        assert!(head.is_full() && head.matches(&file).expect("read"));
        assert_eq!(FileHead::read(&file, 2000).expect("read"), head);
        assert!(tail.matches(&file, 2000).expect("read") && !tail.matches(&file, 1999).expect("read"));
        file.set_len(500).expect("truncated");
        assert!(!head.matches(&file).expect("read") && !tail.matches(&file, 2000).expect("read"));
    }
}
