//! Who is primary, who is a replica, how far behind, and who may serve: from reports to a verdict.
//!
//! Pure: reports and the time come from outside, and nothing here waits.
//!
//! Two servers that come from one `initdb` and both say they are primary are a split brain: the one of the higher
//! timeline is believed, since a promotion begins a new one; of equal timelines, the one that was primary before. A server
//! of a lower timeline than was ever seen is never believed, also while no other primary is there, or while it does not
//! answer: it was left behind by a promotion. Two addresses of one server are no split brain.
//!
//! Servers that come from different `initdb`s have nothing to do with each other: each such [`System`] has its primary and
//! its timelines. Whoever takes any server may get all of them; writes go to one system, and to another only when that
//! one has no primary.
//!
//! Lag in time is measured by our own clock: how long ago the primary was first seen beyond the place that the replica
//! has reached. So a primary that writes nothing makes no lag, and clocks of servers do not matter.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::observation::{Observation, Origin, Report};

/// What a server is, as it said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It has not said.
    #[default]
    Unknown,
    /// It takes writes.
    Primary,
    /// It replays the WAL of another.
    Replica,
}

/// Whether a server may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostState {
    /// It was not heard of yet.
    #[default]
    New,
    /// It answers.
    Up,
    /// It is a replica that lies too far behind.
    Lagging,
    /// It does not answer; used only if nobody else is there.
    Silent,
    /// It lets nobody in: it starts, stops or recovers.
    Closed,
    /// It says it is primary, and another one is.
    Deposed,
    /// It cannot be reached.
    Down,
}

impl Role {
    /// For people.
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
    /// For people.
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

/// What is known of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// What it is.
    pub role: Role,
    /// Whether it may be used.
    pub state: HostState,
    /// Bytes of WAL between the primary and it; of replicas, once a primary was seen.
    pub lag_bytes: Option<u64>,
    /// The same in time.
    pub lag: Option<Duration>,
    /// What went wrong last; nothing once it answers.
    pub error: Option<String>,
}

/// How far behind a replica may be; zero is as far as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// In bytes of WAL.
    pub lag_bytes_max: u64,
    /// In time.
    pub lag_max: Duration,
}

