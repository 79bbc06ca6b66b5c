//! Notifications of systemd (`sd_notify(3)`): readiness, reloads, the watchdog, and the main process. Without `NOTIFY_SOCKET`
//! they do nothing.

use std::{
    ffi::OsString,
    os::unix::{
        ffi::OsStrExt as _,
        net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until, timeout};

use tidegate_proxy::plane::Workers;

/// Maximum length of a status, in bytes.
const STATUS_BYTES_MAX: usize = 500;

/// Time that systemd gets in addition to a limit of our own.
const MARGIN: Duration = Duration::from_secs(5);

/// Reports that the gateway accepts clients, or that a reload has ended.
pub(super) fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// Reports that a reload begins (`Type=notify-reload`); [`ready`] ends it.
pub(super) fn reloading() {
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reading the configuration", monotonic_usec()));
}

/// Reports that the shutdown begins, and how long it may take; zero is no limit of our own.
pub(super) fn stopping(status: &str, limit: Duration) {
    let extension = match limit.saturating_add(MARGIN).as_micros() {
        _ if limit.is_zero() => String::new(),
        micros => format!("\nEXTEND_TIMEOUT_USEC={micros}"),
    };
    notify(&format!("STOPPING=1\nSTATUS={}{extension}", one_line(status)));
}

/// Reports what the gateway does.
pub(super) fn status(status: &str) {
    notify(&format!("STATUS={}", one_line(status)));
}

/// Makes another process the main process of the service. From then on, systemd ignores notifications of this one.
pub(super) fn main_process(pid: Pid) {
    notify(&format!("MAINPID={}", pid.as_raw_nonzero()));
}

/// The text as one line: a line end would begin another assignment.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(STATUS_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

fn monotonic_usec() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000)
}

fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(%error, "sd_notify failed: {}", state.lines().next().unwrap_or_default());
    }
}

fn send(path: &OsString, state: &str) -> std::io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let socket = UnixDatagram::unbound()?;
    // The control plane must not wait for a full queue.
    socket.set_nonblocking(true)?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// The watchdog of systemd. It is only fed while every thread of the data plane answers, and from the loop that handles
/// signals: a hang of either ends the notifications, and systemd restarts the service.
#[derive(Debug)]
pub(super) struct SystemdWatchdog {
    /// Time between two notifications; `None` without a watchdog.
    interval: Option<Duration>,
    next: Instant,
}

/// Interval of a process that took over: `WATCHDOG_USEC` was passed to its predecessor only.
const SUCCESSOR_INTERVAL: Duration = Duration::from_secs(5);

impl SystemdWatchdog {
    /// The watchdog that the environment declares.
    pub(super) fn from_environment(took_over: bool) -> Self {
        let value = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let own = value("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let interval = value("WATCHDOG_USEC").filter(|_| own || took_over).map(|usec| Duration::from_micros(usec) / 3);
        let is_notified = std::env::var_os("NOTIFY_SOCKET").is_some();
        let interval = interval.or((took_over && is_notified).then_some(SUCCESSOR_INTERVAL));
        Self { interval: interval.filter(|interval| !interval.is_zero()), next: Instant::now() }
    }

    /// Waits until the next notification is due and sends it, if every thread answers.
    ///
    /// # Cancel safety
    /// Safe: the next call waits for the rest of the interval.
    pub(super) async fn feed(&mut self, workers: &Workers) {
        let Some(interval) = self.interval else { return std::future::pending().await };
        sleep_until(self.next).await;
        match timeout(interval, workers.ask_all(|_| ())).await {
            Ok(answers) if answers.len() == workers.count() => notify("WATCHDOG=1"),
            _ => tracing::error!("a worker thread does not answer; the watchdog is not notified"),
        }
        self.next = Instant::now() + interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_one_bounded_line() {
        assert_eq!(one_line("a\nREADY=1\tb"), "a READY=1 b");
        assert_eq!(one_line(&"é".repeat(400)).len(), STATUS_BYTES_MAX);
    }
}
