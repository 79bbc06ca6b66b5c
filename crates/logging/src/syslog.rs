//! Lines for the system's log: datagrams of `<priority>name[pid]: text`, as the daemons behind `/dev/log` read them (RFC 3164,
//! section 4.1). The date is left to the daemon, which takes the line at once.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwapOption;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::Line;
use tidegate_config::{Log, SyslogFacility};

/// A daemon takes no longer ones without cutting them (RFC 3164 allows 1024, those that there are take more).
const LINE_MAX: usize = 8 * 1024;

/// The system's log, if lines go there.
#[derive(Debug, Clone, Default)]
pub(super) struct SystemLog(Arc<ArcSwapOption<Syslog>>);

impl SystemLog {
    /// Lines go where these settings say from now on.
    pub(super) fn follow(&self, log: &Log) {
        let wanted = Address::of(log);
        if self.0.load().as_ref().map(|syslog| &syslog.address) != wanted.as_ref() {
            self.0.store(wanted.map(|address| Arc::new(Syslog::new(address))));
        }
    }

    /// Whether lines go there.
    pub(super) fn is_on(&self) -> bool {
        self.0.load().is_some()
    }
}

/// The text form without time and level, which the daemon keeps beside it.
impl<S: Subscriber> Layer<S> for SystemLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(syslog) = &*self.0.load() else { return };
        let mut line = Line::default();
        event.record(&mut line);
        syslog.write(*event.metadata().level(), &format!("{}{}", line.message, line.fields));
    }
}

/// Where lines go, and as whose.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    path: PathBuf,
    ident: String,
    facility: SyslogFacility,
}

impl Address {
    fn of(log: &Log) -> Option<Self> {
        let is_wanted = !log.syslog.as_os_str().is_empty();
        is_wanted.then(|| Self {
            path: log.syslog.clone(),
            ident: log.syslog_ident.clone(),
            facility: log.syslog_facility,
        })
    }
}

#[derive(Debug)]
struct Syslog {
    address: Address,
    /// Name and number of the process.
    tag: String,
    /// Connected, unless the daemon has gone.
    socket: Mutex<Option<UnixDatagram>>,
}

impl Syslog {
    /// The daemon need not be there yet.
    fn new(address: Address) -> Self {
        let tag = format!("{}[{}]: ", address.ident, std::process::id());
        Self { address, tag, socket: Mutex::default() }
    }

    fn write(&self, level: Level, text: &str) {
        let priority = code(self.address.facility) * 8 + severity(level);
        let mut datagram = format!("<{priority}>{}", self.tag).into_bytes();
        datagram.extend_from_slice(&text.as_bytes()[..text.len().min(LINE_MAX)]);
        // The other places for lines have this one; there is nobody to be told that the daemon is gone.
        let _ = self.send(&datagram);
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.address.path)?;
        // Nobody waits for a daemon that does not read: what it has no room for is lost.
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Sends a line; once more if the daemon was started anew meanwhile.
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*socket {
            match known.send(datagram) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => *socket = None,
                sent => return sent.map(drop),
            }
        }
        let fresh = self.connect()?;
        let sent = fresh.send(datagram).map(drop);
        *socket = Some(fresh);
        sent
    }
}

/// The number of a facility: RFC 3164, section 4.1.1.
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
    fn a_daemon_that_is_started_anew_gets_the_lines_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let address = Address { path: path.clone(), ident: "tide".to_owned(), facility: SyslogFacility::Local3 };
        let syslog = Syslog::new(address);
        syslog.write(Level::WARN, "nobody is there");
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
