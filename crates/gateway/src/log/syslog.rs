//! Lines for the system's log: datagrams of `<priority>name[pid]: text`, as the daemons behind `/dev/log` read them (RFC 3164,
//! section 4.1). The date is left to the daemon, which takes the line at once.

use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::config::SyslogFacility;

/// A daemon takes no longer ones without cutting them (RFC 3164 allows 1024, those that there are take more).
const LINE_MAX: usize = 8 * 1024;

/// Where lines go.
#[derive(Debug, Clone)]
pub(super) struct Syslog {
    path: PathBuf,
    facility: u8,
    /// Name and number of the process.
    tag: Arc<str>,
    /// Connected, unless the daemon has gone.
    socket: Arc<Mutex<Option<UnixDatagram>>>,
}

impl Syslog {
    /// The daemon need not be there yet.
    pub(super) fn new(path: PathBuf, ident: &str, facility: SyslogFacility) -> Self {
        let tag = format!("{ident}[{}]: ", std::process::id()).into();
        Self { path, facility: code(facility), tag, socket: Arc::default() }
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
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

/// One line on its way.
pub(super) struct Entry<'w> {
    syslog: &'w Syslog,
    level: Level,
}

impl Write for Entry<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let priority = self.syslog.facility * 8 + severity(self.level);
        let mut datagram = format!("<{priority}>{}", self.syslog.tag).into_bytes();
        datagram.extend_from_slice(&text[..text.len().min(LINE_MAX)]);
        // The other places for lines have this one; there is nobody to be told that the daemon is gone.
        let _ = self.syslog.send(&datagram);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Syslog {
    type Writer = Entry<'w>;

    fn make_writer(&'w self) -> Entry<'w> {
        Entry { syslog: self, level: Level::INFO }
    }

    fn make_writer_for(&'w self, meta: &Metadata<'_>) -> Entry<'w> {
        Entry { syslog: self, level: *meta.level() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_started_anew_gets_the_lines_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let syslog = Syslog::new(path.clone(), "tide", SyslogFacility::Local3);
        let write = |text: &str| Entry { syslog: &syslog, level: Level::WARN }.write_all(text.as_bytes());
        write("nobody is there\n").expect("that is no error");
        for text in ["first", "second"] {
            let _ = std::fs::remove_file(&path);
            let daemon = UnixDatagram::bind(&path).expect("a socket");
            write(&format!("{text}\n")).expect("it is sent");
            let mut datagram = [0; 100];
            let length = daemon.recv(&mut datagram).expect("it arrives");
            let expected = format!("<156>tide[{}]: {text}", std::process::id());
            assert_eq!(String::from_utf8_lossy(&datagram[..length]), expected);
        }
    }
}
