//! Sends lines to syslog: datagrams of `<priority>name[pid]: text`, the format that daemons behind `/dev/log` read (RFC 3164,
//! section 4.1). The daemon adds the date.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwapOption;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::EventText;
use tidegate_config::{LogConfig, SyslogFacility};

/// Limit of a line; daemons truncate longer ones (RFC 3164 allows 1024 bytes, today's daemons more).
const LINE_MAX: usize = 8 * 1024;

/// The connection to syslog, if it is enabled.
#[derive(Debug, Clone, Default)]
pub(super) struct SystemLog(Arc<ArcSwapOption<Syslog>>);

impl SystemLog {
    /// Applies new settings.
    pub(super) fn reopen(&self, log: &LogConfig) {
        let target = SyslogTarget::of(log);
        if self.0.load().as_ref().map(|syslog| &syslog.target) != target.as_ref() {
            self.0.store(target.map(|target| Arc::new(Syslog::new(target))));
        }
    }

    /// Whether syslog is enabled.
    pub(super) fn is_on(&self) -> bool {
        self.0.load().is_some()
    }
}

/// The text format without time and level, which the daemon stores separately.
impl<S: Subscriber> Layer<S> for SystemLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(syslog) = &*self.0.load() else { return };
        let mut line = EventText::default();
        event.record(&mut line);
        syslog.write(*event.metadata().level(), &format!("{}{}", line.message, line.fields));
    }
}

/// Address and identity for syslog.
#[derive(Debug, PartialEq, Eq)]
struct SyslogTarget {
    path: PathBuf,
    ident: String,
    facility: SyslogFacility,
}

impl SyslogTarget {
    fn of(log: &LogConfig) -> Option<Self> {
        let is_enabled = !log.syslog.as_os_str().is_empty();
        is_enabled.then(|| Self {
            path: log.syslog.clone(),
            ident: log.syslog_ident.clone(),
            facility: log.syslog_facility,
        })
    }
}

#[derive(Debug)]
struct Syslog {
    target: SyslogTarget,
    /// Name and id of the process.
    tag: String,
    /// Connected, unless the daemon is gone.
    socket: Mutex<Option<UnixDatagram>>,
}

impl Syslog {
    /// The daemon need not run yet.
    fn new(target: SyslogTarget) -> Self {
        let tag = format!("{}[{}]: ", target.ident, std::process::id());
        Self { target, tag, socket: Mutex::default() }
    }

    fn write(&self, level: Level, text: &str) {
        let priority = code(self.target.facility) * 8 + severity(level);
        let mut datagram = format!("<{priority}>{}", self.tag).into_bytes();
        datagram.extend_from_slice(&text.as_bytes()[..text.len().min(LINE_MAX)]);
        // The other outputs have this line, too; a failure cannot be reported anywhere.
        let _ = self.send(&datagram);
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.target.path)?;
        // Never wait for a slow daemon: lines are dropped while its buffer is full.
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Sends a line. Reconnects once if the daemon was restarted.
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = &*socket {
            match connected.send(datagram) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => *socket = None,
                sent => return sent.map(drop),
            }
        }
        let connected = self.connect()?;
        let sent = connected.send(datagram).map(drop);
        *socket = Some(connected);
        sent
    }
}

/// The number of a facility (RFC 3164, section 4.1.1).
const fn code(facility: SyslogFacility) -> u8 {
    match facility {
        SyslogFacility::User => 1,
        SyslogFacility::Daemon => 3,
        SyslogFacility::Auth => 4,
        SyslogFacility::Authpriv => 10,
        SyslogFacility::Local0 => 16,
        SyslogFacility::Local1 => 17,
        SyslogFacility::Local2 => 18,
        SyslogFacility::Local3 => 19,
        SyslogFacility::Local4 => 20,
        SyslogFacility::Local5 => 21,
        SyslogFacility::Local6 => 22,
        SyslogFacility::Local7 => 23,
    }
}

const fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_daemon_gets_later_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let target = SyslogTarget { path: path.clone(), ident: "tide".to_owned(), facility: SyslogFacility::Local3 };
        let syslog = Syslog::new(target);
        syslog.write(Level::WARN, "no daemon yet");
        for text in ["first", "second"] {
            let _ = std::fs::remove_file(&path);
            let daemon = UnixDatagram::bind(&path).expect("a socket");
            syslog.write(Level::WARN, text);
            let mut datagram = [0; 100];
            let length = daemon.recv(&mut datagram).expect("it arrives");
            let expected = format!("<156>tide[{}]: {text}", std::process::id());
            assert_eq!(String::from_utf8_lossy(&datagram[..length]), expected);
        }
    }
}
