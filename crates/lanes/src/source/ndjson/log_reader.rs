//! Reads a file that grows and is rotated, as `tail -F` does, or a named pipe with changing writers.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::generations::{FilePosition, Generation, Generations};
use super::identity::{FileHead, FileId, FileTail};
use super::log;
use super::rotation::{self, KnownFile};

/// How often the end of the file is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Polls without new data after which a renamed file is over: its writer may take a moment to open the new file.
const QUIET_POLLS: u32 = 20;
/// Identities of files that are kept, so that none is read twice.
const READ_FILES_MAX: usize = 64;

/// The file is followed until this guard is dropped.
#[derive(Debug)]
pub(super) struct FollowGuard(#[expect(dead_code, reason = "held for its drop")] Arc<()>);

/// Whether to wait for more data at the end.
pub(super) enum FollowMode {
    Never,
    Until(Weak<()>),
}

impl FollowMode {
    pub(super) fn new(follow: bool) -> (Self, Option<FollowGuard>) {
        if !follow {
            return (Self::Never, None);
        }
        let guard = Arc::new(());
        (Self::Until(Arc::downgrade(&guard)), Some(FollowGuard(guard)))
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Never => true,
            Self::Until(guard) => guard.strong_count() == 0,
        }
    }
}

/// A named pipe. It is opened on the first read, which blocks until there is a writer.
pub(super) struct PipeReader {
    path: PathBuf,
    open: Option<File>,
    follow: FollowMode,
}

impl PipeReader {
    pub(super) fn new(path: &Path, follow: FollowMode) -> Self {
        Self { path: path.to_owned(), open: None, follow }
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let pipe = match &mut self.open {
                Some(pipe) => pipe,
                closed @ None => closed.insert(File::open(&self.path)?),
            };
            let read = pipe.read(buffer)?;
            if read > 0 || self.follow.is_over() {
                return Ok(read);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Whether this is a named pipe.
pub(super) fn is_pipe(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.file_type().is_fifo())
}

/// A file to read from an offset.
struct NextFile {
    file: File,
    offset: u64,
    /// Whether it holds the rest of the file before it, which was truncated.
    continues: bool,
}

/// Reads the files of a log one after the other.
pub(super) struct LogReader {
    path: PathBuf,
    file: File,
    /// The offset in the file.
    at: u64,
    /// The position in the log.
    position: u64,
    tail: FileTail,
    next: VecDeque<NextFile>,
    follow: FollowMode,
    /// Polls at the end of a file that has been renamed.
    quiet_polls: u32,
    /// When the file was modified, as seen at its end.
    modified: Option<(i64, i64)>,
    /// The file was truncated: what it has after `at` is other content.
    is_truncated: bool,
    /// The files that were read last.
    read_files: Vec<FileId>,
    files: Generations,
}

impl LogReader {
    /// Reads a file from its start.
    pub(super) fn open(path: &Path, follow: FollowMode) -> io::Result<Self> {
        Self::new(path, File::open(path)?, 0, 0, VecDeque::new(), follow)
    }

    /// Reads an open file from an offset.
    pub(super) fn resume_at(path: &Path, file: File, offset: u64, follow: FollowMode) -> io::Result<Self> {
        Self::new(path, file, offset, offset, VecDeque::new(), follow)
    }

    /// Continues where an earlier run stopped: in the same file, in the file into which the log was rotated, or at the start of
    /// the file that has replaced it.
    pub(super) fn resume(path: &Path, stored: FilePosition, follow: FollowMode) -> io::Result<Self> {
        let FilePosition { position, offset, id, head } = stored;
        let named = File::open(path)?;
        let metadata = named.metadata()?;
        let has_content = metadata.len() >= offset && head.matches(&named)?;
        if has_content && FileId::of(&metadata) == id {
            return Self::new(path, named, offset, position, VecDeque::new(), follow);
        }
        let known = KnownFile { id, head, offset };
        if let Some(rotated) = rotation::find(path, known)? {
            log::rotated(path);
            let mut next = VecDeque::new();
            for file in rotation::newer_than(path, &rotated.metadata()?, &[])?.into_iter().chain([named]) {
                next.push_back(NextFile { file, offset: 0, continues: false });
            }
            return Self::new(path, rotated, offset, position, next, follow);
        }
        if has_content && head.len > 0 {
            // Copied to this place, as by a restore.
            return Self::new(path, named, offset, position, VecDeque::new(), follow);
        }
        log::rotated_file_is_gone(path);
        Self::new(path, named, 0, position, VecDeque::new(), follow)
    }

    fn new(
        path: &Path,
        mut file: File,
        offset: u64,
        position: u64,
        next: VecDeque<NextFile>,
        follow: FollowMode,
    ) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let at = super::line_around(&file, offset)?;
        let position = position.saturating_sub(offset - at);
        file.seek(SeekFrom::Start(at))?;
        let first = generation(&file, &metadata, at, position)?;
        let files = Generations::new(path.to_owned(), position, first);
        let path = path.to_owned();
        let (tail, quiet_polls, is_truncated) = (FileTail::default(), 0, false);
        Ok(Self {
            path,
            file,
            at,
            position,
            tail,
            next,
            follow,
            quiet_polls,
            modified: None,
            is_truncated,
            read_files: vec![first.id],
            files,
        })
    }

    /// The position of the first byte.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn files(&self) -> Generations {
        self.files.clone()
    }

