//! The group member, and the thread that drives both clients.
//!
//! The thread waits only for events: the clients' queues, requests of the subscription, and delivered chunks all wake it.
//! So it answers the group in time, however full the queues are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionListElem};

use super::builder::KafkaSourceBuilder;
use super::channel::SourceChannel;
use super::commit_queue::CommitQueue;
use super::committer::{CommitResult, Committer};
use super::context::{self, KafkaContext, RebalanceEvent};
use super::error::KafkaSourceError;
use super::fetcher::{FetchEvent, Fetcher};
use super::log;
use super::partition_map::{Partition, PartitionMap};
use super::revocation::{Revocation, RevocationStep};
use crate::record::{Epoch, Lane};
use crate::source::interface::{LaneCommit, SourceEvent};

/// The longest sleep; the resolution of deadlines.
const TICK: Duration = Duration::from_millis(50);
const LOST: &str = "group session lost";
/// Group events per turn. Events are rare, and partitions are read in between.
const TURN_EVENTS: usize = 4;

pub(super) struct GroupMember {
    group: Arc<BaseConsumer<KafkaContext>>,
    fetcher: Fetcher,
    channel: Arc<SourceChannel>,
    partition_map: PartitionMap,
    settings: KafkaSourceBuilder,
    /// The last epoch of every lane that was ever assigned.
    epochs: BTreeMap<Lane, Epoch>,
    /// The revocation in progress.
    revocation: Option<Revocation>,
    queue: CommitQueue,
    committer: Committer,
    state: MemberState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MemberState {
    Running,
    /// Fetches no more records and waits for close.
    Failed,
    /// Leaves once everything is committed, at most at this time.
    Closing(Instant),
}

impl GroupMember {
    /// Joins the group. May take a few seconds if no broker answers.
    pub(super) fn join(
        settings: KafkaSourceBuilder,
        channel: Arc<SourceChannel>,
        partition_map: PartitionMap,
    ) -> Result<Self, KafkaSourceError> {
        let fetcher = Fetcher::new(&settings, settings.lanes_max(), &channel)?;
        let context = KafkaContext::new(Arc::clone(&channel));
        let mut group: BaseConsumer<KafkaContext> =
            settings.member_config().create_with_context(context).map_err(KafkaSourceError::Settings)?;
        let waking = Arc::clone(&channel);
        group.set_nonempty_callback(move || waking.wake_thread());
        let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        group.subscribe(&topics).map_err(KafkaSourceError::Settings)?;
        let group = Arc::new(group);
        let committer = Committer::start(Arc::clone(&group), Arc::clone(&channel))?;
        Ok(Self {
            group,
            fetcher,
            channel,
            partition_map,
            settings,
            epochs: BTreeMap::new(),
            revocation: None,
            queue: CommitQueue::default(),
            committer,
            state: MemberState::Running,
        })
    }

    /// Runs until the source is closed.
    pub(super) fn run(mut self) -> Result<(), KafkaSourceError> {
        loop {
            let now = Instant::now();
            let has_events = self.poll_events(now);
            self.apply_requests(now);
            let has_read = self.read(now);
            self.advance_revocation(now);
            self.commit(now);
            if let MemberState::Closing(until) = self.state
                && (self.queue.is_idle() && self.revocation.is_none() || now >= until)
            {
                return self.leave();
            }
            if !has_events && !has_read {
                self.fetcher.pass_gaps();
                std::thread::park_timeout(TICK);
            }
        }
    }

    /// Handles group events and commit results. `true` if there were any.
    fn poll_events(&mut self, now: Instant) -> bool {
        for _ in 0..TURN_EVENTS {
            if let Some(Err(error)) = self.group.poll(Duration::ZERO) {
                self.on_error(&error, None);
            }
        }
        let events = self.group.context().events();
        let mut has_events = !events.is_empty();
        for event in events {
            match event {
                RebalanceEvent::Assigned(partitions) => self.on_assigned(&partitions),
                RebalanceEvent::Revoked(partitions) => self.on_revoked(&partitions, now),
            }
        }
        while let Some(result) = self.committer.try_result() {
            has_events = true;
            self.on_commit_result(result, now);
        }
        has_events
    }

    /// Fails the source unless the error is transient.
    fn on_error(&mut self, error: &KafkaError, lane: Option<Lane>) {
        let name = || lane.map_or_else(|| self.settings.topics.join(", "), |lane| self.partition_map.name(lane));
        if let Some(error) = KafkaSourceError::of(error, name) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: KafkaSourceError) {
        if self.state == MemberState::Running {
            self.state = MemberState::Failed;
            self.channel.fail(error);
        }
    }

