//! The maintenance thread: syncs, compresses and removes ended segments, off the write path.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    config::{Compression, JournalConfig, Retention, SegmentPolicy},
    disk_bound::DiskBound,
    health::HealthMonitor,
    reader::ReaderPosition,
    segment::{self, SegmentName},
    stripe::Stripe,
};

/// How often segment ages are checked when no segment ends.
const ROUND_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct Maintenance {
    config: Arc<JournalConfig>,
    health: Arc<HealthMonitor>,
    stripes: Box<[Arc<Stripe>]>,
    /// The ended segments, as of the last run.
    pub(crate) disk_usage: DiskUsage,
    disk_bound: Arc<DiskBound>,
    /// The first segment of each stripe that is not released.
    released: Mutex<BTreeMap<u16, u64>>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct DiskUsage {
    pub(crate) bytes: AtomicU64,
    pub(crate) segments: AtomicU64,
}

struct SegmentFileInfo {
    name: SegmentName,
    bytes: u64,
    modified: SystemTime,
    /// The latest modification time of this and the earlier segments of the stripe: segments of a stripe are ordered by
    /// number, even if the clock went back.
    written: SystemTime,
    /// The newest segment of a stripe, which its writer may have open.
    newest: bool,
}

impl Maintenance {
    pub(crate) fn new(
        config: Arc<JournalConfig>,
        health: Arc<HealthMonitor>,
        disk_bound: Arc<DiskBound>,
        stripes: Box<[Arc<Stripe>]>,
    ) -> Self {
        let (disk_usage, stopped) = (DiskUsage::default(), AtomicBool::new(false));
        Self { config, health, stripes, disk_usage, disk_bound, released: Mutex::default(), stopped }
    }

    /// Releases the records before a position. The next run removes the segments that hold only released records.
    pub(crate) fn release(&self, before: &ReaderPosition) {
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        for (stripe, segment) in before.segments(&self.config.name) {
            let known = released.entry(stripe).or_default();
            *known = segment.max(*known);
        }
    }

    /// The main loop of the maintenance thread.
    pub(crate) fn run(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            self.run_once();
            thread::park_timeout(ROUND_EVERY);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Runs all tasks once.
    pub(crate) fn run_once(&self) {
        self.stripes.iter().for_each(|stripe| stripe.sync_sealed());
        match &self.config.segment_policy {
            SegmentPolicy::Rolling { retention, compression } => {
                self.report(&self.config.folder, self.apply_retention(*retention));
                if let Compression::Zstd(level) = *compression {
                    self.compress_all(level);
                }
            }
            SegmentPolicy::UntilReleased { .. } => {
                self.report(&self.config.folder, self.remove_released());
            }
            SegmentPolicy::Ring { .. } => {}
        }
        self.report(&self.config.folder, self.update_disk_usage());
    }

    fn report<T>(&self, path: &Path, result: io::Result<T>) -> Option<T> {
        result.inspect_err(|error| self.health.on_maintenance_failed(path, error)).ok()
    }

    fn list_segments(&self) -> io::Result<Vec<SegmentFileInfo>> {
        let mut found = Vec::new();
        for name in segment::list(&self.config.folder)? {
            if name.journal != self.config.name {
                continue;
            }
            // Skip a file that was removed since the folder was listed.
            let Ok(metadata) = fs::symlink_metadata(name.path(&self.config.folder)) else { continue };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let newest = usize::from(name.stripe) < self.config.stripes;
            found.push(SegmentFileInfo { name, bytes: metadata.len(), modified, written: modified, newest });
        }
        for at in 1..found.len() {
            if found[at - 1].name.stripe == found[at].name.stripe {
                found[at - 1].newest = false;
                found[at].written = found[at].written.max(found[at - 1].written);
            }
        }
        Ok(found)
    }

    fn update_disk_usage(&self) -> io::Result<()> {
        let found = self.list_segments()?;
        // Writers report the size of open segments themselves.
        let open = |found: &&SegmentFileInfo| {
            let stripe = self.stripes.get(usize::from(found.name.stripe));
            stripe.is_some_and(|stripe| found.name.number >= stripe.progress().first_open)
        };
        let ended = || found.iter().filter(|found| !open(found));
        self.disk_usage.bytes.store(ended().map(|found| found.bytes).sum(), Ordering::Relaxed);
        self.disk_usage.segments.store(ended().count() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the oldest ended segments until all limits hold.
    fn apply_retention(&self, retention: Retention) -> io::Result<()> {
        if retention == Retention::default() {
            return Ok(());
        }
        let mut found = self.list_segments()?;
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
                // A segment that cannot be removed must not stop the removal of others.
                Err(error) if error.kind() != io::ErrorKind::NotFound => outcome = outcome.and(Err(error)),
                _ => (bytes, segments) = (bytes - old.bytes, segments - 1),
            }
        }
        outcome
    }

    /// Removes the ended segments whose records were all released, and lets writers continue that wait for room.
    fn remove_released(&self) -> io::Result<()> {
        let released = self.released.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if released.is_empty() {
            return Ok(());
        }
        let is_released = |name: &SegmentName| released.get(&name.stripe).is_some_and(|first| name.number < *first);
        let mut outcome = Ok(());
        let mut has_removed = false;
        for old in self.list_segments()?.iter().filter(|found| !found.newest && is_released(&found.name)) {
            match fs::remove_file(old.name.path(&self.config.folder)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => outcome = outcome.and(Err(error)),
                _ => {
                    self.disk_bound.release(old.bytes);
                    has_removed = true;
                }
            }
        }
        if has_removed {
            self.stripes.iter().for_each(|stripe| stripe.unpark());
        }
        outcome
    }

    fn compress_all(&self, level: i32) {
        let found = self.report(&self.config.folder, self.list_segments()).unwrap_or_default();
        for plain in found.iter().filter(|found| !found.newest && !found.name.compressed) {
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            let path = plain.name.path(&self.config.folder);
            let compressed = crate::compression::compress(&self.config.folder, &plain.name, level, &self.stopped);
            if !self.stopped.load(Ordering::Acquire) {
                self.report(&path, compressed);
            }
        }
    }
}