    fn on_read(&mut self, bytes: &[u8]) {
        self.at += bytes.len() as u64;
        self.position += bytes.len() as u64;
        self.tail.add(bytes);
        self.files.add(bytes);
        self.quiet_polls = 0;
    }

    /// Goes on with the next file, if there is one. Returns whether there is.
    fn begin_next(&mut self) -> io::Result<bool> {
        let Some(NextFile { mut file, offset, .. }) = self.next.pop_front() else { return Ok(false) };
        let metadata = file.metadata()?;
        file.seek(SeekFrom::Start(offset))?;
        self.read_files.truncate(READ_FILES_MAX - 1);
        self.read_files.insert(0, FileId::of(&metadata));
        self.files.begin(self.at, generation(&file, &metadata, offset, self.position)?, self.position);
        (self.file, self.at, self.quiet_polls, self.is_truncated) = (file, offset, 0, false);
        self.modified = None;
        if offset == 0 {
            self.tail = FileTail::default();
        }
        Ok(true)
    }

    /// Checks at the end of the file whether it was rotated, truncated or removed.
    fn look(&mut self) -> io::Result<()> {
        let open = self.file.metadata()?;
        if !open.is_file() {
            return Ok(());
        }
        let modified = (open.mtime(), open.mtime_nsec());
        // New content may have the length of the old one.
        let may_differ = self.modified.replace(modified) != Some(modified) || open.len() > self.at;
        if open.len() < self.at || (may_differ && !self.is_unchanged()?) {
            return self.on_truncated();
        }
        if open.len() > self.at {
            return Ok(());
        }
        match std::fs::metadata(&self.path) {
            Ok(named) if FileId::of(&named) == FileId::of(&open) => self.quiet_polls = 0,
            Ok(_) => {
                self.quiet_polls += 1;
                if self.quiet_polls > QUIET_POLLS {
                    self.on_renamed(&open)?;
                }
            }
            // Renamed, and the new file is not there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.quiet_polls = 0,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether the beginning and the last bytes that were read are still there.
    fn is_unchanged(&self) -> io::Result<bool> {
        let head = self.files.current().map_or_else(FileHead::default, |current| current.head);
        Ok(head.matches(&self.file)? && self.tail.matches(&self.file, self.at)?)
    }

    fn on_renamed(&mut self, open: &Metadata) -> io::Result<()> {
        let named = match File::open(&self.path) {
            Ok(named) => named,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        log::rotated(&self.path);
        for file in rotation::newer_than(&self.path, open, &self.read_files)?.into_iter().chain([named]) {
            self.next.push_back(NextFile { file, offset: 0, continues: false });
        }
        Ok(())
    }

    /// The file is read again from its start. What was written between the last read and the truncation is in the copy that was
    /// made before.
    fn on_truncated(&mut self) -> io::Result<()> {
        log::truncated(&self.path);
        self.is_truncated = true;
        if let Some(current) = self.files.current().filter(|current| current.head.len > 0) {
            let known = KnownFile { id: current.id, head: current.head, offset: self.at };
            if let Some(copy) = rotation::find(&self.path, known)?
                && self.tail.matches(&copy, self.at)?
            {
                self.next.push_back(NextFile { file: copy, offset: self.at, continues: true });
            }
        }
        self.next.push_back(NextFile { file: self.file.try_clone()?, offset: 0, continues: false });
        Ok(())
    }
}

/// A file that is read from an offset, whose first byte would be at a position in the log.
fn generation(file: &File, metadata: &Metadata, offset: u64, position: u64) -> io::Result<Generation> {
    let head = FileHead::read(file, offset)?;
    Ok(Generation { base: position.saturating_sub(offset), id: FileId::of(metadata), head, end: None })
}

impl Read for LogReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = if self.is_truncated { 0 } else { self.file.read(buffer)? };
            if read > 0 {
                self.on_read(&buffer[..read]);
                return Ok(read);
            }
            if let Some(next) = self.next.front() {
                if self.tail.is_inside_line() && !next.continues {
                    // A line ends with its file.
                    let Some(first) = buffer.first_mut() else { return Ok(0) };
                    *first = b'\n';
                    self.tail.add(b"\n");
                    self.position += 1;
                    return Ok(1);
                }
                self.begin_next()?;
                continue;
            }
            if self.follow.is_over() {
                return Ok(0);
            }
            std::thread::sleep(POLL_INTERVAL);
            self.look()?;
        }
    }
}
