//! Derives roles, lag and usability of the servers of a cluster from probe reports.
//!
//! Pure: reports and the time are arguments.
//!
//! Two servers of one system (one `initdb`) that both report to be primary are a split brain. The server with the higher timeline
//! is believed, because a promotion starts a new timeline; with equal timelines, the previous primary is believed. A server with
//! a lower timeline than the highest known one is never believed, even while there is no other primary or while it does not
//! answer: a promotion has left it behind. Two addresses of one server are not a split brain.
//!
//! Servers of different systems are independent: each [`SystemState`] has its own primary and timelines. Routes that take any
//! server use all of them. Writes go to one system, and to another one only while the first has no primary.
//!
//! Time lag is measured by the local clock: the time since the primary was first seen beyond the position of the replica. An idle
//! primary therefore causes no lag, and clocks of servers do not matter.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::observation::{Observation, ProbeReport, ServerOrigin};

/// Role of a server in its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostRole {
    /// Not reported yet.
    #[default]
    Unknown,
    /// Accepts writes.
    Primary,
    /// Replays the WAL of another server.
    Replica,
}

/// State of a server; decides whether it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostState {
    /// Not reported yet.
    #[default]
    New,
    /// Answers probes.
    Up,
    /// A replica that lags too far behind.
    Lagging,
    /// Does not answer in time; used only if there is no other server.
    Silent,
    /// Rejects connections: it starts, stops or recovers.
    Closed,
    /// Reports to be primary, but another server is.
    Deposed,
    /// Unreachable.
    Down,
}

impl HostRole {
    /// Name in tables and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

impl HostState {
    /// Name in tables and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Up => "up",
            Self::Lagging => "lagging",
            Self::Silent => "silent",
            Self::Closed => "closed",
            Self::Deposed => "deposed",
            Self::Down => "down",
        }
    }
}

/// Known facts about one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// Role in the last report.
    pub role: HostRole,
    /// State of the server.
    pub state: HostState,
    /// WAL bytes between the primary and this replica, once a primary was seen.
    pub lag_bytes: Option<u64>,
    /// Time lag of this replica.
    pub lag: Option<Duration>,
    /// The last error; `None` once the server answers.
    pub error: Option<String>,
}

/// Limits of the lag of replicas; zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LagLimits {
    /// WAL bytes.
    pub lag_bytes_max: u64,
    /// Time.
    pub lag_max: Duration,
}

