//! The running broker: how it is started, stopped, killed, suspended and brought back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;
use tempfile::TempDir;

use super::jars::Jars;
use super::properties::Ports;
use super::{Error, java, properties};
use crate::guard::{ADOPTED, Guard};
use crate::port::free_port;
use crate::process::{POLL, Process};

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Another process may take a port between the look and the bind.
const PORT_TRIES: u32 = 5;

/// A Kafka of one's own. Dropping it ends the broker and removes its folder.
#[derive(Debug)]
#[must_use = "dropping it ends the broker"]
pub struct Broker {
    // Declared in the order of the clean-up: the guard goes home first, the folder is removed last.
    guard: Option<Guard>,
    process: Option<Process>,
    java: Java,
    ports: Ports,
    home: TempDir,
}

/// The programs of Kafka, and how they are run.
#[derive(Clone, Debug)]
struct Java {
    program: PathBuf,
    jars: Jars,
    heap_mib: u32,
    compiler: Compiler,
}

/// How thoroughly the machine code is made.
#[derive(Clone, Copy, Debug)]
enum Compiler {
    /// A start takes two thirds of the processor time.
    Quick,
    Thorough,
}

/// Describes a broker; [`Builder::start`] makes it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    settings: Vec<(String, String)>,
    heap_mib: u32,
    compiler: Compiler,
    /// Key and certificates, as texts.
    keystore: Option<String>,
    /// A name and a password.
    user: Option<(String, String)>,
}

impl Builder {
    /// A listener over TLS besides ([`Broker::tls_bootstrap`]), with a certificate (and those above it) and its key, both
    /// in PEM, the key as PKCS #8.
    pub fn tls(mut self, certificates: &str, key: &str) -> Self {
        self.keystore = Some(format!("{}\n{}\n", key.trim_end(), certificates.trim_end()));
        self
    }

    /// A listener besides ([`Broker::login_bootstrap`]) at which this user logs in by SCRAM-SHA-256, over TLS if there is
    /// a certificate. Name and password are letters and digits.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.user = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// A line of `server.properties`; of several for one name the last counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The heap at most, in MiB; 512 unless told.
    pub fn heap_mib(mut self, heap_mib: u32) -> Self {
        self.heap_mib = heap_mib;
        self
    }

    /// Lets the broker become as fast as it can, at the price of a slower start: for a bench.
    pub fn long_lived(mut self) -> Self {
        self.compiler = Compiler::Thorough;
        self
    }

    /// Makes the broker and waits until it answers: three seconds, and once the time to fetch the jars.
    ///
    /// # Errors
    /// Everything in [`Error`]; a half-made sandbox is cleaned up.
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
            let guard = Some(Guard::watch(home.path())?);
            let mut broker = Broker { guard, process: None, java: java.clone(), ports, home };
            match broker.launch() {
                Err(Error::Start { log, .. }) if attempt < PORT_TRIES && log.contains("Address already in use") => {}
                started => return started.map(|()| broker),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn ports(&self) -> Result<Ports, Error> {
        let if_wanted = |is_wanted: bool| is_wanted.then(free_port).transpose();
        Ok(Ports {
            plain: free_port()?,
            controller: free_port()?,
            tls: if_wanted(self.keystore.is_some())?,
            login: if_wanted(self.user.is_some())?,
        })
    }
}

impl Java {
    /// A command that runs a class of Kafka's with what is in `home`.
    fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-Xmx{}m", self.heap_mib))
            // Without UsePerfData no file is left in the folder for temporary files.
            .args(["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"])
            .arg(format!("-Djava.io.tmpdir={}", home.display()))
            .arg(format!("-Dlog4j2.configurationFile={}", home.join("log4j2.properties").display()))
            .args(matches!(self.compiler, Compiler::Quick).then_some("-XX:TieredStopAtLevel=1"))
            .arg("-cp")
            .arg(self.jars.class_path());
        command
    }

    /// Of the broker itself.
    fn broker(&self, home: &Path) -> Command {
        let mut command = self.command(home);
        command.arg("kafka.Kafka").arg(home.join("server.properties"));
        command
    }