    fn apply_requests(&mut self, now: Instant) {
        let requests = self.channel.requests();
        if requests.close && !matches!(self.state, MemberState::Closing(_)) {
            self.state = MemberState::Closing(now + self.settings.close);
        }
        for commit in requests.commits {
            let staying = self.revocation.as_mut().map_or(Some(commit), |revocation| revocation.add_commit(commit));
            self.queue.push(staying.filter(|commit| self.fetcher.is_reading(commit.lane, commit.epoch)));
        }
        for (lane, epoch, through) in requests.released {
            self.revocation.iter_mut().for_each(|revocation| revocation.release(lane, epoch, through));
        }
    }

    fn read(&mut self, now: Instant) -> bool {
        if self.state != MemberState::Running {
            return false;
        }
        match self.fetcher.restart_deleted(now) {
            Ok(lanes) => lanes.iter().for_each(|lane| log::topic_missing(&self.partition_map.name(*lane))),
            Err(error) => self.fail(error),
        }
        let mut fetched = Vec::new();
        self.fetcher.poll_client(&mut fetched);
        let has_read = self.fetcher.read(&mut fetched);
        for fetched in fetched {
            match fetched {
                FetchEvent::Restarted(first) => {
                    self.epochs.insert(first.lane(), first.epoch());
                    self.queue.remove(first.lane());
                }
                FetchEvent::TopicMissing(lane) => self.wait_for(lane),
                FetchEvent::Failed(lane, error) => self.on_error(&error, lane),
                FetchEvent::UnexpectedRecord => self.fail(KafkaSourceError::Internal),
            }
        }
        has_read
    }

    /// The topic of the lane is missing. The group member reports a missing topic as an error if it was subscribed by
    /// name; a pattern tolerates it.
    fn wait_for(&mut self, lane: Lane) {
        let Some(partition) = self.partition_map.partition(lane) else { return };
        // Progress must not be committed to a new topic of the same name.
        self.queue.remove(lane);
        let epoch = self.epochs.entry(lane).or_default();
        epoch.0 += 1;
        self.fetcher.wait_for(lane, *epoch, partition).unwrap_or_else(|error| self.fail(error));
    }

    fn on_assigned(&mut self, partitions: &TopicPartitionList) {
        let mut lanes = Vec::new();
        for entry in partitions.elements() {
            let lane = self.partition_map.get_or_insert(entry.topic(), entry.partition());
            let epoch = self.epochs.entry(lane).or_default();
            epoch.0 += 1;
            lanes.push((lane, *epoch, Partition { topic: entry.topic().into(), number: entry.partition() }));
        }
        let added = self
            .fetcher
            .add(lanes)
            .and_then(|()| context::acknowledge_assign(&self.group).map_err(KafkaSourceError::Assign));
        added.unwrap_or_else(|error| self.fail(error));
    }

