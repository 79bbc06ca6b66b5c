//! A running broker: stop, kill, suspend, restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;
use tempfile::TempDir;

use super::jars::Jars;
use super::properties::ListenerPorts;
use super::{Error, java, properties};
use crate::port::free_port;
use crate::process::{POLL, ServerProcess};
use crate::watchdog::{REGISTERED_PROCESSES, Watchdog};

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Another process may bind the port after it was found free.
const PORT_ATTEMPTS_MAX: u32 = 5;

/// A private Kafka broker. Dropping it stops the broker and removes its folder.
#[derive(Debug)]
#[must_use = "dropping it ends the broker"]
pub struct Broker {
    // Drop order: the watchdog is dismissed first, the folder is removed last.
    watchdog: Option<Watchdog>,
    process: Option<ServerProcess>,
    java: Java,
    ports: ListenerPorts,
    home: TempDir,
}

/// The programs of Kafka and the options of the JVM.
#[derive(Clone, Debug)]
struct Java {
    program: PathBuf,
    jars: Jars,
    heap_mib: u32,
    compiler: Compiler,
}

/// The JIT compilers of the JVM.
#[derive(Clone, Copy, Debug)]
enum Compiler {
    /// The start takes two thirds of the CPU time.
    Quick,
    Thorough,
}

/// Configures a broker; [`BrokerBuilder::start`] starts it.
#[derive(Clone, Debug)]
#[must_use]
pub struct BrokerBuilder {
    settings: Vec<(String, String)>,
    heap_mib: u32,
    compiler: Compiler,
    /// Key and certificates in PEM.
    keystore: Option<String>,
    /// User name and password.
    user: Option<(String, String)>,
}

impl BrokerBuilder {
    /// Adds a TLS listener ([`Broker::tls_bootstrap`]) with a certificate chain and its key, both in PEM, the key as
    /// PKCS #8.
    pub fn tls(mut self, certificates: &str, key: &str) -> Self {
        self.keystore = Some(format!("{}\n{}\n", key.trim_end(), certificates.trim_end()));
        self
    }

    /// Adds a listener ([`Broker::login_bootstrap`]) with SCRAM-SHA-256 authentication for this user, over TLS if there
    /// is a certificate. Name and password are letters and digits.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.user = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// A setting of `server.properties`; the last value for a name counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Maximum heap size, in MiB; 512 by default.
    pub fn heap_mib(mut self, heap_mib: u32) -> Self {
        self.heap_mib = heap_mib;
        self
    }

    /// Enables all optimisations of the JVM, at the price of a slower start: for benches.
    pub fn long_lived(mut self) -> Self {
        self.compiler = Compiler::Thorough;
        self
    }

    /// Starts the broker and waits until it accepts connections: three seconds, and once the time to download the jars.
    ///
    /// # Errors
    /// Every variant of [`Error`]; an incomplete sandbox is removed.
    pub fn start(self) -> Result<Broker, Error> {
        let (heap_mib, compiler) = (self.heap_mib, self.compiler);
        let java = Java { program: java::find()?, jars: Jars::find_or_fetch()?, heap_mib, compiler };
        for attempt in 1.. {
            let home = tempfile::Builder::new().prefix("tidegate-kafka-").tempdir();
            let home = home.map_err(Error::io("create a temporary folder"))?;
            let ports = self.ports()?;
            let file = properties::server(home.path(), ports, &self.settings);
            write(&home.path().join("server.properties"), &file)?;
            write(&home.path().join("log4j2.properties"), properties::LOGGING)?;
            if let Some(keystore) = &self.keystore {
                write(&home.path().join(properties::KEYSTORE), keystore)?;
            }
            java.format(home.path(), self.user.as_ref())?;
            let watchdog = Some(Watchdog::watch(home.path())?);
            let mut broker = Broker { watchdog, process: None, java: java.clone(), ports, home };
            match broker.launch() {
                Err(Error::Start { log, .. })
                    if attempt < PORT_ATTEMPTS_MAX && log.contains("Address already in use") => {}
                started => return started.map(|()| broker),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn ports(&self) -> Result<ListenerPorts, Error> {
        let port_if = |is_needed: bool| is_needed.then(free_port).transpose();
        Ok(ListenerPorts {
            plain: free_port()?,
            controller: free_port()?,
            tls: port_if(self.keystore.is_some())?,
            login: port_if(self.user.is_some())?,
        })
    }
}

impl Java {
    /// A command that runs a class of Kafka with the configuration in `home`.
    fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-Xmx{}m", self.heap_mib))
            // UsePerfData would leave a file in the folder for temporary files.
            .args(["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"])
            .arg(format!("-Djava.io.tmpdir={}", home.display()))
            .arg(format!("-Dlog4j2.configurationFile={}", home.join("log4j2.properties").display()))
            .args(matches!(self.compiler, Compiler::Quick).then_some("-XX:TieredStopAtLevel=1"))
            .arg("-cp")
            .arg(self.jars.class_path());
        command
    }

    /// The command of the broker.
    fn broker(&self, home: &Path) -> Command {
        let mut command = self.command(home);
        command.arg("kafka.Kafka").arg(home.join("server.properties"));
        command
    }

    /// Formats the storage. The user is part of it, so that it exists from the first start.
    fn format(&self, home: &Path, user: Option<&(String, String)>) -> Result<(), Error> {
        let scram = |(name, password): &(String, String)| {
            format!("{}=[name={name},password={password}]", properties::MECHANISM)
        };
        let run = self
            .command(home)
            // The cluster ID: sixteen bytes in base64.
            .args(["kafka.tools.StorageTool", "format", "--cluster-id", "dGlkZWdhdGUtc2FuZGJveA", "--config"])
            .arg(home.join("server.properties"))
            .args(user.into_iter().flat_map(|user| ["--add-scram".to_owned(), scram(user)]))
            .output()
            .map_err(Error::io(format!("start {}", self.program.display())))?;
        let output = || String::from_utf8_lossy(&[&run.stdout[..], &run.stderr].concat()).into_owned();
        if run.status.success() { Ok(()) } else { Err(Error::Format { output: output() }) }
    }
}

impl Broker {
    /// Configures a broker.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder { settings: Vec::new(), heap_mib: 512, compiler: Compiler::Quick, keystore: None, user: None }
    }

    /// The broker that all tests of a process share. The first call starts it, and it stops with the process. Tests use
    /// different names of topics and groups.
    ///
    /// # Panics
    /// Panics if the broker does not start.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().start().unwrap_or_else(|error| panic!("{error}")))
    }

