//! What happens to segments after they ended: synced, packed, removed. On a thread of its own, off the path of records.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    config::{Config, Pack, Retention, Space},
    health::Health,
    segment::{self, SegmentName},
    stripe::Stripe,
};

/// How often ages are looked at when no segment ends.
const ROUND: Duration = Duration::from_secs(30);

pub(crate) struct Keeper {
    config: Arc<Config>,
    health: Arc<Health>,
    stripes: Box<[Arc<Stripe>]>,
    /// Of ended segments, by the last round.
    pub(crate) disk: Disk,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) bytes: AtomicU64,
    pub(crate) segments: AtomicU64,
}

struct Found {
    name: SegmentName,
    bytes: u64,
    modified: SystemTime,
    /// When it was written to last, or one before it: the order of a stripe is that of its numbers, whatever the clock
    /// did.
    written: SystemTime,
    /// The newest of a stripe that there is, which its writer may have open.
    newest: bool,
}

impl Keeper {
    pub(crate) fn new(config: Arc<Config>, health: Arc<Health>, stripes: Box<[Arc<Stripe>]>) -> Self {
        Self { config, health, stripes, disk: Disk::default(), stopped: AtomicBool::new(false) }
    }

    /// The body of the keeper's thread.
    pub(crate) fn keep(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            self.round();
            thread::park_timeout(ROUND);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// One look at everything.
    pub(crate) fn round(&self) {
        self.stripes.iter().for_each(|stripe| stripe.sync_ended());
        if let Space::Segments { retention, pack } = &self.config.space {
            self.reported(&self.config.folder, self.retain(*retention));
            if let Pack::Zstd(level) = *pack {
                self.pack_all(level);
            }
        }
        self.reported(&self.config.folder, self.count());
    }

    fn reported<T>(&self, path: &Path, result: io::Result<T>) -> Option<T> {
        result.inspect_err(|error| self.health.upkeep(path, error)).ok()
    }

    fn found(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for name in segment::list(&self.config.folder)? {
            if name.journal != self.config.name {
                continue;
            }
            // It may be gone by now.
            let Ok(metadata) = fs::symlink_metadata(name.path(&self.config.folder)) else { continue };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let newest = usize::from(name.stripe) < self.config.stripes;
            found.push(Found { name, bytes: metadata.len(), modified, written: modified, newest });
        }
        for at in 1..found.len() {
            if found[at - 1].name.stripe == found[at].name.stripe {
                found[at - 1].newest = false;
                found[at].written = found[at].written.max(found[at - 1].written);
            }
        }
        Ok(found)
    }

    fn count(&self) -> io::Result<()> {
        let found = self.found()?;
        // Their writers know better how large those are that are open.
        let open = |found: &&Found| {
            let stripe = self.stripes.get(usize::from(found.name.stripe));
            stripe.is_some_and(|stripe| found.name.number >= stripe.progress().first_open)
        };
        let ended = || found.iter().filter(|found| !open(found));
        self.disk.bytes.store(ended().map(|found| found.bytes).sum(), Ordering::Relaxed);
        self.disk.segments.store(ended().count() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the oldest ended segments until all limits hold.
    fn retain(&self, retention: Retention) -> io::Result<()> {
        if retention == Retention::default() {
            return Ok(());
        }
        let mut found = self.found()?;
        let (mut bytes, mut segments) = (found.iter().map(|f| f.bytes).sum::<u64>(), found.len());
        found.sort_by_key(|found| found.written);
        let mut outcome = Ok(());
        for old in found.iter().filter(|found| !found.newest) {
            let age = old.modified.elapsed().unwrap_or_default();
            let too_many = retention.segments.is_some_and(|max| segments > max.max(1));
            let too_large = retention.bytes.is_some_and(|max| bytes > max);
            if !too_many && !too_large && retention.age.is_none_or(|max| age < max) {
                continue;
            }
            match fs::remove_file(old.name.path(&self.config.folder)) {
                // One that stays must not keep the others.
                Err(error) if error.kind() != io::ErrorKind::NotFound => outcome = outcome.and(Err(error)),
                _ => (bytes, segments) = (bytes - old.bytes, segments - 1),
            }
        }
        outcome
    }

    fn pack_all(&self, level: i32) {
        let found = self.reported(&self.config.folder, self.found()).unwrap_or_default();
        for plain in found.iter().filter(|found| !found.newest && !found.name.packed) {
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            let path = plain.name.path(&self.config.folder);
            let packed = crate::pack::pack(&self.config.folder, &plain.name, level, &self.stopped);
            if !self.stopped.load(Ordering::Acquire) {
                self.reported(&path, packed);
            }
        }
    }
}
