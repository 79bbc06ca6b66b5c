//! Many clients on few threads: each sends a query, reads to the end of the reply, and sends the next.

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

use super::protocol::{Protocol, ROWS, log_in};
use super::stage::USER;

/// Enough to keep a small machine busy, and few enough to leave it to those who are measured.
const THREADS: u32 = 2;

/// Longer silence than this of all clients together means that something hangs.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// How often the stop flag is looked at when nothing arrives.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What is sent where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) clients: u32,
    pub(super) time: Duration,
}

/// What came back.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of each transaction in µs; sorted in the end.
    latencies: Vec<u32>,
    elapsed: Duration,
    pub(super) errors: u64,
}

impl Outcome {
    pub(super) fn tps(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that `share` of the transactions do not exceed; 0 if there were none.
    pub(super) fn percentile_ms(&self, share: f64) -> f64 {
        let rank = (self.latencies.len() as f64 * share) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(rank.min(last)).map_or(0.0, |&us| f64::from(us) / 1e3)
    }

    fn merge(mut self, other: Self) -> Self {
        self.latencies.extend(other.latencies);
        self.errors += other.errors;
        self.elapsed = self.elapsed.max(other.elapsed);
        self
    }
}

/// Runs a load to the end of its time, or until `stop`.
pub(super) fn run(load: &Load, stop: &AtomicBool) -> Result<Outcome> {
    let threads = THREADS.min(load.clients);
    let share = |thread: u32| load.clients / threads + u32::from(thread < load.clients % threads);
    let outcomes = thread::scope(|scope| {
        let start = |thread| scope.spawn(move || Crowd::connect(load, share(thread))?.run(load, stop));
        let running: Vec<_> = (0..threads).map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join().expect("a load does not panic"));
        joined.collect::<Result<Vec<Outcome>>>()
    })?;
    let mut all = outcomes.into_iter().fold(Outcome::default(), Outcome::merge);
    all.latencies.sort_unstable();
    Ok(all)
}

/// The clients of one thread.
struct Crowd {
    epoll: OwnedFd,
    clients: Vec<Client>,
}

struct Client {
    stream: TcpStream,
    /// Of a reply, what has arrived and is not a whole message.
    rest: Vec<u8>,
    /// The last error message.
    complaint: Option<String>,
    sent_at: Instant,
}

impl Crowd {
    /// Connects and logs in one after another, and prepares.
    fn connect(load: &Load, count: u32) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("create an epoll")?;
        let mut clients = Vec::new();
        for index in 0..count {
            let client = Client::connect(load)?;
            let data = EventData::new_u64(u64::from(index));
            epoll::add(&epoll, &client.stream, data, EventFlags::IN).context("watch a client")?;
            clients.push(client);
        }
        Ok(Self { epoll, clients })
    }

    fn run(mut self, load: &Load, stop: &AtomicBool) -> Result<Outcome> {
        let (start, mut outcome) = (Instant::now(), Outcome::default());
        self.clients.iter_mut().try_for_each(|client| client.send(load.protocol))?;
        let mut events: Vec<Event> = Vec::with_capacity(1_024);
        let mut heard_at = start;
        while start.elapsed() < load.time && !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for replies"),
            }
            let now = Instant::now();
            heard_at = if events.is_empty() { heard_at } else { now };
            ensure!(now - heard_at < SILENCE_MAX, "no client got a reply for {} s", SILENCE_MAX.as_secs());
            for event in &events {
                let client = usize::try_from(event.data.u64()).ok().and_then(|index| self.clients.get_mut(index));
                client.context("an event of a client of ours")?.receive(load.protocol, &mut outcome)?;
            }
        }
        outcome.elapsed = start.elapsed();
        self.leave();
        Ok(outcome)
    }

    /// Says good-bye, so that no server finds its client gone in the middle of a message.
    fn leave(self) {
        let mut terminate = Vec::new();
        tidegate_wire::frontend::terminate(&mut terminate);
        for mut client in self.clients {
            // Whoever is gone needs no good-bye.
            let _ = client.stream.write_all(&terminate);
        }
    }
}

