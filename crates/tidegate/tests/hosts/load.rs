//! Clients that never stop asking, and a tally of what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate_testkit::{Frames, Lost, RawClient, Startup};

use crate::stage::{PATIENCE, eventually};

/// What a client does again and again.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// A SELECT.
    Read,
    /// An INSERT, by itself and in a transaction of several messages in turn.
    Write,
}

#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    /// Pieces of work done, by client.
    done: Vec<AtomicUsize>,
    /// Rows that were confirmed.
    rows: AtomicUsize,
    /// Failed, by SQLSTATE.
    failed: Mutex<BTreeMap<String, usize>>,
}

/// Clients at work.
pub(crate) struct Load {
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts so many clients, and waits until each has done some work.
    pub(crate) fn start(startup: &Startup, clients: usize, work: Work) -> Self {
        let done = (0..clients).map(|_| AtomicUsize::new(0)).collect();
        let tally = Arc::new(Tally { done, ..Tally::default() });
        let threads = (0..clients)
            .map(|index| {
                let (startup, tally) = (startup.clone(), tally.clone());
                std::thread::spawn(move || tally.run(&startup, index, work))
            })
            .collect();
        let load = Self { tally, threads };
        load.goes_on();
        load
    }

    /// Waits until every client has done some more.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        let done = || self.tally.done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = done();
        eventually("every client goes on", || done().iter().zip(&before).all(|(now, then)| *now >= then + 5));
    }

    /// Transactions that have ended well so far.
    pub(crate) fn done(&self) -> u64 {
        self.tally.done.iter().map(|done| done.load(Ordering::Relaxed) as u64).sum()
    }

    /// Ends it: confirmed rows, and failures by SQLSTATE.
    pub(crate) fn end(self) -> (usize, BTreeMap<String, usize>) {
        self.tally.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client of the load does not panic");
        }
        let failed = self.tally.failed.lock().expect("nobody panicked").clone();
        (self.tally.rows.load(Ordering::Relaxed), failed)
    }
}

impl Tally {
    fn run(&self, startup: &Startup, index: usize, work: Work) {
        let mut client = None;
        let mut turn = 0_u32;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            match self.once(&mut client, startup, work, turn) {
                Ok(()) => drop(self.done[index].fetch_add(1, Ordering::Relaxed)),
                Err(code) => {
                    *self.failed.lock().expect("nobody panicked").entry(code).or_default() += 1;
                    client = None;
                }
            }
        }
    }

    fn once(&self, held: &mut Option<RawClient>, startup: &Startup, work: Work, turn: u32) -> Result<(), String> {
        let client = match held {
            Some(client) => client,
            None => {
                let mut client = startup.try_open().map_err(|lost| code_of(&lost))?;
                client.set_patience(PATIENCE);
                client.try_send(&startup.packet()).map_err(|lost| code_of(&lost))?;
                client.log_in(None).map_err(|lost| code_of(&lost))?;
                held.insert(client)
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
    client.try_send(Frames::new().query(statement).bytes()).map_err(|lost| code_of(&lost))?;
    let mut failed = None;
    loop {
        match client.try_recv() {
            Ok(message) if message.tag == b'E' => failed = Some(message.error().code),
            Ok(message) if message.tag == b'Z' => return failed.map_or(Ok(()), Err),
            Ok(_) => {}
            // The last words tell more than the end.
            Err(lost) => return Err(failed.unwrap_or_else(|| code_of(&lost))),
        }
    }
}

fn code_of(lost: &Lost) -> String {
    match lost {
        Lost::Refused(fields) => fields.code.clone(),
        other => format!("{other}"),
    }
}
