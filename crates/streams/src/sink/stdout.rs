//! Standard output: a line per record, written by a thread of its own, many at a time.

use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use tidegate_lanes::{Batch, Completion};
use tokio::sync::watch;

use tidegate_config::escape::escaped;

use crate::{error::StreamError, text::Texts};

pub(crate) struct Stdout {
    texts: Texts,
    /// A terminal obeys control characters; a file or a pipe gets records as they are.
    is_terminal: bool,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    broken: watch::Receiver<Option<String>>,
}

#[derive(Default)]
struct Shared {
    // Locked for a copy of the lines, and for a swap.
    queue: Mutex<Queue>,
    some: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    waiting: Vec<Completion>,
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines that are there; waits for some. Nothing once it is closed and empty.
    fn take(&self, into: &mut Queue) -> bool {
        let is_idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.is_closed;
        let mut queue = self.some.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut queue.lines, &mut into.lines);
        std::mem::swap(&mut queue.waiting, &mut into.waiting);
        !into.waiting.is_empty()
    }
}

impl Stdout {
    pub(crate) fn start(texts: Texts) -> Result<Self, StreamError> {
        if is_stand_in(std::io::stdout()) {
            return Err(StreamError::Sink(CLOSED.to_owned()));
        }
        let shared = Arc::new(Shared::default());
        let (alarm, broken) = watch::channel(None);
        let owner = Arc::clone(&shared);
        let started = std::thread::Builder::new().name("stdout".to_owned()).spawn(move || write(&owner, &alarm));
        let thread = started.map_err(|error| StreamError::Sink(error.to_string()))?;
        let is_terminal = std::io::stdout().is_terminal();
        Ok(Self { texts, is_terminal, shared, thread: Mutex::new(Some(thread)), broken })
    }

    /// The thread ends the completion when the lines are written.
    pub(super) fn put(&self, batch: Batch) {
        let Batch { records, completion, .. } = batch;
        let mut lines = Vec::new();
        if let Err(failure) = records.iter().try_for_each(|record| self.texts.line(record, &mut lines)) {
            return completion.fail(failure);
        }
        let lines = if self.is_terminal { for_terminal(&lines) } else { lines };
        let mut queue = self.shared.lock();
        queue.lines.extend_from_slice(&lines);
        queue.waiting.push(completion);
        drop(queue);
        self.shared.some.notify_one();
    }

    pub(super) async fn gone(&self) -> String {
        let mut broken = self.broken.clone();
        let seen = broken.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match seen {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.some.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It has nothing left to write: every completion was ended, or dropped with its subscription.
        drop(thread);
    }
}

/// Lines without what a terminal would obey.
fn for_terminal(lines: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(lines);
    text.split_inclusive('\n')
        .flat_map(|line| [escaped(line.trim_end_matches('\n')), "\n".into()])
        .collect::<String>()
        .into()
}

const CLOSED: &str = "standard output is closed (or a /dev/null that is open for reading, too), and what is written to it \
                      would be lost; if that is meant, say `> /dev/null`";

/// Is it what Rust opens in the place of a descriptor that was closed when the process began? That takes whatever is written,
/// and it would be committed. It is open for reading, too; that of a shell's `> /dev/null` is not.
fn is_stand_in(descriptor: impl AsFd) -> bool {
    const NULL: (u32, u32) = (1, 3);
    let (Ok(file), Ok(flags)) = (fstat(&descriptor), fcntl_getfl(&descriptor)) else { return false };
    FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice
        && (major(file.st_rdev), minor(file.st_rdev)) == NULL
        && flags.contains(OFlags::RDWR)
}

fn write(shared: &Shared, alarm: &watch::Sender<Option<String>>) {
    let mut taken = Queue::default();
    while shared.take(&mut taken) {
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(&taken.lines).and_then(|()| out.flush()) {
            // The completions stay with us: what was not written must not count as failed and go elsewhere.
            alarm.send_replace(Some(format!("standard output is gone ({error})")));
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
    fn control_characters_reach_no_terminal() {
        assert_eq!(
            for_terminal(b"{\"a\": 1}\n\x1b]0;title\x07\r\n\n\xffx\n"),
            "{\"a\": 1}\n\\u{1b}]0;title\\u{7}\\r\n\n\u{fffd}x\n".as_bytes()
        );
    }
}