    /// Makes the folder of the data. Users are known from the first moment on.
    fn format(&self, home: &Path, user: Option<&(String, String)>) -> Result<(), Error> {
        let scram = |(name, password): &(String, String)| {
            format!("{}=[name={name},password={password}]", properties::MECHANISM)
        };
        let run = self
            .command(home)
            // Sixteen bytes in base64: the name of a cluster that meets no other.
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
    /// Describes a broker before it is made.
    pub fn builder() -> Builder {
        Builder { settings: Vec::new(), heap_mib: 512, compiler: Compiler::Quick, keystore: None, user: None }
    }

    /// The one that all tests of a process share; it is made by whoever asks first, and ends with the process. Tests
    /// keep apart by the names of their topics and groups.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().start().unwrap_or_else(|error| panic!("{error}")))
    }

    /// For `bootstrap.servers`: `127.0.0.1:PORT`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// The same, of the listener over TLS, if there is one.
    #[must_use]
    pub fn tls_bootstrap(&self) -> Option<String> {
        self.ports.tls.map(|port| format!("127.0.0.1:{port}"))
    }

    /// The same, of the listener for logins, if there is one.
    #[must_use]
    pub fn login_bootstrap(&self) -> Option<String> {
        self.ports.login.map(|port| format!("127.0.0.1:{port}"))
    }

    /// Its process; 0 while it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Its folder: `data/`, `log`, `server.properties`.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Its log so far: warnings and errors.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Ends the broker in order (SIGTERM) and removes its folder.
    ///
    /// # Errors
    /// [`Error::Stop`] when it does not end.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end(Signal::TERM)
    }

    /// Ends the broker as a crash would. [`Self::restart`] brings it back.
    ///
    /// # Errors
    /// [`Error::Stop`] when it does not end.
    pub fn kill9(&mut self) -> Result<(), Error> {
        self.end(Signal::KILL)
    }

    /// Ends the broker and starts it again on the same port and data. Also after [`Self::kill9`].
    ///
    /// # Errors
    /// [`Error::Stop`] or [`Error::Start`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.end(Signal::TERM)?;
        self.launch()
    }

    /// Stops it where it is (SIGSTOP): connections stay open, nothing answers.
    pub fn suspend(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::STOP));
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::CONT));
    }

    fn launch(&mut self) -> Result<(), Error> {
        let written = self.log().len();
        let command = self.java.broker(self.home.path());
        let mut process = Process::spawn(under_guard(&command, self.home.path()), &self.log_path())?;
        let deadline = Instant::now() + START_LIMIT;
        while !self.answers() {
            let ended = process.has_ended();
            if ended || Instant::now() >= deadline {
                process.signal(Signal::KILL);
                let _ = process.wait(STOP_LIMIT);
                let reason = if ended { "it ended" } else { "no answer in time" }.to_owned();
                return Err(Error::Start { reason, log: self.log().split_off(written) });
            }
            std::thread::sleep(10 * POLL);
        }
        self.process = Some(process);
        Ok(())
    }

    /// It listens only when it is done with everything else, and then it knows itself.
    fn answers(&self) -> bool {
        let listens = || std::net::TcpStream::connect(("127.0.0.1", self.ports.plain)).is_ok();
        let knows_itself = || {
            let asking: BaseConsumer =
                self.client_config().set_log_level(rdkafka::config::RDKafkaLogLevel::Emerg).create().ok()?;
            let metadata = asking.fetch_metadata(None, Duration::from_secs(5)).ok()?;
            (!metadata.brokers().is_empty()).then_some(())
        };
        listens() && knows_itself().is_some()
    }

    /// Asks with `signal`, then insists.
    fn end(&mut self, signal: Signal) -> Result<(), Error> {
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
        // Nothing here is worth an orderly end, which takes a second.
        let _ = self.end(Signal::KILL);
        self.guard = None;
    }
}

/// The command, run by a shell that first leaves its process id, which stays the same, for the guard. So there is no
/// moment in which the broker runs and the guard does not know of it.
fn under_guard(command: &Command, home: &Path) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "echo $$ >>\"$0\"; exec \"$@\""]).arg(home.join(ADOPTED));
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

fn write(path: &Path, content: &str) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::io(format!("write {}", path.display())))
}
