//! A primary with streaming replicas that tests can promote, stop, kill, suspend and delay.
//!
//! The replicas are copies of the primary's data directory after `initdb`, which is that of a server after a clean
//! shutdown. So they need no base backup, and a cluster starts in little more than the time of one server.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::data_dir::write;
use crate::process::POLL;
use crate::{Error, Postgres, PostgresBuilder};

/// A replica on a busy machine may need some time.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// A primary and its replicas. Dropping it stops all of them.
#[derive(Debug)]
#[must_use = "dropping it ends the servers"]
pub struct Cluster {
    servers: Vec<Postgres>,
    primary: usize,
}

impl Cluster {
    /// Starts a primary and `replicas` replicas that stream from it.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn start(builder: &PostgresBuilder, replicas: usize) -> Result<Self, Error> {
        let (mut prepared, copies) = builder.prepare(replicas)?;
        let mut servers = vec![prepared.launch()?];
        for mut copy in copies {
            follow(&copy.data_dir(), copy.account, &servers[0])?;
            servers.push(copy.launch()?);
        }
        let cluster = Self { servers, primary: 0 };
        (1..=replicas).try_for_each(|index| cluster.catch_up(index))?;
        Ok(cluster)
    }

    /// The primary, even after it was stopped.
    pub fn primary(&self) -> &Postgres {
        &self.servers[self.primary]
    }

    /// Index of the primary.
    #[must_use]
    pub fn primary_index(&self) -> usize {
        self.primary
    }

    /// A server by its index; 0 is the first primary.
    ///
    /// # Panics
    /// Panics if there is no such server.
    pub fn server(&self, index: usize) -> &Postgres {
        &self.servers[index]
    }

    /// A server by its index, to be stopped, killed or restarted.
    ///
    /// # Panics
    /// Panics if there is no such server.
    pub fn server_mut(&mut self, index: usize) -> &mut Postgres {
        &mut self.servers[index]
    }

    /// All servers in the order of their indexes.
    pub fn servers(&self) -> impl Iterator<Item = &Postgres> {
        self.servers.iter()
    }

    /// Promotes a replica, and waits for the promotion. The old primary keeps running: without stopping it first, there
    /// are two.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn promote(&mut self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_promote(true, 60)")?;
        self.primary = index;
        Ok(())
    }

    /// Makes a server stream from the primary. A stopped server, such as the old primary, is started again.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn follow(&mut self, index: usize) -> Result<(), Error> {
        let data = self.servers[index].data_dir();
        follow(&data, self.servers[index].account(), self.primary())?;
        if self.servers[index].pid() == 0 {
            return self.servers[index].restart();
        }
        self.servers[index].reload();
        Ok(())
    }

    /// Waits until a replica has replayed everything that the primary has written so far.
    ///
    /// # Errors
    /// The replica does not catch up, or cannot be queried.
    pub fn catch_up(&self, index: usize) -> Result<(), Error> {
        // Commits are asynchronous (`synchronous_commit = off`). This commit is local and writes a record, so it
        // flushes all earlier ones.
        let write = "SELECT pg_logical_emit_message(true, 'sandbox', '')";
        self.primary().simple_query(&format!("BEGIN; SET LOCAL synchronous_commit = local; {write}; COMMIT"))?;
        let rows = self.primary().simple_query("SELECT pg_current_wal_lsn()")?;
        let lsn = rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{lsn}', false)");
        let deadline = Instant::now() + CATCH_UP_TIMEOUT;
        loop {
            let rows = self.servers[index].simple_query(&sql)?;
            if rows.first().and_then(|row| row.first()?.clone()).as_deref() == Some("t") {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let reason = format!("it does not replay up to {lsn}");
                return Err(Error::Start { reason, log: self.servers[index].log() });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Pauses the replay of a replica; it continues to receive WAL.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn pause_replay(&self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_wal_replay_pause()").map(drop)
    }

    /// Resumes the replay of a replica.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn resume_replay(&self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_wal_replay_resume()").map(drop)
    }
}

/// Configures the primary of a server, for now or for its next start.
fn follow(data: &Path, account: Option<Account>, primary: &Postgres) -> Result<(), Error> {
    let (dir, port) = (primary.socket_dir().display(), primary.port());
    let line = format!("primary_conninfo = 'host={dir} port={port} user=postgres dbname=postgres'\n");
    write(&data.join("primary.conf"), &line, account)?;
    write(&data.join("standby.signal"), "", account)
}
