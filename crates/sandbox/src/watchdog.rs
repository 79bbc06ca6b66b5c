//! Stops a server whose owner process has died, even by SIGKILL.
//!
//! A shell waits on a pipe whose other end only the owner holds. When the owner dies, by whatever signal, the pipe
//! closes, and the shell stops the server and removes its folder. `PR_SET_PDEATHSIG` is not used: it needs unsafe code
//! between fork and exec, and it fires when the *thread* that started the server ends.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Error;

/// File with the process IDs of [`Postgres::register_process`](crate::Postgres::register_process), one per line.
pub(crate) const REGISTERED_PROCESSES: &str = "processes";

/// `$1` is the folder of the sandbox. A line on the pipe dismisses the shell. A process is killed only if its command
/// line contains the folder, because process IDs are reused.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
read -r word && exit 0
while read -r pid; do
    grep -q "$1/" "/proc/$pid/cmdline" 2>/dev/null && kill -KILL "$pid"
done 2>/dev/null <"$1/processes"
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && grep -qzx "$1/data" "/proc/$pid/cmdline" 2>/dev/null; then
    kill -CONT "$pid"; kill -QUIT "$pid"
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
"#;

/// The waiting shell; dropping it dismisses the shell.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Watches the server in `home`.
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

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // Fails if the shell has exited already.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.shell.wait();
    }
}
