//! Standard output as a sink: a line per record, written in batches by a thread.

use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use tidegate_lanes::{Batch, Completion};
use tokio::sync::watch;

use tidegate_config::escape::escaped;

use crate::{encoding::RecordEncoder, error::StreamError};

pub(crate) struct StdoutSink {
    encoder: RecordEncoder,
    /// A terminal interprets control characters; a file or a pipe gets records unchanged.
    is_terminal: bool,
    shared: Arc<StdoutShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    broken: watch::Receiver<Option<String>>,
}

#[derive(Default)]
struct StdoutShared {
    // Locked to append lines, and for a swap.
    queue: Mutex<LineQueue>,
    has_lines: Condvar,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    waiting: Vec<Completion>,
    is_closed: bool,
}

impl StdoutShared {
    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines and takes them. Returns `false` once the queue is closed and empty.
    fn take(&self, into: &mut LineQueue) -> bool {
        let is_idle = |queue: &mut LineQueue| queue.waiting.is_empty() && !queue.is_closed;
        let mut queue = self.has_lines.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut queue.lines, &mut into.lines);
        std::mem::swap(&mut queue.waiting, &mut into.waiting);
        !into.waiting.is_empty()
    }
}

impl StdoutSink {
    pub(crate) fn start(encoder: RecordEncoder) -> Result<Self, StreamError> {
        if is_closed_at_start(std::io::stdout()) {
            return Err(StreamError::Sink(CLOSED.to_owned()));
        }
        let shared = Arc::new(StdoutShared::default());
        let (error_sender, broken) = watch::channel(None);
        let owner = Arc::clone(&shared);
        let started = std::thread::Builder::new().name("stdout".to_owned()).spawn(move || write(&owner, &error_sender));
        let thread = started.map_err(|error| StreamError::Sink(error.to_string()))?;
        let is_terminal = std::io::stdout().is_terminal();
        Ok(Self { encoder, is_terminal, shared, thread: Mutex::new(Some(thread)), broken })
    }

    /// Queues a batch; the thread completes it when the lines are written.
    pub(super) fn enqueue(&self, batch: Batch) {
        let Batch { records, completion, .. } = batch;
        let mut lines = Vec::new();
        if let Err(failure) = records.iter().try_for_each(|record| self.encoder.line(record, &mut lines)) {
            return completion.fail(failure);
        }
        let lines = if self.is_terminal { for_terminal(&lines) } else { lines };
        let mut queue = self.shared.lock();
        queue.lines.extend_from_slice(&lines);
        queue.waiting.push(completion);
        drop(queue);
        self.shared.has_lines.notify_one();
    }

    pub(super) async fn failed(&self) -> String {
        let mut broken = self.broken.clone();
        let seen = broken.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match seen {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.has_lines.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The queue is empty: every completion was ended, or dropped with its subscription.
        drop(thread);
    }
}

/// Escapes control characters, which a terminal would interpret.
fn for_terminal(lines: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(lines);
    text.split_inclusive('\n')
        .flat_map(|line| [escaped(line.trim_end_matches('\n')), "\n".into()])
        .collect::<String>()
        .into()
}

const CLOSED: &str = "standard output is closed (or is a /dev/null that is open for reading, too), so records \
                      would be lost; if that is intended, use `> /dev/null`";

/// Whether this is /dev/null, opened by the Rust runtime in place of a descriptor that was closed at the start of the process.
/// Lines would be lost and committed. Such a descriptor is open for reading and writing; a shell's `> /dev/null` is not.
fn is_closed_at_start(descriptor: impl AsFd) -> bool {
    const NULL: (u32, u32) = (1, 3);
    let (Ok(file), Ok(flags)) = (fstat(&descriptor), fcntl_getfl(&descriptor)) else { return false };
    FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice
        && (major(file.st_rdev), minor(file.st_rdev)) == NULL
        && flags.contains(OFlags::RDWR)
}

fn write(shared: &StdoutShared, error_sender: &watch::Sender<Option<String>>) {
    let mut taken = LineQueue::default();
    while shared.take(&mut taken) {
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(&taken.lines).and_then(|()| out.flush()) {
            // Keep the completions: lines that were not written must not count as failed and be delivered elsewhere.
            error_sender.send_replace(Some(format!("standard output failed ({error})")));
            let mut queue = shared.lock();
            queue.is_closed = true;
            queue.waiting.append(&mut taken.waiting);
            return;
        }
        drop(out);
        taken.lines.clear();
        taken.waiting.drain(..).for_each(Completion::finish);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            for_terminal(b"{\"a\": 1}\n\x1b]0;title\x07\r\n\n\xffx\n"),
            "{\"a\": 1}\n\\u{1b}]0;title\\u{7}\\r\n\n\u{fffd}x\n".as_bytes()
        );
    }
}
