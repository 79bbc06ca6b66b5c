//! Registered file descriptors. The kernel then skips the lookup and the reference count per operation, which take 1.5
//! % of the gateway's CPU time. Long-lived connections are registered.

use std::{
    cell::RefCell,
    num::NonZeroU32,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use io_uring::Submitter;

/// An index in the table, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FixedFile(NonZeroU32);

impl FixedFile {
    /// The index that the kernel uses.
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Unused indexes of the table of one ring.
#[derive(Debug)]
pub(super) struct RegisteredFiles(RefCell<FreeIndexes>);

#[derive(Debug, Default)]
struct FreeIndexes {
    free: Vec<FixedFile>,
    /// Indexes that have been used at least once.
    used: u32,
    /// Size of the table.
    capacity: u32,
}

/// Registered connections per thread; the kernel needs 8 bytes for each, used or not.
const REGISTERED_FILES_MAX: u32 = 4096;
const UNREGISTERED: RawFd = -1;

impl RegisteredFiles {
    /// Registers an empty table, without entries where the kernel refuses one.
    pub(super) fn register(submitter: &Submitter<'_>) -> Self {
        let capacity =
            if submitter.register_files_sparse(REGISTERED_FILES_MAX).is_ok() { REGISTERED_FILES_MAX } else { 0 };
        Self(RefCell::new(FreeIndexes { capacity, ..FreeIndexes::default() }))
    }

    /// Registers a descriptor, if an index is left.
    pub(super) fn add(&self, submitter: &Submitter<'_>, fd: BorrowedFd<'_>) -> Option<FixedFile> {
        let fixed_file = self.0.borrow_mut().next()?;
        if matches!(submitter.register_files_update(fixed_file.index(), &[fd.as_raw_fd()]), Ok(1)) {
            return Some(fixed_file);
        }
        self.0.borrow_mut().free.push(fixed_file);
        None
    }

    /// Unregisters a descriptor: while it is registered, closing it does not close the connection.
    pub(super) fn remove(&self, submitter: &Submitter<'_>, fixed_file: FixedFile) {
        if submitter.register_files_update(fixed_file.index(), &[UNREGISTERED]).is_ok() {
            self.0.borrow_mut().free.push(fixed_file);
        }
    }
}

impl FreeIndexes {
    fn next(&mut self) -> Option<FixedFile> {
        if let Some(fixed_file) = self.free.pop() {
            return Some(fixed_file);
        }
        if self.used == self.capacity {
            return None;
        }
        self.used += 1;
        NonZeroU32::new(self.used).map(FixedFile)
    }
}
