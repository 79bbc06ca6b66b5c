//! A server does not outlive the process that owns it, even if that one is killed without a word.
//!
//! A shell waits on a pipe whose other end only we hold. When we die, by whatever signal, the pipe closes, and the
//! shell ends the server and removes its folder. `PR_SET_PDEATHSIG` would do it without the shell, but is set between
//! fork and exec, which needs unsafe code, and fires when the *thread* that started the server ends.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Error;

/// File of the sandbox with the process ids of [`Postgres::adopt`](crate::Postgres::adopt), a line each.
pub(crate) const ADOPTED: &str = "adopted";

/// `$1` is the folder of the sandbox. A line on the pipe means: all is well, go away. A process is ended only if it has
/// that folder in its command line: ids are used again.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
read -r word && exit 0
while read -r pid; do
    grep -q "$1/" "/proc/$pid/cmdline" 2>/dev/null && kill -KILL "$pid"
done 2>/dev/null <"$1/adopted"
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && grep -qzx "$1/data" "/proc/$pid/cmdline" 2>/dev/null; then
    kill -CONT "$pid"; kill -QUIT "$pid"
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
"#;

/// The shell that waits; dropping it sends it home.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Watches over the server in `home`.
    pub(crate) fn watch(home: &Path) -> Result<Self, Error> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tidegate-sandbox"])
            .arg(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::io("start /bin/sh"))?;
        Ok(Self { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // If the shell is gone already there is nobody to tell.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.shell.wait();
    }
}
