//! Descriptors that the kernel knows by a number of the ring. It then neither looks them up nor counts their users with each
//! operation, which is 1.5 % of the gateway's time. Connections that stay get one.

use std::{
    cell::RefCell,
    num::NonZeroU32,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use io_uring::Submitter;

/// A place in the table, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileNumber(NonZeroU32);

impl FileNumber {
    /// As the kernel counts.
    pub(super) fn place(self) -> u32 {
        self.0.get() - 1
    }
}

/// The table of one ring: which numbers are free.
#[derive(Debug)]
pub(super) struct Files(RefCell<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    free: Vec<FileNumber>,
    /// So many were given out at least once.
    used: u32,
    /// So many there are.
    all: u32,
}

/// So many connections of a thread get a number; the kernel needs 8 bytes for each, whether it is used or not.
const NUMBERS: u32 = 4096;
const NOTHING: RawFd = -1;

impl Files {
    /// An empty table, with no places at all where the kernel gives none.
    pub(super) fn register(submitter: &Submitter<'_>) -> Self {
        let all = if submitter.register_files_sparse(NUMBERS).is_ok() { NUMBERS } else { 0 };
        Self(RefCell::new(Numbers { all, ..Numbers::default() }))
    }

    /// Gives a descriptor a number, if there is one left.
    pub(super) fn add(&self, submitter: &Submitter<'_>, fd: BorrowedFd<'_>) -> Option<FileNumber> {
        let number = self.0.borrow_mut().next()?;
        if matches!(submitter.register_files_update(number.place(), &[fd.as_raw_fd()]), Ok(1)) {
            return Some(number);
        }
        self.0.borrow_mut().free.push(number);
        None
    }

    /// Takes a number back: as long as a descriptor has one, closing it does not end its connection.
    pub(super) fn remove(&self, submitter: &Submitter<'_>, number: FileNumber) {
        if submitter.register_files_update(number.place(), &[NOTHING]).is_ok() {
            self.0.borrow_mut().free.push(number);
        }
    }
}

impl Numbers {
    fn next(&mut self) -> Option<FileNumber> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self.used == self.all {
            return None;
        }
        self.used += 1;
        NonZeroU32::new(self.used).map(FileNumber)
    }
}