    fn on_revoked(&mut self, partitions: &TopicPartitionList, now: Instant) {
        let lane = |entry: &TopicPartitionListElem<'_>| self.partition_map.lane(entry.topic(), entry.partition());
        let lanes: Vec<Lane> = partitions.elements().iter().filter_map(lane).collect();
        // Requests made until now still apply to the lanes.
        self.apply_requests(now);
        let queued: Vec<LaneCommit> = lanes.iter().filter_map(|lane| self.queue.remove(*lane)).collect();
        let removed = self.fetcher.remove(&lanes).unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        });
        if removed.is_empty() || self.group.assignment_lost() {
            self.channel.close_lanes(&removed, SourceEvent::Lost { lanes: removed.clone() });
            self.on_partitions_lost(&removed, !queued.is_empty());
            return self.finish_revocation();
        }
        let within = self.settings.drain;
        self.channel.close_lanes(&removed, SourceEvent::Revoked { lanes: removed.clone(), within });
        let mut revocation = Revocation::new(removed, within, now);
        for commit in queued {
            // All commits belong to these lanes, so none is returned.
            let _ = revocation.add_commit(commit);
        }
        self.revocation = Some(revocation);
    }

    /// Advances the revocation in progress.
    fn advance_revocation(&mut self, now: Instant) {
        let Some(revocation) = &mut self.revocation else { return };
        if self.group.assignment_lost() {
            // The partitions may already belong to another member.
            let (lanes, has_commits) = (revocation.undrained().to_vec(), !revocation.take_uncommitted().is_empty());
            self.channel.push_event(SourceEvent::Lost { lanes: lanes.clone() });
            self.on_partitions_lost(&lanes, has_commits);
            return self.finish_revocation();
        }
        if matches!(self.state, MemberState::Closing(_)) {
            revocation.stop_waiting();
        }
        match revocation.step(now) {
            RevocationStep::Wait => {}
            RevocationStep::Commit(commits) => self.send(commits, now),
            RevocationStep::GiveUp => {
                for commit in revocation.take_uncommitted() {
                    const REASON: &str = "lane revoked";
                    if matches!(self.state, MemberState::Closing(_)) {
                        self.queue.abandon(REASON);
                    }
                    self.channel.push_event(commit_failed(commit, REASON));
                }
                self.finish_revocation();
            }
        }
    }

    /// Handles lost partitions, whose last commits no broker accepts. Closing the source reports them if there were any.
    fn on_partitions_lost(&mut self, lanes: &[(Lane, Epoch)], has_commits: bool) {
        lanes.iter().for_each(|(lane, _)| log::session_lost(&self.partition_map.name(*lane)));
        if has_commits && matches!(self.state, MemberState::Closing(_)) {
            self.queue.abandon(LOST);
        }
    }

    /// Acknowledges the revocation.
    fn finish_revocation(&mut self) {
        self.revocation = None;
        context::acknowledge_revoke(&self.group).unwrap_or_else(|error| self.fail(KafkaSourceError::Assign(error)));
    }

    /// Sends queued commits, unless one is in flight.
    fn commit(&mut self, now: Instant) {
        let commits = self.queue.take(now);
        if !commits.is_empty() {
            self.send(commits, now);
        }
    }

    fn send(&mut self, commits: Vec<LaneCommit>, now: Instant) {
        match self.offsets(&commits) {
            Ok(offsets) => {
                self.queue.on_sent();
                self.committer.send(commits, offsets);
            }
            Err(error) => commits.iter().for_each(|commit| self.on_commit_failed(*commit, &error, now)),
        }
    }

    fn offsets(&self, commits: &[LaneCommit]) -> KafkaResult<TopicPartitionList> {
        let mut offsets = TopicPartitionList::with_capacity(commits.len());
        for commit in commits {
            let Some(partition) = self.partition_map.partition(commit.lane) else { continue };
            let mut entry = offsets.add_partition(&partition.topic, partition.number);
            // Kafka commits the offset of the next record.
            let next = i64::try_from(commit.through.0 + 1).unwrap_or(i64::MAX);
            entry.set_offset(Offset::Offset(next))?;
            entry.set_metadata(&self.settings.metadata);
        }
        Ok(offsets)
    }

    /// Handles the result of a commit.
    fn on_commit_result(&mut self, result: CommitResult, now: Instant) {
        self.queue.on_answered();
        for commit in result.commits {
            let revocation = self.revocation.as_mut();
            let is_revocation = revocation.is_some_and(|it| it.committed(commit, result.result.is_ok(), now));
            if let Err(error) = &result.result
                && !is_revocation
            {
                self.on_commit_failed(commit, error, now);
            }
        }
    }

    /// Handles a failed commit. The subscription requests it again; after close, the member retries it.
    fn on_commit_failed(&mut self, commit: LaneCommit, error: &KafkaError, now: Instant) {
        if matches!(self.state, MemberState::Closing(_)) {
            let leaving = self.revocation.as_mut();
            if self.fetcher.is_reading(commit.lane, commit.epoch) {
                self.queue.push([commit]);
            } else if !leaving.is_some_and(|leaving| leaving.retry_commit(commit, now)) {
                self.queue.abandon(LOST);
            }
        }
        self.queue.on_failed(error, now);
        self.channel.push_event(commit_failed(commit, &error.to_string()));
    }

    /// Leaves the group.
    fn leave(self) -> Result<(), KafkaSourceError> {
        let result = self.queue.result();
        let context = self.group.context();
        context.stop_callbacks();
        // Pending rebalances are acknowledged here, as their events are not read any more. Errors do not matter, as the
        // client closes.
        for event in context.events() {
            let _ = match event {
                RebalanceEvent::Assigned(_) => context::acknowledge_assign(&self.group),
                RebalanceEvent::Revoked(_) => context::acknowledge_revoke(&self.group),
            };
        }
        if self.revocation.is_some() {
            let _ = context::acknowledge_revoke(&self.group);
        }
        drop(self.fetcher);
        if result.is_ok() {
            self.committer.join();
        }
        context::unsubscribe(&self.group);
        close(self.group, self.settings.close);
        result
    }
}

/// Closes the client on a thread, waiting at most `within`. A pending commit keeps the client alive until it ends.
fn close(group: Arc<BaseConsumer<KafkaContext>>, within: Duration) {
    let (closing, closed) = std::sync::mpsc::channel::<()>();
    let body = move || {
        drop(group);
        drop(closing);
    };
    // If no thread can be started, dropping the closure closes the client.
    if std::thread::Builder::new().name("lanes-close".to_owned()).spawn(body).is_ok() {
        let _ = closed.recv_timeout(within);
    }
}

fn commit_failed(commit: LaneCommit, reason: &str) -> SourceEvent {
    SourceEvent::CommitFailed { commit, reason: reason.to_owned() }
}
