//! Panics, as lines of the log: where the log is a file, or the process has no terminal, they would be seen nowhere else.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
};

/// From now on each panic of the process is a line of its log, also one that is caught.
pub(super) fn note_all() {
    panic::set_hook(Box::new(note));
}

fn note(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(tracing::field::display);
    let says = panic.payload_as_str().unwrap_or("no text");
    let thread = thread::current();
    // As the one that everybody knows: with RUST_BACKTRACE alone.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
    tracing::error!(at, thread = thread.name(), backtrace, "panicked: {says}");
}

#[cfg(test)]
mod tests {
    use tidegate_supervise::Scope;

    use super::*;
    use tidegate_config::LogLevel;

    use crate::{Style, tests::logged};

    fn fail(why: &str) {
        panic!("{why}");
    }

    #[test]
    fn a_client_that_panics_is_a_line_of_the_log() {
        let before = panic::take_hook();
        note_all();
        let lines = logged(Style::Plain, LogLevel::Info, |_| {
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
