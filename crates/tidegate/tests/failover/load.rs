//! Clients under constant load, and counters of their results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate_testkit::{ClientError, Frames, RawClient, Startup};

use crate::cluster::{TIMEOUT, eventually};

/// The statements that a client repeats.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// A SELECT.
    Read,
    /// An INSERT, alternately alone and in a transaction of several messages.
    Write,
}

#[derive(Default)]
struct Counters {
    stop: AtomicBool,
    /// Successful transactions by client.
    done: Vec<AtomicUsize>,
    /// Confirmed rows.
    rows: AtomicUsize,
    /// Failures by SQLSTATE.
    failed: Mutex<BTreeMap<String, usize>>,
}

/// Running clients.
pub(crate) struct Load {
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the clients, and waits until each has finished some transactions.
    pub(crate) fn start(startup: &Startup, clients: usize, work: Work) -> Self {
        let done = (0..clients).map(|_| AtomicUsize::new(0)).collect();
        let counters = Arc::new(Counters { done, ..Counters::default() });
        let threads = (0..clients)
            .map(|index| {
                let (startup, counters) = (startup.clone(), counters.clone());
                std::thread::spawn(move || counters.run(&startup, index, work))
            })
            .collect();
        let load = Self { counters, threads };
        load.wait_for_progress();
        load
    }

    /// Waits until every client has finished some more transactions.
    #[track_caller]
    pub(crate) fn wait_for_progress(&self) {
        let done = || self.counters.done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = done();
        eventually("every client makes progress", || done().iter().zip(&before).all(|(now, then)| *now >= then + 5));
    }

    /// The number of successful transactions so far.
    pub(crate) fn done(&self) -> u64 {
        self.counters.done.iter().map(|done| done.load(Ordering::Relaxed) as u64).sum()
    }

    /// Stops the clients. Returns the number of confirmed rows, and the failures by SQLSTATE.
    pub(crate) fn end(self) -> (usize, BTreeMap<String, usize>) {
        self.counters.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client of the load does not panic");
        }
        let failed = self.counters.failed.lock().expect("no client panicked").clone();
        (self.counters.rows.load(Ordering::Relaxed), failed)
    }
}

impl Counters {
    fn run(&self, startup: &Startup, index: usize, work: Work) {
        let mut client = None;
        let mut turn = 0_u32;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            match self.once(&mut client, startup, work, turn) {
                Ok(()) => drop(self.done[index].fetch_add(1, Ordering::Relaxed)),
                Err(code) => {
                    *self.failed.lock().expect("no client panicked").entry(code).or_default() += 1;
                    client = None;
                }
            }
        }
    }

    fn once(&self, connection: &mut Option<RawClient>, startup: &Startup, work: Work, turn: u32) -> Result<(), String> {
        let client = match connection {
            Some(client) => client,
            None => {
                let mut client = startup.try_open().map_err(|error| code_of(&error))?;
                client.set_timeout(TIMEOUT);
                client.try_send(&startup.packet()).map_err(|error| code_of(&error))?;
                client.log_in(None).map_err(|error| code_of(&error))?;
                connection.insert(client)
            }
        };
        match work {
            Work::Read => run(client, "select 1"),
            Work::Write if turn.is_multiple_of(2) => {
                run(client, "insert into t (v) values ('alone')")?;
                self.rows.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Work::Write => {
                for statement in ["begin", "insert into t (v) values ('one of')", "commit"] {
                    run(client, statement)?;
                }
                self.rows.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

fn run(client: &mut RawClient, statement: &str) -> Result<(), String> {
    client.try_send(Frames::new().query(statement).bytes()).map_err(|error| code_of(&error))?;
    let mut failed = None;
    loop {
        match client.try_recv() {
            Ok(message) if message.tag == b'E' => failed = Some(message.error().code),
            Ok(message) if message.tag == b'Z' => return failed.map_or(Ok(()), Err),
            Ok(_) => {}
            // The ErrorResponse before the end has the reason.
            Err(error) => return Err(failed.unwrap_or_else(|| code_of(&error))),
        }
    }
}

fn code_of(error: &ClientError) -> String {
    match error {
        ClientError::Refused(fields) => fields.code.clone(),
        other => format!("{other}"),
    }
}
