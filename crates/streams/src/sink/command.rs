//! A command as a sink: a line per record on its standard input, an answer per record on its standard output.
//!
//! A process works on one batch at a time, so the cause of its end is known. The next batch gets a new process.

use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tidegate_lanes::{Record, RecordFailure};
use tokio::io::{AsyncBufRead as _, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::worker_pool::SinkWorkerPool;

use crate::encoding::RecordEncoder;

pub(crate) struct CommandSink {
    line: String,
    encoder: RecordEncoder,
    pub(super) workers: SinkWorkerPool<CommandProcess>,
}

/// A process, idle or busy.
pub(super) struct CommandProcess {
    group_leader: ProcessGroup,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    answer: Vec<u8>,
}

/// The process group of the command. Killed when dropped.
struct ProcessGroup {
    child: Child,
    group: Option<Pid>,
    has_ended: bool,
}

/// Limit of an answer, which is one line.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

impl CommandSink {
    pub(super) fn new(line: &str, workers: usize, encoder: RecordEncoder) -> Self {
        Self { line: line.to_owned(), encoder, workers: SinkWorkerPool::new(workers) }
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let mut lines = Vec::new();
        records.iter().try_for_each(|record| self.encoder.line(record, &mut lines))?;
        let (_permit, idle) = self.workers.acquire(|process| process.group_leader.is_alive()).await?;
        let mut process = match idle {
            Some(process) => process,
            None => CommandProcess::start(&self.line)?,
        };
        // If it is dropped before it is returned (an error or a timeout), the process is killed.
        let answers = process.exchange(&lines, records.len()).await?;
        self.workers.put_back(process);
        answers
    }

    /// Ends the processes: closes their input and waits up to `within`.
    pub(super) async fn close(&self, within: Duration) {
        let idle = self.workers.take_all();
        let end = async {
            // Close all inputs first, so that the processes end at the same time.
            let leaders: Vec<ProcessGroup> = idle.into_iter().map(|process| process.group_leader).collect();
            for mut group_leader in leaders {
                group_leader.wait().await;
            }
        };
        // Processes that have not ended are killed when they are dropped.
        let _ = tokio::time::timeout(within, end).await;
    }
}

impl ProcessGroup {
    async fn wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().await.ok();
        self.has_ended = true;
        status
    }

    fn is_alive(&mut self) -> bool {
        self.has_ended = !matches!(self.child.try_wait(), Ok(None));
        !self.has_ended
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let (Some(group), false) = (self.group, self.has_ended) {
            // The group may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl CommandProcess {
    fn start(line: &str) -> Result<Self, RecordFailure> {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
        let failed = |error: std::io::Error| RecordFailure::new(format!("the command cannot be started: {error}"));
        let mut child = command.spawn().map_err(failed)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(RecordFailure::new("the command has no pipes"));
        };
        let group_leader = ProcessGroup { child, group, has_ended: false };
        Ok(Self { group_leader, input, output: BufReader::new(output), answer: Vec::new() })
    }

    /// The outer error is that of the process, which cannot be used any more; the inner one is that of the records.
    async fn exchange(&mut self, lines: &[u8], count: usize) -> Result<Result<(), RecordFailure>, RecordFailure> {
        if self.has_unexpected_answer() {
            return Err(RecordFailure::new("the command gave more answers than it had records"));
        }
        let (input, output) = (&mut self.input, &mut self.output);
        let answer = &mut self.answer;
        // Write and read concurrently: a batch may exceed the size of a pipe, and so may its answers. Without an answer, reading
        // stops.
        let write = async {
            let written = input.write_all(lines).await;
            Ok(if written.is_ok() { input.flush().await } else { written })
        };
        let read = async {
            let mut result = Ok(());
            for _ in 0..count {
                answer.clear();
                let mut limited = tokio::io::AsyncReadExt::take(&mut *output, ANSWER_BYTES_MAX);
                let read = limited.read_until(b'\n', answer).await;
                let is_whole = read.is_ok() && answer.last() == Some(&b'\n');
                result = result.and(parse_answer(answer).filter(|_| is_whole).ok_or(InvalidAnswer)?);
            }
            Ok(result)
        };
        match tokio::try_join!(write, read) {
            Ok((Ok(()), result)) => Ok(result),
            Err(InvalidAnswer) if !self.answer.is_empty() => Err(RecordFailure::new(format!(
                "the command answered `{}`: an answer is a line `ok`, `failed REASON` or `rejected REASON`",
                String::from_utf8_lossy(&self.answer).trim().chars().take(80).collect::<String>()
            ))),
            _ => Err(self.exit_failure().await),
        }
    }

    /// Whether there are unexpected answers, which would be mistaken for those of later records.
    fn has_unexpected_answer(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(Pin::new(&mut self.output).poll_fill_buf(&mut cx), Poll::Ready(Ok(bytes)) if !bytes.is_empty())
    }

    /// Describes the end of a process that has closed its output or does not read its input.
    async fn exit_failure(&mut self) -> RecordFailure {
        match tokio::time::timeout(EXIT_LIMIT, self.group_leader.wait()).await {
            Ok(Some(status)) => RecordFailure::new(format!("the command ended ({status}) without an answer")),
            _ => RecordFailure::new("the command closed its pipes without an answer"),
        }
    }
}

/// The answer is invalid or missing.
struct InvalidAnswer;

/// Time from the end of the output to the end of the process.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Parses an answer; `None` if it is invalid.
fn parse_answer(line: &[u8]) -> Option<Result<(), RecordFailure>> {
    let text = String::from_utf8_lossy(line);
    let (word, reason) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let reason = if reason.is_empty() { "the command gave no reason" } else { reason.trim() };
    match word {
        "ok" => Some(Ok(())),
        "failed" => Some(Err(RecordFailure::new(reason))),
        "rejected" => Some(Err(RecordFailure::permanent(reason))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        assert_eq!(parse_answer(b"ok\n"), Some(Ok(())));
        assert_eq!(parse_answer(b"failed no such user\r\n"), Some(Err(RecordFailure::new("no such user"))));
        assert_eq!(parse_answer(b"rejected\n"), Some(Err(RecordFailure::permanent("the command gave no reason"))));
        assert_eq!((parse_answer(b"done\n"), parse_answer(b"\n")), (None, None));
    }
}
