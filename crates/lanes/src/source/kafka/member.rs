//! The member of the group: the one thread that speaks with the clients.
//!
//! It never waits for anything but news: the clients' queues, the subscription's wishes and the parcels that were taken
//! all wake it. So it answers the group in time, however full everything is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionListElem};

use super::Error;
use super::commits::Commits;
use super::committer::{Answer, Committer};
use super::ear::{self, Ear, Heard, log};
use super::handover::Handover;
use super::reader::{Found, Reader};
use super::revocation::{Revocation, Step};
use super::roster::{Partition, Roster};
use super::settings::Settings;
use crate::record::{Epoch, Lane};
use crate::source::{Event, Mark};

/// How long nothing may wake it: deadlines are kept as exactly as that.
const TICK: Duration = Duration::from_millis(50);
const LOST: &str = "the session with the group was lost";
/// Events of the group in one turn; there are few, and lanes are read in between.
const TURN_EVENTS: usize = 4;

pub(super) struct Member {
    group: Arc<BaseConsumer<Ear>>,
    reader: Reader,
    handover: Arc<Handover>,
    roster: Roster,
    settings: Settings,
    /// The last epoch of every lane that ever was ours.
    epochs: BTreeMap<Lane, Epoch>,
    /// Lanes on their way out.
    revocation: Option<Revocation>,
    commits: Commits,
    committer: Committer,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// Reads no more, and waits to be closed.
    Failed,
    /// Leaves when everything is committed, at the latest then.
    Closing(Instant),
}

impl Member {
    /// Joins the group. May take a few seconds if no broker answers.
    pub(super) fn join(settings: Settings, handover: Arc<Handover>, roster: Roster) -> Result<Self, Error> {
        let reader = Reader::new(&settings, settings.lanes_max(), &handover)?;
        let ear = Ear::new(Arc::clone(&handover));
        let mut group: BaseConsumer<Ear> = settings.member().create_with_context(ear).map_err(Error::Settings)?;
        let waking = Arc::clone(&handover);
        group.set_nonempty_callback(move || waking.wake_thread());
        let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        group.subscribe(&topics).map_err(Error::Settings)?;
        let group = Arc::new(group);
        let committer = Committer::start(Arc::clone(&group), Arc::clone(&handover))?;
        Ok(Self {
            group,
            reader,
            handover,
            roster,
            settings,
            epochs: BTreeMap::new(),
            revocation: None,
            commits: Commits::default(),
            committer,
            state: State::Running,
        })
    }

    /// Goes on until it is told to close.
    pub(super) fn run(mut self) -> Result<(), Error> {
        loop {
            let now = Instant::now();
            let has_heard = self.listen(now);
            self.obey(now);
            let has_read = self.read();
            self.revoke(now);
            self.commit(now);
            if let State::Closing(until) = self.state
                && (self.commits.is_idle() && self.revocation.is_none() || now >= until)
            {
                return self.leave();
            }
            if !has_heard && !has_read {
                self.reader.pass_gaps();
                std::thread::park_timeout(TICK);
            }
        }
    }

    /// Hears what the group wants and what came of commits. `true` if there was something.
    fn listen(&mut self, now: Instant) -> bool {
        for _ in 0..TURN_EVENTS {
            if let Some(Err(error)) = self.group.poll(Duration::ZERO) {
                self.heed(&error, None);
            }
        }
        let notes = self.group.context().notes();
        let mut has_heard = !notes.is_empty();
        for heard in notes {
            match heard {
                Heard::Assigned(partitions) => self.take_over(&partitions),
                Heard::Revoked(partitions) => self.begin_revocation(&partitions, now),
            }
        }
        while let Some(answer) = self.committer.answer() {
            has_heard = true;
            self.committed(answer, now);
        }
        has_heard
    }

    /// Ends the source if the error does not pass by itself.
    fn heed(&mut self, error: &KafkaError, lane: Option<Lane>) {
        let name = || lane.map_or_else(|| self.settings.topics.join(", "), |lane| self.roster.name(lane));
        if let Some(error) = Error::of(error, name) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: Error) {
        if self.state == State::Running {
            self.state = State::Failed;
            self.handover.fail(error);
        }
    }