impl Client {
    fn connect(load: &Load) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", load.port)).context("connect a client")?;
        stream.set_nodelay(true).context("set up a client")?;
        stream.set_read_timeout(Some(SILENCE_MAX)).context("set up a client")?;
        let mut client = Self { stream, rest: Vec::new(), complaint: None, sent_at: Instant::now() };
        let mut hello = Vec::new();
        log_in(USER, &mut hello);
        client.converse(&hello).context("log a client in")?;
        let mut prepare = Vec::new();
        load.protocol.prepare(&mut prepare);
        if !prepare.is_empty() {
            client.converse(&prepare).context("prepare a statement")?;
        }
        client.stream.set_nonblocking(true).context("set up a client")?;
        Ok(client)
    }

    /// Sends and waits for the end of the reply, which must hold no error.
    fn converse(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_all(message).context("send")?;
        let mut errors = 0;
        while !self.take_reply(&mut errors)? && self.complaint.is_none() {
            self.read()?;
        }
        match &self.complaint {
            Some(complaint) => bail!("{complaint}"),
            None => Ok(()),
        }
    }

    fn send(&mut self, protocol: Protocol) -> Result<()> {
        let mut message = Vec::with_capacity(128);
        protocol.query(fastrand::u32(1..=ROWS), &mut message);
        self.sent_at = Instant::now();
        // A hundred bytes after a reply that was read to its end: the socket takes them at once.
        self.stream.write_all(&message).context("send a query")
    }

    /// Reads what is there; after the end of a reply comes the next query.
    fn receive(&mut self, protocol: Protocol, outcome: &mut Outcome) -> Result<()> {
        self.read()?;
        if self.take_reply(&mut outcome.errors)? {
            let took = self.sent_at.elapsed().as_micros();
            outcome.latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
            self.send(protocol)?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut chunk = [0; 4_096];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!(
                "the connection was closed{}",
                self.complaint.iter().map(|why| format!(": {why}")).collect::<String>()
            ),
            Ok(count) => self.rest.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("read a reply"),
        }
        Ok(())
    }

    /// Takes whole messages from what has arrived; true at ReadyForQuery.
    fn take_reply(&mut self, errors: &mut u64) -> Result<bool> {
        let mut walk = Frames::new(&self.rest);
        let mut ready = false;
        for frame in walk.by_ref() {
            let frame = frame.context("a reply in the protocol")?;
            if frame.tag == ERROR_RESPONSE {
                *errors += 1;
                let fields = ErrorFields::decode(frame.body()).context("an error in the protocol")?;
                self.complaint = fields.message().map(Cow::into_owned);
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
    use super::super::stage::start_postgres;
    use super::*;

    #[test]
    fn the_percentile_of_one_is_that_one() {
        let outcome = Outcome { latencies: vec![1_500], elapsed: Duration::from_secs(1), errors: 0 };
        assert_eq!((outcome.percentile_ms(0.0), outcome.percentile_ms(0.99)), (1.5, 1.5));
        assert_eq!(Outcome::default().percentile_ms(0.5), 0.0);
    }

    #[test]
    fn every_protocol_is_served_without_an_error() {
        let postgres = start_postgres(10).unwrap();
        for protocol in Protocol::ALL {
            let load = Load { port: postgres.port(), protocol, clients: 7, time: Duration::from_millis(100) };
            let outcome = run(&load, &AtomicBool::new(false)).unwrap();
            assert_eq!(outcome.errors, 0);
            assert!(!outcome.latencies.is_empty());
        }
    }

    #[test]
    fn a_refused_login_is_told_in_the_words_of_the_server() {
        let postgres = tidegate_sandbox::Postgres::builder().start().unwrap();
        let load = Load { port: postgres.port(), protocol: Protocol::Simple, clients: 1, time: Duration::from_secs(1) };
        let error = run(&load, &AtomicBool::new(false)).unwrap_err();
        assert!(format!("{error:#}").contains("role \"demo\" does not exist"), "{error:#}");
    }
}
