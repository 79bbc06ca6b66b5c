//! Logs panics: if the log is a file, or the process has no terminal, they would be visible nowhere else.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
};

/// Installs the hook. Caught panics are logged, too.
pub(super) fn install_hook() {
    panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(tracing::field::display);
    let text = panic.payload_as_str().unwrap_or("no text");
    let thread = thread::current();
    // As in the default hook, only with RUST_BACKTRACE.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
    tracing::error!(at, thread = thread.name(), backtrace, "panicked: {text}");
}

#[cfg(test)]
mod tests {
    use tidegate_supervise::Scope;

    use super::*;
    use tidegate_config::LogLevel;

    use crate::{LogStyle, tests::logged};

    fn fail(why: &str) {
        panic!("{why}");
    }

    #[test]
    fn panic_of_a_client_is_one_log_line() {
        let before = panic::take_hook();
        install_hook();
        let lines = logged(LogStyle::Plain, LogLevel::Info, |_| {
            let clients: Scope = Scope::root("clients");
            let client = clients.wrap(async |_| fail("half\nof a reply")).expect("the scope is open");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            assert!(runtime.block_on(client).is_err());
        });
        panic::set_hook(before);
        let [line] = lines.lines().collect::<Vec<_>>()[..] else { panic!("one line: {lines}") };
        assert!(line.contains(" ERROR panicked: half\\nof a reply at="), "{line}");
        assert!(line.contains(concat!(file!(), ":")) && line.contains(" thread="), "{line}");
    }
}
