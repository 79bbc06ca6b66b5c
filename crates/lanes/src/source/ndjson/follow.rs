//! A file whose end is not the end: more may come.

use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the end of the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// As long as it lives, the file is followed.
#[derive(Debug)]
pub(super) struct Interest(#[expect(dead_code, reason = "what counts is that it is there")] Arc<()>);

/// Reads a file that grows.
pub(super) struct Follow {
    file: File,
    /// Bytes before what comes next.
    at: u64,
    interest: Weak<()>,
}

impl Follow {
    pub(super) fn new(file: File, at: u64) -> (Self, Interest) {
        let interest = Arc::new(());
        (Self { file, at, interest: Arc::downgrade(&interest) }, Interest(interest))
    }

    fn has_shrunk(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() < self.at)
    }
}

impl Read for Follow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.file.read(buffer)?;
            if read > 0 {
                self.at += read as u64;
                return Ok(read);
            }
            if self.interest.strong_count() == 0 {
                return Ok(0);
            }
            if self.has_shrunk()? {
                return Err(io::Error::other("the file became shorter while it was followed"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
