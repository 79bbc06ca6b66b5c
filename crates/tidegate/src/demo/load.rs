//! Load generator: many clients on few threads, each with one query in flight.

use std::borrow::Cow;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tidegate_wire::{
    Frames,
    backend::{ERROR_RESPONSE, ErrorFields, READY_FOR_QUERY},
};

use super::environment::USER;
use super::protocol::{ROWS, Workload, write_startup};

/// Enough to keep a small machine busy without taking much CPU from the servers.
const THREADS: u32 = 2;

/// Limit of a period without any reply.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// Interval at which the stop flag is checked without replies.
const STOP_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A load.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadSpec {
    pub(super) port: u16,
    pub(super) workload: Workload,
    pub(super) clients: u32,
    pub(super) time: Duration,
}

/// Result of a load.
#[derive(Debug, Default)]
pub(super) struct LoadResult {
    /// Latency of each transaction in µs, in order of size.
    latencies: Vec<u32>,
    elapsed: Duration,
    pub(super) errors: u64,
}

impl LoadResult {
    pub(super) fn tps(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that `share` of the transactions do not exceed; 0 without transactions.
    pub(super) fn percentile_ms(&self, share: f64) -> f64 {
        let rank = (self.latencies.len() as f64 * share) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(rank.min(last)).map_or(0.0, |&us| f64::from(us) / 1e3)
    }

    /// Adds a later measurement of the same load.
    pub(super) fn append(&mut self, later: Self) {
        self.latencies.extend(later.latencies);
        self.latencies.sort_unstable();
        self.errors += later.errors;
        self.elapsed += later.elapsed;
    }

    /// Adds what another thread measured at the same time.
    fn merge(mut self, other: Self) -> Self {
        self.latencies.extend(other.latencies);
        self.errors += other.errors;
        self.elapsed = self.elapsed.max(other.elapsed);
        self
    }
}

/// Runs a load until its time is over, or until `stop`.
pub(super) fn run(load: &LoadSpec, stop: &AtomicBool) -> Result<LoadResult> {
    let threads = THREADS.min(load.clients);
    let share = |thread: u32| load.clients / threads + u32::from(thread < load.clients % threads);
    let results = thread::scope(|scope| {
        let start = |thread| scope.spawn(move || ClientThread::connect(load, share(thread))?.run(load, stop));
        let running: Vec<_> = (0..threads).map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join().expect("a load does not panic"));
        joined.collect::<Result<Vec<LoadResult>>>()
    })?;
    let mut all = results.into_iter().fold(LoadResult::default(), LoadResult::merge);
    all.latencies.sort_unstable();
    Ok(all)
}

/// The clients of one thread.
struct ClientThread {
    epoll: OwnedFd,
    clients: Vec<LoadClient>,
}

struct LoadClient {
    stream: TcpStream,
    /// Received bytes that are not a complete message yet.
    rest: Vec<u8>,
    /// The last error message.
    last_error: Option<String>,
    /// The connection is logging in; the query follows.
    is_logging_in: bool,
    /// When the transaction began, or its connect.
    began_at: Instant,
}

impl ClientThread {
    /// Connects and logs in the clients one after another, and prepares their statements.
    fn connect(load: &LoadSpec, count: u32) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("create an epoll")?;
        let mut clients = Vec::new();
        for index in 0..count {
            let client = LoadClient::connect(load)?;
            let data = EventData::new_u64(u64::from(index));
            epoll::add(&epoll, &client.stream, data, EventFlags::IN).context("watch a client")?;
            clients.push(client);
        }
        Ok(Self { epoll, clients })
    }

    fn run(mut self, load: &LoadSpec, stop: &AtomicBool) -> Result<LoadResult> {
        let (start, mut result) = (Instant::now(), LoadResult::default());
        self.clients.iter_mut().try_for_each(|client| client.send(load.workload))?;
        let mut events: Vec<Event> = Vec::with_capacity(1_024);
        let mut last_reply_at = start;
        while start.elapsed() < load.time && !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&STOP_CHECK_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for replies"),
            }
            let now = Instant::now();
            last_reply_at = if events.is_empty() { last_reply_at } else { now };
            ensure!(now - last_reply_at < REPLY_LIMIT, "no client got a reply for {} s", REPLY_LIMIT.as_secs());
            for event in &events {
                let client = usize::try_from(event.data.u64()).ok().and_then(|index| self.clients.get_mut(index));
                let client = client.context("a known client")?;
                if client.receive(load.workload, &mut result)? {
                    // Closing the old connection ends its watch.
                    *client = client.reconnect(load.port)?;
                    let data = event.data;
                    epoll::add(&self.epoll, &client.stream, data, EventFlags::IN).context("watch a client")?;
                }
            }
        }
        result.elapsed = start.elapsed();
        self.terminate();
        Ok(result)
    }

    /// Sends Terminate, so that no server sees a disconnect within a message.
    fn terminate(self) {
        let mut terminate = Vec::new();
        tidegate_wire::frontend::terminate(&mut terminate);
        for mut client in self.clients {
            // The client may be disconnected already.
            let _ = client.stream.write_all(&terminate);
        }
    }
}

