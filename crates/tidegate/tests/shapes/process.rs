//! The program, which can be killed and started again on its folder.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_sandbox::Postgres;

/// Limit of anything that the test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A running `tidegate shapes`. Killed on drop.
pub(crate) struct ShapesProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    url: String,
    folder: tempfile::TempDir,
    more: Vec<String>,
}

impl ShapesProcess {
    pub(crate) fn start(postgres: &Postgres) -> Self {
        Self::start_with(postgres, &[])
    }

    /// Starts the program with further arguments.
    pub(crate) fn start_with(postgres: &Postgres, more: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        // The folder of the sandbox, so that its watchdog recognises the process.
        let folder = tempfile::tempdir_in(postgres.socket_dir()).unwrap();
        let url = postgres.url();
        let more: Vec<String> = more.iter().map(|argument| (*argument).to_owned()).collect();
        let child = spawn(&url, address, &folder, &more);
        postgres.register_process(child.id()).unwrap();
        let started = Self { child, address, url, folder, more };
        started.wait();
        started
    }

    /// SIGKILL, and a new process on the same folder.
    pub(crate) fn kill_and_restart(&mut self, postgres: &Postgres) {
        self.kill();
        self.child = spawn(&self.url, self.address, &self.folder, &self.more);
        postgres.register_process(self.child.id()).unwrap();
        self.wait();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn wait(&self) {
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(self.address).is_err() {
            assert!(Instant::now() < deadline, "the server does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ShapesProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(url: &str, address: SocketAddr, folder: &tempfile::TempDir, more: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["shapes", "--database", url, "--chunk-bytes", "4000", "--listen", &address.to_string(), "--storage"]);
    command
        .arg(folder.path().join("logs"))
        .args(more)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    command.spawn().unwrap()
}
