//! A log that is rotated while it is followed, and between two runs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::{FileProgress, NdjsonFormat, NdjsonSource};
use tidegate_lanes::{
    KeylessOrder, Position, Record, RunError, Subscription, SubscriptionCounters, SubscriptionHandle,
};
use tokio::task::JoinHandle;

/// A log in a folder of its own, with its checkpoint.
struct Log {
    folder: tempfile::TempDir,
}

/// A run that follows the log.
struct Run {
    handle: SubscriptionHandle,
    running: JoinHandle<Result<SubscriptionCounters, RunError>>,
    lines: Arc<Mutex<Vec<(u64, String)>>>,
    progress: FileProgress,
}

impl Log {
    fn new(text: &str) -> Self {
        let log = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(log.path(""), text).unwrap();
        log
    }

    /// The path of the log with a suffix.
    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("orders.log{suffix}"))
    }

    fn checkpoint(&self) -> PathBuf {
        self.folder.path().join("done")
    }

    fn append(&self, suffix: &str, text: &str) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.path(suffix)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Copies the log and truncates it, as `copytruncate` of logrotate does.
    fn copy_and_truncate(&self, to: &str) {
        fs::copy(self.path(""), self.path(to)).unwrap();
        fs::OpenOptions::new().write(true).truncate(true).open(self.path("")).unwrap();
    }

    fn run(&self, follow: bool) -> Run {
        let format = NdjsonFormat { follow, ..NdjsonFormat::default() };
        let source = NdjsonSource::resume(self.path(""), self.checkpoint(), format).unwrap();
        let (progress, lines) = (source.progress().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&lines);
        let process = move |record: Record| {
            let line = String::from_utf8_lossy(record.payload().unwrap()).into_owned();
            noted.lock().unwrap().push((record.position().0, line));
            async { Ok::<(), String>(()) }
        };
        let builder = Subscription::builder("test").source(source).keyless(KeylessOrder::PerLane);
        let subscription = builder.commit_every(Duration::from_millis(1)).process(process).unwrap();
        Run { handle: subscription.handle(), running: tokio::spawn(subscription.run()), lines, progress }
    }

    /// Runs to the end of the log.
    async fn rest(&self) -> Vec<String> {
        let run = self.run(false);
        run.running.await.unwrap().unwrap();
        let lines = run.lines.lock().unwrap();
        lines.iter().map(|(_, line)| line.clone()).collect()
    }
}

impl Run {
    async fn until(&self, count: usize) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while self.lines.lock().unwrap().len() < count {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", self.lines.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(self) -> Vec<String> {
        self.handle.finish();
        self.running.await.unwrap().unwrap();
        let lines = self.lines.lock().unwrap();
        assert!(lines.is_sorted_by_key(|(position, _)| *position), "positions grow: {lines:?}");
        lines.iter().map(|(_, line)| line.clone()).collect()
    }
}

#[tokio::test]
async fn renamed_file_is_read_to_its_end_and_then_the_new() {
    let log = Log::new("1\n2\n");
    let run = log.run(true);
    run.until(2).await;
    log.rename("", ".1");
    log.append(".1", "3\n");
    run.until(3).await;
    log.append("", "4\n5\n");
    run.until(5).await;
    // A second rotation, whose writer leaves half a line.
    log.append("", "6");
    log.rename(".1", ".2");
    log.rename("", ".1");
    log.append("", "7\n");
    run.until(7).await;
    let last = run.lines.lock().unwrap().last().map(|(position, _)| Position(*position));
    assert_eq!((run.progress.bytes_behind(last), run.progress.bytes_behind(None)), (Some(0), Some(14)));
    assert_eq!(run.stop().await, ["1", "2", "3", "4", "5", "6", "7"]);
    log.append("", "8\n");
    assert_eq!(log.rest().await, ["8"]);
}

#[tokio::test]
async fn truncated_file_is_read_from_its_beginning() {
    let log = Log::new("1\n2\n");
    let run = log.run(true);
    run.until(2).await;
    log.copy_and_truncate(".1");
    log.append("", "3\n");
    run.until(3).await;
    // The new content is longer than the old one immediately.
    log.copy_and_truncate(".1");
    log.append("", "a long line\nand another\n");
    run.until(5).await;
    // The new content has the length of the old one.
    log.copy_and_truncate(".1");
    log.append("", "b long line\nand another\n");
    run.until(7).await;
    let lines = run.stop().await;
    assert_eq!(lines, ["1", "2", "3", "a long line", "and another", "b long line", "and another"]);
}

#[tokio::test]
async fn next_run_finds_the_renamed_file() {
    let log = Log::new("1\n2\n");
    assert_eq!(log.rest().await, ["1", "2"]);
    log.append("", "3\n");
    log.rename("", ".1");
    log.append("", "4\n");
    assert_eq!(log.rest().await, ["3", "4"]);
    // Two rotations. The first file has been compressed meanwhile, and was read to its end.
    fs::remove_file(log.path(".1")).unwrap();
    log.append("", "5\n");
    log.rename("", "-20260130");
    log.append("", "6\n");
    log.rename("", "-20260131");
    log.append("", "7\n");
    assert_eq!(log.rest().await, ["5", "6", "7"]);
}

#[tokio::test]
async fn next_run_finds_the_copy_of_a_truncated_file() {
    let log = Log::new("1\n2\n");
    assert_eq!(log.rest().await, ["1", "2"]);
    log.append("", "3\n");
    log.copy_and_truncate(".1");
    log.append("", "a new line that is longer than the old file\n");
    assert_eq!(log.rest().await, ["3", "a new line that is longer than the old file"]);
}

#[tokio::test]
async fn replaced_file_is_read_from_its_beginning() {
    let log = Log::new("1\n2\n");
    assert_eq!(log.rest().await, ["1", "2"]);
    fs::remove_file(log.path("")).unwrap();
    log.append("", "a new line that is longer than the old file\n");
    assert_eq!(log.rest().await, ["a new line that is longer than the old file"]);
    // A copy of the file, as of a restored backup, continues.
    log.append("", "last\n");
    fs::copy(log.path(""), log.path("copy")).unwrap();
    fs::remove_file(log.path("")).unwrap();
    fs::rename(log.path("copy"), log.path("")).unwrap();
    assert_eq!(log.rest().await, ["last"]);
    assert!(Path::new(&log.checkpoint()).exists());
}

#[tokio::test]
async fn checkpoint_of_an_earlier_version_is_read() {
    let log = Log::new("1\n2\n3\n");
    fs::write(log.checkpoint(), format!("{:<20}\n", 2)).unwrap();
    assert_eq!(log.rest().await, ["2", "3"]);
    log.append("", "4\n");
    assert_eq!(log.rest().await, ["4"]);
}