    fn obey(&mut self, now: Instant) {
        let wishes = self.handover.wishes();
        if wishes.close && !matches!(self.state, State::Closing(_)) {
            self.state = State::Closing(now + self.settings.close);
        }
        for mark in wishes.marks {
            let staying = self.revocation.as_mut().map_or(Some(mark), |revocation| revocation.want(mark));
            self.commits.want(staying.filter(|mark| self.reader.reads(mark.lane, mark.epoch)));
        }
        for (lane, epoch, through) in wishes.released {
            self.revocation.iter_mut().for_each(|revocation| revocation.release(lane, epoch, through));
        }
    }

    fn read(&mut self) -> bool {
        if self.state != State::Running {
            return false;
        }
        let mut found = Vec::new();
        self.reader.listen(&mut found);
        let has_read = self.reader.read(&mut found);
        for found in found {
            match found {
                Found::Anew(first) => {
                    self.epochs.insert(first.lane(), first.epoch());
                    self.commits.forget(first.lane());
                }
                Found::Missing(lane) => self.wait_for(lane),
                Found::Failed(lane, error) => self.heed(&error, lane),
                Found::Astray => self.fail(Error::Broken),
            }
        }
        has_read
    }

    /// The topic of the lane is not there. Whether that ends the source, the member hears when it looks at its topics: it is
    /// not the one that reads, and a pattern does not need it.
    fn wait_for(&mut self, lane: Lane) {
        let Some(partition) = self.roster.partition(lane) else { return };
        log::missing(&self.roster.name(lane));
        // What was done of it must not be committed to another topic of its name.
        self.commits.forget(lane);
        let epoch = self.epochs.entry(lane).or_default();
        epoch.0 += 1;
        self.reader.wait_for(lane, *epoch, partition).unwrap_or_else(|error| self.fail(error));
    }

    fn take_over(&mut self, partitions: &TopicPartitionList) {
        let mut lanes = Vec::new();
        for entry in partitions.elements() {
            let lane = self.roster.enter(entry.topic(), entry.partition());
            let epoch = self.epochs.entry(lane).or_default();
            epoch.0 += 1;
            lanes.push((lane, *epoch, Partition { topic: entry.topic().into(), number: entry.partition() }));
        }
        let added = self.reader.add(lanes).and_then(|()| ear::take_over(&self.group).map_err(Error::Assign));
        added.unwrap_or_else(|error| self.fail(error));
    }

