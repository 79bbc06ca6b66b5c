//! A command: a line per record on its standard input, an answer per record on its standard output.
//!
//! A process has one batch at a time, so what it dies of is known; the next batch gets a new process.

use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tidegate_lanes::{Record, RecordFailure};
use tokio::io::{AsyncBufRead as _, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::hands::Hands;
use tidegate_config::stream::StreamKeys;

use crate::text::Texts;

pub(crate) struct Command {
    line: String,
    texts: Texts,
    pub(super) hands: Hands<Process>,
}

/// A process that waits for work, or has some.
pub(super) struct Process {
    leader: Leader,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    answer: Vec<u8>,
}

/// The process itself. Dropped, it is killed with everything that it has started.
struct Leader {
    child: Child,
    group: Option<Pid>,
    has_ended: bool,
}

/// An answer is one line; a longer one is no answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

impl Command {
    pub(super) fn new(line: &str, keys: &StreamKeys, texts: Texts) -> Self {
        let hands = match keys.processes {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            processes => processes as usize,
        };
        Self { line: line.to_owned(), texts, hands: Hands::new(hands) }
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let mut lines = Vec::new();
        records.iter().try_for_each(|record| self.texts.line(record, &mut lines))?;
        let (_permit, idle) = self.hands.take(|process| process.leader.lives()).await?;
        let mut process = match idle {
            Some(process) => process,
            None => Process::start(&self.line)?,
        };
        // Dropped before it is put back (it broke, or its time is over), a process is killed.
        let answers = process.ask(&lines, records.len()).await?;
        self.hands.put_back(process);
        answers
    }

    /// Ends the processes: they see the end of their input, and have so long to go.
    pub(super) async fn close(&self, within: Duration) {
        let idle = self.hands.take_all();
        let end = async {
            // Without their input, all end at the same time.
            let leaders: Vec<Leader> = idle.into_iter().map(|process| process.leader).collect();
            for mut leader in leaders {
                leader.wait().await;
            }
        };
        // What does not go is killed when it is dropped.
        let _ = tokio::time::timeout(within, end).await;
    }
}

impl Leader {
    async fn wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().await.ok();
        self.has_ended = true;
        status
    }

    fn lives(&mut self) -> bool {
        self.has_ended = !matches!(self.child.try_wait(), Ok(None));
        !self.has_ended
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let (Some(group), false) = (self.group, self.has_ended) {
            // It may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Process {
    fn start(line: &str) -> Result<Self, RecordFailure> {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
        let failed = |error: std::io::Error| RecordFailure::new(format!("the command cannot be started: {error}"));
        let mut child = command.spawn().map_err(failed)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(RecordFailure::new("the command has no pipes"));
        };
        let leader = Leader { child, group, has_ended: false };
        Ok(Self { leader, input, output: BufReader::new(output), answer: Vec::new() })
    }

    /// The outer error is that of the process, which is of no more use; the inner one that of the records.
    async fn ask(&mut self, lines: &[u8], count: usize) -> Result<Result<(), RecordFailure>, RecordFailure> {
        if self.has_said_more() {
            return Err(RecordFailure::new("the command gave more answers than it had records"));
        }
        let (input, output) = (&mut self.input, &mut self.output);
        let answer = &mut self.answer;
        // Both at once: a batch may be larger than a pipe, and so may its answers. Whoever gives no answer need not read on.
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
                result = result.and(judge(answer).filter(|_| is_whole).ok_or(NoAnswer)?);
            }
            Ok(result)
        };
        match tokio::try_join!(write, read) {
            Ok((Ok(()), result)) => Ok(result),
            Err(NoAnswer) if !self.answer.is_empty() => Err(RecordFailure::new(format!(
                "the command answered `{}`: an answer is a line `ok`, `failed REASON` or `rejected REASON`",
                String::from_utf8_lossy(&self.answer).trim().chars().take(80).collect::<String>()
            ))),
            _ => Err(self.death().await),
        }
    }

    /// Whether there are answers that nobody has asked for: the next one would be taken for that of another record.
    fn has_said_more(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(Pin::new(&mut self.output).poll_fill_buf(&mut cx), Poll::Ready(Ok(bytes)) if !bytes.is_empty())
    }

    /// How it ended. It has closed its output, or does not read its input any more.
    async fn death(&mut self) -> RecordFailure {
        match tokio::time::timeout(DEATH_LIMIT, self.leader.wait()).await {
            Ok(Some(status)) => RecordFailure::new(format!("the command ended ({status}) without an answer")),
            _ => RecordFailure::new("the command closed its pipes without an answer"),
        }
    }
}

/// It said something else, or nothing.
struct NoAnswer;

/// From the end of its output to the end of the process.
const DEATH_LIMIT: Duration = Duration::from_secs(1);

/// What a line says; `None` if it is no answer.
fn judge(line: &[u8]) -> Option<Result<(), RecordFailure>> {
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
    fn answers_are_read() {
        assert_eq!(judge(b"ok\n"), Some(Ok(())));
        assert_eq!(judge(b"failed no such user\r\n"), Some(Err(RecordFailure::new("no such user"))));
        assert_eq!(judge(b"rejected\n"), Some(Err(RecordFailure::permanent("the command gave no reason"))));
        assert_eq!((judge(b"done\n"), judge(b"\n")), (None, None));
    }
}
