//! The log line of a start: what runs, with which configuration, and where it listens.

use tidegate_config::IoBackend;
use tidegate_link::{IoMode, Reactor};
use tidegate_proxy::plane::Configuration;

use super::sockets::Sockets;

/// The kernel interface of the data plane.
pub(super) struct ChosenIo {
    pub(super) mode: IoMode,
    /// Why the kernel forbids io_uring, if epoll was not requested.
    io_uring_error: Option<String>,
}

impl ChosenIo {
    pub(super) fn of(reactor: &Reactor) -> Self {
        Self { mode: reactor.mode(), io_uring_error: reactor.io_uring_error().map(ToString::to_string) }
    }

    const fn name(&self) -> &'static str {
        match self.mode {
            IoMode::Epoll => "epoll",
            IoMode::IoUring | IoMode::Auto => "io_uring",
        }
    }

    /// Why this interface is in use.
    fn reason(&self, configured: IoBackend) -> String {
        match (&self.io_uring_error, configured) {
            (Some(error), _) => {
                format!("io_uring is not available ({error}); containers often forbid it by a seccomp profile")
            }
            (None, IoBackend::Auto) => "the kernel offers it".to_owned(),
            (None, IoBackend::IoUring | IoBackend::Epoll) => "runtime.io".to_owned(),
        }
    }
}

/// Logs the start.
pub(super) fn log(config: &Configuration, workers: usize, io: &ChosenIo, sockets: &Sockets) {
    let setup = config.setup();
    let file = config.file();
    let config = file.map_or_else(|| "--database".to_owned(), |file| file.display().to_string());
    let io_reason = io.reason(setup.config.runtime.io);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        config,
        databases = setup.config.databases.len(),
        workers,
        io = io.name(),
        io_reason,
        addresses = sockets.client_addresses().join(" "),
        "tidegate started"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_the_refusal_of_io_uring() {
        let io = ChosenIo { mode: IoMode::Epoll, io_uring_error: Some("Operation not permitted".to_owned()) };
        assert_eq!(io.name(), "epoll");
        assert!(io.reason(IoBackend::Auto).contains("Operation not permitted"));
        let io = ChosenIo { mode: IoMode::Epoll, io_uring_error: None };
        assert_eq!(io.reason(IoBackend::Epoll), "runtime.io");
    }
}
