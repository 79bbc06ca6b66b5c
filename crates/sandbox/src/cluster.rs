//! A primary with streaming replicas: promoted, stopped, killed, suspended and held back as a test wants.
//!
//! The replicas are made of the primary's data as `initdb` leaves it, which is that of a server that was shut down: so
//! they need no base backup, and all servers of a cluster are there in little more than the time of one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::account::{Account, give};
use crate::builder::write;
use crate::process::POLL;
use crate::{Builder, Error, Postgres};

/// A replica on a busy machine may need a while.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// One primary and its replicas. Dropping it ends all of them.
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
    /// As [`Builder::start`].
    pub fn start(builder: &Builder, replicas: usize) -> Result<Self, Error> {
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

    /// The server that takes writes, unless it was stopped.
    pub fn primary(&self) -> &Postgres {
        &self.servers[self.primary]
    }

    /// The number of the primary.
    #[must_use]
    pub fn primary_index(&self) -> usize {
        self.primary
    }

    /// A server by its number; 0 is the first primary.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn server(&self, index: usize) -> &Postgres {
        &self.servers[index]
    }

    /// The same, to be stopped, killed or restarted.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn server_mut(&mut self, index: usize) -> &mut Postgres {
        &mut self.servers[index]
    }

    /// All of them, in order.
    pub fn servers(&self) -> impl Iterator<Item = &Postgres> {
        self.servers.iter()
    }

    /// Makes a replica the primary, and waits until it is. The one before is left alone: a test that does not stop it
    /// first gets two.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn promote(&mut self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_promote(true, 60)")?;
        self.primary = index;
        Ok(())
    }

    /// Lets a server stream from the primary, also one that was primary and is stopped; it is started again then.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn follow(&mut self, index: usize) -> Result<(), Error> {
        let data = self.servers[index].data_dir();
        follow(&data, self.servers[index].account(), self.primary())?;
        if self.servers[index].pid() == 0 {
            return self.servers[index].restart();
        }
        self.servers[index].reload();
        Ok(())
    }

    /// Waits until a replica has replayed what the primary has written up to now.
    ///
    /// # Errors
    /// When it does not get so far, or cannot be asked.
    pub fn catch_up(&self, index: usize) -> Result<(), Error> {
        // Commits are not waited for (`synchronous_commit = off`): this one, which has to write something for that, takes
        // all before it along.
        let write = "SELECT pg_logical_emit_message(true, 'sandbox', '')";
        self.primary().simple_query(&format!("BEGIN; SET LOCAL synchronous_commit = local; {write}; COMMIT"))?;
        let rows = self.primary().simple_query("SELECT pg_current_wal_lsn()")?;
        let place = rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{place}', false)");
        let deadline = Instant::now() + CATCH_UP_LIMIT;
        loop {
            let rows = self.servers[index].simple_query(&sql)?;
            if rows.first().and_then(|row| row.first()?.clone()).as_deref() == Some("t") {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let reason = format!("it does not get as far as {place}");
                return Err(Error::Start { reason, log: self.servers[index].log() });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Keeps a replica where it is: it receives what the primary writes, and does not replay it.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn hold_replay(&self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_wal_replay_pause()").map(drop)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// As [`Postgres::simple_query`].
    pub fn release_replay(&self, index: usize) -> Result<(), Error> {
        self.servers[index].simple_query("SELECT pg_wal_replay_resume()").map(drop)
    }
}

/// Tells a server from whom to stream, now or at its next start.
fn follow(data: &Path, account: Option<Account>, primary: &Postgres) -> Result<(), Error> {
    let (dir, port) = (primary.socket_dir().display(), primary.port());
    let line = format!("primary_conninfo = 'host={dir} port={port} user=postgres'\n");
    write(&data.join("primary.conf"), &line, account)?;
    write(&data.join("standby.signal"), "", account)
}

/// Copies a data directory whose server does not run.
pub(crate) fn copy(from: &Path, to: &Path, account: Option<Account>) -> Result<(), Error> {
    fs::create_dir(to).map_err(Error::path("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::path("read", from))? {
        let path = entry.map_err(Error::path("read", from))?.path();
        let Some(name) = path.file_name() else { continue };
        let place = to.join(name);
        if path.is_dir() {
            copy(&path, &place, account)?;
        } else {
            fs::copy(&path, &place).map_err(Error::path("copy", &path))?;
            give(&place, account, 0o600)?;
        }
    }
    give(to, account, 0o700)
}