/// Who may serve what. Names are those that [`Topology::set_hosts`] was given, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Takes writes.
    pub primary: Option<Arc<str>>,
    /// Take what is read from replicas.
    pub replicas: Vec<Arc<str>>,
    /// Take anything that any server can do.
    pub any: Vec<Arc<str>>,
    /// Must not be used: connections to them are closed.
    pub unfit: BTreeSet<Arc<str>>,
    /// Say they are primary, and are not believed.
    pub deposed: BTreeSet<Arc<str>>,
    /// Primaries that have nothing to do with the one that takes writes.
    pub apart: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Entry {
    name: Arc<str>,
    seen: Option<Observation>,
    reached: Reached,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reached {
    #[default]
    Never,
    Yes,
    /// Silent so often in a row.
    Silent(u32),
    Closed,
    Down,
}

/// A server is silent when it was not heard of so often in a row: one slow answer means little.
const SILENT_AFTER: u32 = 2;

impl Reached {
    /// What silence makes of it. Only a server that has answered is given the benefit of the doubt.
    const fn then_silent(self) -> Self {
        match self {
            Self::Never | Self::Yes => Self::Silent(1),
            Self::Silent(times) => Self::Silent(times.saturating_add(1)),
            Self::Closed | Self::Down => Self::Silent(SILENT_AFTER),
        }
    }
}

impl Entry {
    fn role(&self) -> Role {
        match self.seen {
            None => Role::Unknown,
            Some(seen) if seen.in_recovery => Role::Replica,
            Some(_) => Role::Primary,
        }
    }

    fn answers(&self) -> bool {
        match self.reached {
            Reached::Yes => true,
            Reached::Silent(times) => times < SILENT_AFTER,
            _ => false,
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self.reached, Reached::Silent(times) if times >= SILENT_AFTER)
    }

    /// What it said when it said last that it is primary, unless it has said something else since.
    fn claimed(&self) -> Option<Observation> {
        self.seen.filter(|seen| !seen.in_recovery)
    }

    /// The same as long as it answers.
    fn claims(&self) -> Option<Observation> {
        self.claimed().filter(|_| self.answers())
    }
}

/// All servers that come from one `initdb`: they replicate from each other, or did.
#[derive(Debug, Default)]
struct System {
    /// Believed to be primary now.
    head: Option<Arc<str>>,
    /// The highest timeline of any primary that was believed.
    timeline: u32,
    wal: Wal,
}

/// What is known of all servers of a cluster.
#[derive(Debug, Default)]
pub struct Topology {
    rules: Rules,
    hosts: Vec<Entry>,
    /// By the identifier of the `initdb`; by 0 if that is not known of every server.
    systems: BTreeMap<i64, System>,
    /// There was an answer without that identifier, so that nobody can be told apart by it.
    is_blind: bool,
    /// The system that takes writes.
    chosen: Option<i64>,
}

impl Topology {
    /// Nobody is known.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The servers there are, by name. What is known of those that stay is kept.
    pub fn set_hosts(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        let mut before = std::mem::take(&mut self.hosts);
        for name in names {
            let known = before.iter().position(|entry| entry.name == name).map(|at| before.swap_remove(at));
            self.hosts.push(known.unwrap_or_else(|| Entry { name, ..Entry::default() }));
        }
        self.elect();
    }

    /// Takes in how it went to ask a server.
    pub fn note(&mut self, name: &str, report: Report, now: Instant) {
        let Some(entry) = self.hosts.iter_mut().find(|entry| *entry.name == *name) else { return };
        (entry.reached, entry.error) = match report {
            Report::Answer(seen) => {
                entry.seen = Some(seen);
                (Reached::Yes, None)
            }
            Report::Silent => (entry.reached.then_silent(), Some("no answer in time".to_owned())),
            Report::Unasked(error) => (entry.reached, Some(error)),
            Report::Closed(error) => (Reached::Closed, Some(error)),
            Report::Mute(error) => (Reached::Yes, Some(error)),
            Report::Down(error) => (Reached::Down, Some(error)),
        };
        let answered = entry.seen.filter(|_| entry.reached == Reached::Yes);
        self.is_blind |= answered.is_some_and(|seen| seen.origin.system == 0);
        let Some(seen) = answered else { return self.elect() };
        let id = self.system_of(&seen);
        self.systems.entry(id).or_default();
        self.elect();
        if let Some(system) = self.systems.get_mut(&id).filter(|system| system.head.as_deref() == Some(name)) {
            system.wal.note(seen.lsn, now);
        }
    }

    fn system_of(&self, seen: &Observation) -> i64 {
        if self.is_blind { 0 } else { seen.origin.system }
    }

    fn system(&self, seen: &Observation) -> Option<&System> {
        self.systems.get(&self.system_of(seen))
    }

    fn primary(&self) -> Option<&Arc<str>> {
        self.systems.get(&self.chosen?)?.head.as_ref()
    }

    /// Who is believed to be primary.
    fn elect(&mut self) {
        let mut systems = std::mem::take(&mut self.systems);
        for (id, system) in &mut systems {
            let claims: Vec<(&Entry, u32)> = self.claims_of(*id).collect();
            let highest = claims.iter().map(|(_, timeline)| *timeline).max().unwrap_or(0).max(system.timeline);
            let newest = claims.iter().filter(|(_, timeline)| *timeline == highest).map(|(entry, _)| &entry.name);
            let first = newest.clone().next().cloned();
            let same = newest.clone().find(|name| Some(*name) == system.head.as_ref()).cloned();
            (system.head, system.timeline) = (same.or(first), highest);
        }
        self.systems = systems;
        // Writes stay where they are as long as they can.
        if self.primary().is_none() {
            let with_head = |entry: &Entry| {
                let id = self.system_of(&entry.claims()?);
                self.systems.get(&id)?.head.as_ref().map(|_| id)
            };
            self.chosen = self.hosts.iter().find_map(with_head).or(self.chosen);
        }
    }

    /// The servers of a system that say they are primary, with their timelines.
    fn claims_of(&self, id: i64) -> impl Iterator<Item = (&Entry, u32)> {
        let of_it = move |entry: &Entry| entry.claims().filter(|seen| self.system_of(seen) == id);
        self.hosts.iter().filter_map(move |entry| Some((entry, of_it(entry)?.timeline)))
    }

    /// Whether it took writes, and must not any more.
    fn is_deposed(&self, entry: &Entry) -> bool {
        let Some(seen) = entry.claimed() else { return false };
        let Some(system) = self.system(&seen) else { return false };
        if system.head.as_ref() == Some(&entry.name) {
            return false;
        }
        // Of the same timeline it may be another address of the same server.
        seen.timeline < system.timeline || entry.answers() && !self.is_twin(system, seen.origin)
    }

    /// Whether that is the server that is believed to be primary.
    fn is_twin(&self, system: &System, origin: Origin) -> bool {
        let is_head = |entry: &&Entry| Some(&entry.name) == system.head.as_ref();
        let head = self.hosts.iter().find(is_head).and_then(|entry| entry.seen);
        origin.started != 0 && head.is_some_and(|head| head.origin == origin)
    }

    /// Primaries that have nothing to do with the one that takes writes.
    fn apart(&self) -> BTreeSet<Arc<str>> {
        let others = self.systems.iter().filter(|(id, _)| Some(**id) != self.chosen);
        others.filter_map(|(_, system)| system.head.clone()).collect()
    }

    /// Who may serve what.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let names = |fits: &dyn Fn(&Entry, HostState) -> bool| -> Vec<Arc<str>> {
            let fitting = self.hosts.iter().filter(|entry| fits(entry, self.state(entry)));
            fitting.map(|entry| entry.name.clone()).collect()
        };
        let up = |state| state == HostState::Up;
        // All silent means use all: it is probably not the servers.
        let silent = |entry: &Entry, state| state == HostState::Silent && self.is_fresh(entry);
        let replica = |entry: &Entry| entry.role() == Role::Replica;
        let mut replicas = names(&|entry, state| replica(entry) && up(state));
        if replicas.is_empty() {
            replicas = names(&|entry, state| replica(entry) && silent(entry, state));
        }
        let mut any = names(&|_, state| up(state));
        if any.is_empty() {
            any = names(&silent);
        }
        let set = |states: &[HostState]| names(&|_, state| states.contains(&state)).into_iter().collect();
        Verdict {
            primary: self.primary().cloned(),
            replicas,
            any,
            unfit: set(&[HostState::Closed, HostState::Deposed, HostState::Down]),
            deposed: set(&[HostState::Deposed]),
            apart: self.apart(),
        }
    }

    /// What is known of each, in order.
    #[must_use]
    pub fn views(&self) -> Vec<(Arc<str>, HostView)> {
        let view = |entry: &Entry| {
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

    fn state(&self, entry: &Entry) -> HostState {
        match entry.reached {
            Reached::Never => HostState::New,
            Reached::Down => HostState::Down,
            Reached::Closed => HostState::Closed,
            _ if self.is_deposed(entry) => HostState::Deposed,
            _ if entry.is_silent() => HostState::Silent,
            // Heard of neither before nor now.
            Reached::Silent(_) if entry.seen.is_none() => HostState::New,
            _ if !self.is_fresh(entry) => HostState::Lagging,
            _ => HostState::Up,
        }
    }

    fn is_fresh(&self, entry: &Entry) -> bool {
        let Rules { lag_bytes_max, lag_max } = self.rules;
        self.lag(entry).is_none_or(|(bytes, time)| {
            (lag_bytes_max == 0 || bytes <= lag_bytes_max) && (lag_max.is_zero() || time <= lag_max)
        })
    }

    fn lag(&self, entry: &Entry) -> Option<(u64, Duration)> {
        let seen = entry.seen.filter(|seen| seen.in_recovery)?;
        self.system(&seen)?.wal.lag_of(seen.lsn)
    }
}

/// Where the primary's WAL ended, and when it was first seen there.
#[derive(Debug, Default)]
struct Wal {
    places: VecDeque<(Instant, u64)>,
    /// When the primary was last heard of. A dead one gets no further ahead.
    heard: Option<Instant>,
}

/// An hour of a primary that is asked once a second.
const PLACES_MAX: usize = 3600;

impl Wal {
    /// The WAL ends there now. Of another primary it may go on from an earlier place than the last one's; what comes before
    /// is as old as it was.
    fn note(&mut self, lsn: u64, now: Instant) {
        self.heard = Some(now);
        while self.places.back().is_some_and(|(_, last)| *last > lsn) {
            self.places.pop_back();
        }
        if self.places.back().is_some_and(|(_, last)| *last == lsn) {
            return;
        }
        if self.places.len() == PLACES_MAX {
            self.places.pop_front();
        }
        self.places.push_back((now, lsn));
    }

    /// How far behind somebody is who has reached `lsn`: in bytes, and in time.
    fn lag_of(&self, lsn: u64) -> Option<(u64, Duration)> {
        let (_, end) = self.places.back()?;
        let missed = self.places.partition_point(|(_, place)| *place <= lsn);
        let since = self.places.get(missed).map(|(at, _)| *at);
        let heard = self.heard?;
        let time = since.map_or(Duration::ZERO, |since| heard.saturating_duration_since(since));
        Some((end.saturating_sub(lsn), time))
    }
}

#[cfg(test)]
mod tests;