impl LoadClient {
    fn connect(load: &LoadSpec) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", load.port)).context("connect a client")?;
        stream.set_nodelay(true).context("set up a client")?;
        stream.set_read_timeout(Some(REPLY_LIMIT)).context("set up a client")?;
        let mut client =
            Self { stream, rest: Vec::new(), last_error: None, is_logging_in: false, began_at: Instant::now() };
        let mut startup = Vec::new();
        write_startup(USER, &mut startup);
        client.exchange(&startup).context("log a client in")?;
        let mut prepare = Vec::new();
        load.workload.prepare(&mut prepare);
        if !prepare.is_empty() {
            client.exchange(&prepare).context("prepare a statement")?;
        }
        client.stream.set_nonblocking(true).context("set up a client")?;
        Ok(client)
    }

    /// Sends a message and waits for the end of the reply, which must not contain an error.
    fn exchange(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_all(message).context("send")?;
        let mut errors = 0;
        while !self.take_reply(&mut errors)? && self.last_error.is_none() {
            self.read()?;
        }
        match &self.last_error {
            Some(last_error) => bail!("{last_error}"),
            None => Ok(()),
        }
    }

    /// Ends the connection and opens another one. Its startup message is sent.
    fn reconnect(&mut self, port: u16) -> Result<Self> {
        let mut terminate = Vec::new();
        tidegate_wire::frontend::terminate(&mut terminate);
        // The connection ends in any case.
        let _ = self.stream.write_all(&terminate);
        let began_at = Instant::now();
        let stream = TcpStream::connect(("127.0.0.1", port)).context("connect a client")?;
        stream.set_nodelay(true).context("set up a client")?;
        stream.set_nonblocking(true).context("set up a client")?;
        let mut startup = Vec::new();
        write_startup(USER, &mut startup);
        let mut client = Self { stream, rest: Vec::new(), last_error: None, is_logging_in: true, began_at };
        client.stream.write_all(&startup).context("log a client in")?;
        Ok(client)
    }

    fn send(&mut self, workload: Workload) -> Result<()> {
        let mut message = Vec::with_capacity(128);
        workload.query(fastrand::u32(1..=ROWS), &mut message);
        if !std::mem::take(&mut self.is_logging_in) {
            self.began_at = Instant::now();
        }
        // The socket buffer is empty after a complete reply, so it accepts these hundred bytes.
        self.stream.write_all(&message).context("send a query")
    }

    /// Reads available data, and sends the next query after a complete reply. Returns whether the next transaction needs another
    /// connection.
    fn receive(&mut self, workload: Workload, result: &mut LoadResult) -> Result<bool> {
        self.read()?;
        if !self.take_reply(&mut result.errors)? {
            return Ok(false);
        }
        if !self.is_logging_in {
            let took = self.began_at.elapsed().as_micros();
            result.latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
            if workload == Workload::Connects {
                return Ok(true);
            }
        }
        self.send(workload)?;
        Ok(false)
    }

    fn read(&mut self) -> Result<()> {
        let mut chunk = [0; 4_096];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!(
                "the connection was closed{}",
                self.last_error.iter().map(|why| format!(": {why}")).collect::<String>()
            ),
            Ok(count) => self.rest.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("read a reply"),
        }
        Ok(())
    }

    /// Consumes complete messages. Returns true at ReadyForQuery.
    fn take_reply(&mut self, errors: &mut u64) -> Result<bool> {
        let mut walk = Frames::new(&self.rest);
        let mut ready = false;
        for frame in walk.by_ref() {
            let frame = frame.context("a reply in the protocol")?;
            if frame.tag == ERROR_RESPONSE {
                *errors += 1;
                let fields = ErrorFields::decode(frame.body()).context("an error in the protocol")?;
                self.last_error = fields.message().map(Cow::into_owned);
            }
            ready |= frame.tag == READY_FOR_QUERY;
        }
        let taken = self.rest.len() - walk.rest().len();
        self.rest.drain(..taken);
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::start_postgres;
    use super::*;

    #[test]
    fn percentile_of_one_value() {
        let result = LoadResult { latencies: vec![1_500], elapsed: Duration::from_secs(1), errors: 0 };
        assert_eq!((result.percentile_ms(0.0), result.percentile_ms(0.99)), (1.5, 1.5));
        assert_eq!(LoadResult::default().percentile_ms(0.5), 0.0);
    }

    #[test]
    fn every_workload_works_without_errors() {
        let postgres = start_postgres(10, "replica").unwrap();
        for workload in Workload::ALL {
            let load = LoadSpec { port: postgres.port(), workload, clients: 7, time: Duration::from_millis(200) };
            let mut result = run(&load, &AtomicBool::new(false)).unwrap();
            result.append(run(&load, &AtomicBool::new(false)).unwrap());
            assert_eq!(result.errors, 0);
            assert!(!result.latencies.is_empty());
        }
    }

    #[test]
    fn rejected_login_returns_the_server_error() {
        let postgres = tidegate_sandbox::Postgres::builder().start().unwrap();
        let load =
            LoadSpec { port: postgres.port(), workload: Workload::Connects, clients: 1, time: Duration::from_secs(1) };
        let error = run(&load, &AtomicBool::new(false)).unwrap_err();
        assert!(format!("{error:#}").contains("role \"demo\" does not exist"), "{error:#}");
    }
}