    fn begin_revocation(&mut self, partitions: &TopicPartitionList, now: Instant) {
        let lane = |entry: &TopicPartitionListElem<'_>| self.roster.lane(entry.topic(), entry.partition());
        let lanes: Vec<Lane> = partitions.elements().iter().filter_map(lane).collect();
        // What was wanted of them until now is not forgotten.
        self.obey(now);
        let wanted: Vec<Mark> = lanes.iter().filter_map(|lane| self.commits.forget(*lane)).collect();
        let gone = self.reader.remove(&lanes).unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        });
        if gone.is_empty() || self.group.assignment_lost() {
            self.handover.shut(&gone, Event::Lost { lanes: gone.clone() });
            self.mourn(&gone, !wanted.is_empty());
            return self.give_up();
        }
        let within = self.settings.drain;
        self.handover.shut(&gone, Event::Revoked { lanes: gone.clone(), within });
        let mut revocation = Revocation::new(gone, within, now);
        for mark in wanted {
            // All are of these lanes: none comes back.
            let _ = revocation.want(mark);
        }
        self.revocation = Some(revocation);
    }

    /// Moves lanes on that are on their way out.
    fn revoke(&mut self, now: Instant) {
        let Some(revocation) = &mut self.revocation else { return };
        if self.group.assignment_lost() {
            // Somebody else has them already.
            let (lanes, has_marks) = (revocation.restless().to_vec(), !revocation.left_over().is_empty());
            self.handover.news(Event::Lost { lanes: lanes.clone() });
            self.mourn(&lanes, has_marks);
            return self.give_up();
        }
        if matches!(self.state, State::Closing(_)) {
            revocation.hurry();
        }
        match revocation.step(now) {
            Step::Wait => {}
            Step::Commit(marks) => self.send(marks, now),
            Step::GiveUp => {
                for mark in revocation.left_over() {
                    const REASON: &str = "its lane had to be given back";
                    if matches!(self.state, State::Closing(_)) {
                        self.commits.give_up(REASON);
                    }
                    self.handover.news(not_committed(mark, REASON));
                }
                self.give_up();
            }
        }
    }

    /// Lanes are gone whose last marks nobody takes any more. Whoever closes the source is told if there were some.
    fn mourn(&mut self, lanes: &[(Lane, Epoch)], has_marks: bool) {
        lanes.iter().for_each(|(lane, _)| log::lost(&self.roster.name(*lane)));
        if has_marks && matches!(self.state, State::Closing(_)) {
            self.commits.give_up(LOST);
        }
    }

    /// Lets the group have what it wants back.
    fn give_up(&mut self) {
        self.revocation = None;
        ear::give_up(&self.group).unwrap_or_else(|error| self.fail(Error::Assign(error)));
    }

    /// Commits what is wanted, unless the broker still has to answer the last commit.
    fn commit(&mut self, now: Instant) {
        let marks = self.commits.take(now);
        if !marks.is_empty() {
            self.send(marks, now);
        }
    }

    fn send(&mut self, marks: Vec<Mark>, now: Instant) {
        match self.offsets(&marks) {
            Ok(offsets) => {
                self.commits.sent();
                self.committer.send(marks, offsets);
            }
            Err(error) => marks.iter().for_each(|mark| self.not_committed(*mark, &error, now)),
        }
    }

    fn offsets(&self, marks: &[Mark]) -> KafkaResult<TopicPartitionList> {
        let mut offsets = TopicPartitionList::with_capacity(marks.len());
        for mark in marks {
            let Some(partition) = self.roster.partition(mark.lane) else { continue };
            let mut entry = offsets.add_partition(&partition.topic, partition.number);
            // Kafka's position is that of the record to be read next.
            let next = i64::try_from(mark.through.0 + 1).unwrap_or(i64::MAX);
            entry.set_offset(Offset::Offset(next))?;
            entry.set_metadata(&self.settings.metadata);
        }
        Ok(offsets)
    }

    /// The broker's answer to a commit.
    fn committed(&mut self, answer: Answer, now: Instant) {
        self.commits.answered();
        for mark in answer.marks {
            let revocation = self.revocation.as_mut();
            let is_theirs = revocation.is_some_and(|it| it.committed(mark, answer.result.is_ok(), now));
            if let Err(error) = &answer.result
                && !is_theirs
            {
                self.not_committed(mark, error, now);
            }
        }
    }

    /// The subscription wishes it again. When it has closed us it does not, so we do.
    fn not_committed(&mut self, mark: Mark, error: &KafkaError, now: Instant) {
        if matches!(self.state, State::Closing(_)) {
            let leaving = self.revocation.as_mut();
            if self.reader.reads(mark.lane, mark.epoch) {
                self.commits.want([mark]);
            } else if !leaving.is_some_and(|leaving| leaving.want_again(mark, now)) {
                self.commits.give_up(LOST);
            }
        }
        self.commits.failed(error, now);
        self.handover.news(not_committed(mark, &error.to_string()));
    }

    /// Leaves the group, which may take a moment.
    fn leave(self) -> Result<(), Error> {
        let result = self.commits.result();
        let ear = self.group.context();
        ear.become_deaf();
        // A rebalance that waits for its answer gets none from a note that nobody will read. Whatever fails now, the
        // client ends anyway.
        for heard in ear.notes() {
            let _ = match heard {
                Heard::Assigned(_) => ear::take_over(&self.group),
                Heard::Revoked(_) => ear::give_up(&self.group),
            };
        }
        if self.revocation.is_some() {
            let _ = ear::give_up(&self.group);
        }
        drop(self.reader);
        if result.is_ok() {
            self.committer.join();
        }
        ear::unsubscribe(&self.group);
        close(self.group, self.settings.close);
        result
    }
}

/// Closes the client, for which nobody waits longer than that. A commit that still waits keeps it until it ends, which is when
/// it is closed then.
fn close(group: Arc<BaseConsumer<Ear>>, within: Duration) {
    let (closing, closed) = std::sync::mpsc::channel::<()>();
    let body = move || {
        drop(group);
        drop(closing);
    };
    // Without a thread it was closed when the closure was dropped.
    if std::thread::Builder::new().name("lanes-close".to_owned()).spawn(body).is_ok() {
        let _ = closed.recv_timeout(within);
    }
}

fn not_committed(mark: Mark, reason: &str) -> Event {
    Event::CommitFailed { mark, reason: reason.to_owned() }
}