/// Usable servers by purpose. Names and their order are those of [`Topology::set_hosts`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRouting {
    /// The server for writes.
    pub primary: Option<Arc<str>>,
    /// The servers for reads from replicas.
    pub replicas: Vec<Arc<str>>,
    /// The servers for anything that every server can do.
    pub any: Vec<Arc<str>>,
    /// Servers whose connections have to be closed.
    pub unusable: BTreeSet<Arc<str>>,
    /// Servers that report to be primary and are not believed.
    pub deposed: BTreeSet<Arc<str>>,
    /// Primaries of other systems than the one for writes.
    pub unrelated: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct HostEntry {
    name: Arc<str>,
    seen: Option<Observation>,
    reachability: Reachability,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reachability {
    #[default]
    Never,
    Yes,
    /// Consecutive probes without an answer.
    Silent(u32),
    Closed,
    Down,
}

/// Consecutive missing answers that make a server silent; one slow answer means little.
const SILENT_AFTER: u32 = 2;

impl Reachability {
    /// State after a missing answer. Only a server that has answered before gets a second chance.
    const fn after_silence(self) -> Self {
        match self {
            Self::Never | Self::Yes => Self::Silent(1),
            Self::Silent(times) => Self::Silent(times.saturating_add(1)),
            Self::Closed | Self::Down => Self::Silent(SILENT_AFTER),
        }
    }
}

impl HostEntry {
    fn role(&self) -> HostRole {
        match self.seen {
            None => HostRole::Unknown,
            Some(seen) if seen.in_recovery => HostRole::Replica,
            Some(_) => HostRole::Primary,
        }
    }

    fn answers(&self) -> bool {
        match self.reachability {
            Reachability::Yes => true,
            Reachability::Silent(times) => times < SILENT_AFTER,
            _ => false,
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self.reachability, Reachability::Silent(times) if times >= SILENT_AFTER)
    }

    /// The last observation, if the server reported to be primary in it.
    fn claimed_primary(&self) -> Option<Observation> {
        self.seen.filter(|seen| !seen.in_recovery)
    }

    /// The last observation of a primary that still answers.
    fn claims_primary(&self) -> Option<Observation> {
        self.claimed_primary().filter(|_| self.answers())
    }
}

/// State of the servers of one system (one `initdb`), which replicate or have replicated from each other.
#[derive(Debug, Default)]
struct SystemState {
    /// The believed primary.
    primary: Option<Arc<str>>,
    /// Highest timeline of any believed primary.
    timeline: u32,
    wal: WalHistory,
}

/// Known facts about all servers of a cluster.
#[derive(Debug, Default)]
pub struct Topology {
    rules: LagLimits,
    hosts: Vec<HostEntry>,
    /// Key: the system identifier; 0 if it is not known for every server.
    systems: BTreeMap<i64, SystemState>,
    /// An answer lacked the identifier, so servers cannot be distinguished by it.
    lacks_identifiers: bool,
    /// Identifier of the system for writes.
    write_system: Option<i64>,
}

impl Topology {
    /// Creates a topology without servers.
    #[must_use]
    pub fn new(rules: LagLimits) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Replaces the list of servers. Facts about remaining servers are kept.
    pub fn set_hosts(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        let mut before = std::mem::take(&mut self.hosts);
        for name in names {
            let known = before.iter().position(|entry| entry.name == name).map(|at| before.swap_remove(at));
            self.hosts.push(known.unwrap_or_else(|| HostEntry { name, ..HostEntry::default() }));
        }
        self.elect();
    }

    /// Records the result of a probe.
    pub fn on_report(&mut self, name: &str, report: ProbeReport, now: Instant) {
        let Some(entry) = self.hosts.iter_mut().find(|entry| *entry.name == *name) else { return };
        (entry.reachability, entry.error) = match report {
            ProbeReport::Answer(seen) => {
                entry.seen = Some(seen);
                (Reachability::Yes, None)
            }
            ProbeReport::Silent => (entry.reachability.after_silence(), Some("no answer in time".to_owned())),
            ProbeReport::NotSent(error) => (entry.reachability, Some(error)),
            ProbeReport::Closed(error) => (Reachability::Closed, Some(error)),
            ProbeReport::Refused(error) => (Reachability::Yes, Some(error)),
            ProbeReport::Down(error) => (Reachability::Down, Some(error)),
        };
        let answered = entry.seen.filter(|_| entry.reachability == Reachability::Yes);
        self.lacks_identifiers |= answered.is_some_and(|seen| seen.origin.system == 0);
        let Some(seen) = answered else { return self.elect() };
        let id = self.system_of(&seen);
        self.systems.entry(id).or_default();
        self.elect();
        if let Some(system) = self.systems.get_mut(&id).filter(|system| system.primary.as_deref() == Some(name)) {
            system.wal.record(seen.lsn, now);
        }
    }

    fn system_of(&self, seen: &Observation) -> i64 {
        if self.lacks_identifiers { 0 } else { seen.origin.system }
    }

    fn system(&self, seen: &Observation) -> Option<&SystemState> {
        self.systems.get(&self.system_of(seen))
    }

    fn primary(&self) -> Option<&Arc<str>> {
        self.systems.get(&self.write_system?)?.primary.as_ref()
    }

    /// Determines the primary of each system and the system for writes.
    fn elect(&mut self) {
        let mut systems = std::mem::take(&mut self.systems);
        for (id, system) in &mut systems {
            let claims_primary: Vec<(&HostEntry, u32)> = self.primary_claims(*id).collect();
            let highest = claims_primary.iter().map(|(_, timeline)| *timeline).max().unwrap_or(0).max(system.timeline);
            let newest =
                claims_primary.iter().filter(|(_, timeline)| *timeline == highest).map(|(entry, _)| &entry.name);
            let first = newest.clone().next().cloned();
            let same = newest.clone().find(|name| Some(*name) == system.primary.as_ref()).cloned();
            (system.primary, system.timeline) = (same.or(first), highest);
        }
        self.systems = systems;
        // Writes stay in their system while it has a primary.
        if self.primary().is_none() {
            let with_primary = |entry: &HostEntry| {
                let id = self.system_of(&entry.claims_primary()?);
                self.systems.get(&id)?.primary.as_ref().map(|_| id)
            };
            self.write_system = self.hosts.iter().find_map(with_primary).or(self.write_system);
        }
    }

    /// The servers of a system that report to be primary, with their timelines.
    fn primary_claims(&self, id: i64) -> impl Iterator<Item = (&HostEntry, u32)> {
        let of_it = move |entry: &HostEntry| entry.claims_primary().filter(|seen| self.system_of(seen) == id);
        self.hosts.iter().filter_map(move |entry| Some((entry, of_it(entry)?.timeline)))
    }

    /// Whether the server was primary and must not be used any more.
    fn is_deposed(&self, entry: &HostEntry) -> bool {
        let Some(seen) = entry.claimed_primary() else { return false };
        let Some(system) = self.system(&seen) else { return false };
        if system.primary.as_ref() == Some(&entry.name) {
            return false;
        }
        // A server with an equal timeline may be another address of the primary.
        seen.timeline < system.timeline || entry.answers() && !self.is_same_server(system, seen.origin)
    }

    /// Whether `origin` is that of the believed primary.
    fn is_same_server(&self, system: &SystemState, origin: ServerOrigin) -> bool {
        let is_primary = |entry: &&HostEntry| Some(&entry.name) == system.primary.as_ref();
        let primary = self.hosts.iter().find(is_primary).and_then(|entry| entry.seen);
        origin.started != 0 && primary.is_some_and(|primary| primary.origin == origin)
    }

    /// The primaries of the systems that are not for writes.
    fn unrelated(&self) -> BTreeSet<Arc<str>> {
        let others = self.systems.iter().filter(|(id, _)| Some(**id) != self.write_system);
        others.filter_map(|(_, system)| system.primary.clone()).collect()
    }

    /// The usable servers by purpose.
    #[must_use]
    pub fn routing(&self) -> ClusterRouting {
        let names = |fits: &dyn Fn(&HostEntry, HostState) -> bool| -> Vec<Arc<str>> {
            let fitting = self.hosts.iter().filter(|entry| fits(entry, self.state(entry)));
            fitting.map(|entry| entry.name.clone()).collect()
        };
        let up = |state| state == HostState::Up;
        // If all servers are silent, use all: the cause is probably not theirs.
        let silent = |entry: &HostEntry, state| state == HostState::Silent && self.is_fresh(entry);
        let replica = |entry: &HostEntry| entry.role() == HostRole::Replica;
        let mut replicas = names(&|entry, state| replica(entry) && up(state));
        if replicas.is_empty() {
            replicas = names(&|entry, state| replica(entry) && silent(entry, state));
        }
        let mut any = names(&|_, state| up(state));
        if any.is_empty() {
            any = names(&silent);
        }
        let set = |states: &[HostState]| names(&|_, state| states.contains(&state)).into_iter().collect();
        ClusterRouting {
            primary: self.primary().cloned(),
            replicas,
            any,
            unusable: set(&[HostState::Closed, HostState::Deposed, HostState::Down]),
            deposed: set(&[HostState::Deposed]),
            unrelated: self.unrelated(),
        }
    }

    /// Known facts about each server, in order.
    #[must_use]
    pub fn views(&self) -> Vec<(Arc<str>, HostView)> {
        let view = |entry: &HostEntry| {
            let lag = self.lag(entry);
            HostView {
                role: entry.role(),
                state: self.state(entry),
                lag_bytes: lag.map(|(bytes, _)| bytes),
                lag: lag.map(|(_, time)| time),
                error: entry.error.clone(),
            }
        };
        self.hosts.iter().map(|entry| (entry.name.clone(), view(entry))).collect()
    }

    fn state(&self, entry: &HostEntry) -> HostState {
        match entry.reachability {
            Reachability::Never => HostState::New,
            Reachability::Down => HostState::Down,
            Reachability::Closed => HostState::Closed,
            _ if self.is_deposed(entry) => HostState::Deposed,
            _ if entry.is_silent() => HostState::Silent,
            // Never reported and silent.
            Reachability::Silent(_) if entry.seen.is_none() => HostState::New,
            _ if !self.is_fresh(entry) => HostState::Lagging,
            _ => HostState::Up,
        }
    }

    fn is_fresh(&self, entry: &HostEntry) -> bool {
        let LagLimits { lag_bytes_max, lag_max } = self.rules;
        self.lag(entry).is_none_or(|(bytes, time)| {
            (lag_bytes_max == 0 || bytes <= lag_bytes_max) && (lag_max.is_zero() || time <= lag_max)
        })
    }

    fn lag(&self, entry: &HostEntry) -> Option<(u64, Duration)> {
        let seen = entry.seen.filter(|seen| seen.in_recovery)?;
        self.system(&seen)?.wal.lag_of(seen.lsn)
    }
}

/// Positions of the primary's WAL, with the time when each was first seen.
#[derive(Debug, Default)]
struct WalHistory {
    positions: VecDeque<(Instant, u64)>,
    /// Time of the last answer of the primary. A dead primary does not advance.
    seen_at: Option<Instant>,
}

/// Limit of positions: one hour at one probe per second.
const POSITIONS_MAX: usize = 3600;

impl WalHistory {
    /// Records the current end of the WAL. A new primary may continue from an earlier position; earlier positions keep their
    /// times.
    fn record(&mut self, lsn: u64, now: Instant) {
        self.seen_at = Some(now);
        while self.positions.back().is_some_and(|(_, last)| *last > lsn) {
            self.positions.pop_back();
        }
        if self.positions.back().is_some_and(|(_, last)| *last == lsn) {
            return;
        }
        if self.positions.len() == POSITIONS_MAX {
            self.positions.pop_front();
        }
        self.positions.push_back((now, lsn));
    }

    /// Lag of a replica that has reached `lsn`: bytes and time.
    fn lag_of(&self, lsn: u64) -> Option<(u64, Duration)> {
        let (_, end) = self.positions.back()?;
        let missed = self.positions.partition_point(|(_, place)| *place <= lsn);
        let since = self.positions.get(missed).map(|(at, _)| *at);
        let seen_at = self.seen_at?;
        let time = since.map_or(Duration::ZERO, |since| seen_at.saturating_duration_since(since));
        Some((end.saturating_sub(lsn), time))
    }
}

#[cfg(test)]
mod tests;