    /// The value for `bootstrap.servers`: `127.0.0.1:PORT`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// The value for `bootstrap.servers` of the TLS listener, if there is one.
    #[must_use]
    pub fn tls_bootstrap(&self) -> Option<String> {
        self.ports.tls.map(|port| format!("127.0.0.1:{port}"))
    }

    /// The value for `bootstrap.servers` of the listener with authentication, if there is one.
    #[must_use]
    pub fn login_bootstrap(&self) -> Option<String> {
        self.ports.login.map(|port| format!("127.0.0.1:{port}"))
    }

    /// Process ID; 0 while it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, ServerProcess::pid)
    }

    /// The folder: `data/`, `log`, `server.properties`.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The log so far: warnings and errors.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stops the broker (SIGTERM) and removes its folder.
    ///
    /// # Errors
    /// [`Error::Stop`] if it does not exit.
    pub fn stop(mut self) -> Result<(), Error> {
        self.stop_process(Signal::TERM)
    }

    /// Kills the broker (SIGKILL). [`Self::restart`] starts it again.
    ///
    /// # Errors
    /// [`Error::Stop`] if it does not exit.
    pub fn kill9(&mut self) -> Result<(), Error> {
        self.stop_process(Signal::KILL)
    }

    /// Restarts the broker on the same port and data; also after [`Self::kill9`].
    ///
    /// # Errors
    /// [`Error::Stop`] or [`Error::Start`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop_process(Signal::TERM)?;
        self.launch()
    }

    /// Suspends the process (SIGSTOP): connections stay open without responses.
    pub fn suspend(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::STOP));
    }

    /// Resumes the process (SIGCONT).
    pub fn resume(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::CONT));
    }

    fn launch(&mut self) -> Result<(), Error> {
        let written = self.log().len();
        let command = self.java.broker(self.home.path());
        let mut process = ServerProcess::spawn(under_watchdog(&command, self.home.path()), &self.log_path())?;
        let deadline = Instant::now() + START_LIMIT;
        while !self.answers() {
            let ended = process.has_ended();
            if ended || Instant::now() >= deadline {
                process.signal(Signal::KILL);
                let _ = process.wait(STOP_LIMIT);
                let reason = if ended { "it exited" } else { "timeout" }.to_owned();
                return Err(Error::Start { reason, log: self.log().split_off(written) });
            }
            std::thread::sleep(10 * POLL);
        }
        self.process = Some(process);
        Ok(())
    }

    /// The broker listens only when its start is complete.
    fn answers(&self) -> bool {
        let listens = || std::net::TcpStream::connect(("127.0.0.1", self.ports.plain)).is_ok();
        let has_started = || {
            let asking: BaseConsumer =
                self.client_config().set_log_level(rdkafka::config::RDKafkaLogLevel::Emerg).create().ok()?;
            let metadata = asking.fetch_metadata(None, Duration::from_secs(5)).ok()?;
            (!metadata.brokers().is_empty()).then_some(())
        };
        listens() && has_started().is_some()
    }

    /// Sends `signal`, and SIGKILL after a timeout.
    fn stop_process(&mut self, signal: Signal) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.signal(Signal::CONT);
        process.signal(signal);
        if process.wait(STOP_LIMIT) {
            return Ok(());
        }
        process.signal(Signal::KILL);
        if process.wait(STOP_LIMIT) { Ok(()) } else { Err(Error::Stop { pid: process.pid() }) }
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // A clean stop takes a second, and the data are temporary.
        let _ = self.stop_process(Signal::KILL);
        self.watchdog = None;
    }
}

/// Runs the command from a shell that first writes its process ID, which the command keeps, for the watchdog. So the
/// broker never runs without the watchdog.
fn under_watchdog(command: &Command, home: &Path) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "echo $$ >>\"$0\"; exec \"$@\""]).arg(home.join(REGISTERED_PROCESSES));
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

fn write(path: &Path, content: &str) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::io(format!("write {}", path.display())))
}
