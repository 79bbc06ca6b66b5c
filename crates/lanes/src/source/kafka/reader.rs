//! The client that reads the partitions that are ours.
//!
//! It is not the one that is a member of the group. A member stops reading all of its partitions while one of them is
//! taken away or another comes (librdkafka pauses them and forgets what it read ahead); this client knows nothing of
//! that, so lanes that stay go on being read.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use super::Error;
use super::ear::Ear;
use super::handover::{Handover, PARCELS_MAX};
use super::reading::{Reading, Stop};
use super::remark::What;
use super::roster::Partition;
use super::settings::Settings;
use crate::record::{Epoch, Lane, Record};

/// Events of the client's common queue in one turn; there are few, and lanes are read in between.
const TURN_EVENTS: usize = 4;
/// Of one parcel: with more, nothing is gained; with less, its lock and the waking cost more than its records.
const PARCEL_BYTES: RangeInclusive<usize> = 16 << 10..=256 << 10;

pub(super) struct Reader {
    // Before the client, which closes when nobody has a queue of it any more.
    readings: Vec<Reading>,
    client: Arc<BaseConsumer<Ear>>,
    handover: Arc<Handover>,
    parcel: Vec<Record>,
    /// Lanes whose topic was not there when they were looked at last.
    missing: BTreeSet<Lane>,
    /// Of all parcels of all lanes, unless each lane's are as small as they may be.
    parcels_bytes_max: usize,
}

/// What reading has brought to light.
#[derive(Debug)]
pub(super) enum Found {
    /// The log was cut or made anew, and the lane goes on below where it was: the first record of its next epoch.
    Anew(Record),
    /// The topic of the lane is not there any more.
    Missing(Lane),
    /// Of a lane, if it is one's.
    Failed(Option<Lane>, KafkaError),
    /// A record by a way that no record may come.
    Astray,
}

impl Reader {
    /// A client for at most so many lanes.
    pub(super) fn new(settings: &Settings, lanes_max: usize, handover: &Arc<Handover>) -> Result<Self, Error> {
        let ear = Ear::new(Arc::clone(handover));
        // It is in no group, so nothing that one could want of it is of interest.
        ear.become_deaf();
        let mut client: BaseConsumer<Ear> =
            settings.reader(lanes_max).create_with_context(ear).map_err(Error::Settings)?;
        let waking = Arc::clone(handover);
        client.set_nonempty_callback(move || waking.wake_thread());
        let (client, handover) = (Arc::new(client), Arc::clone(handover));
        // The client holds all that it may; parcels of it are half as much besides.
        let parcels_bytes_max = settings.prefetch_bytes / 2;
        let (readings, parcel, missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        Ok(Self { readings, client, handover, parcel, missing, parcels_bytes_max })
    }

    /// Begins to read partitions where the group has committed.
    pub(super) fn add(&mut self, lanes: Vec<(Lane, Epoch, Partition)>) -> Result<(), Error> {
        let mut partitions = TopicPartitionList::with_capacity(lanes.len());
        for (lane, epoch, partition) in lanes {
            partitions.add_partition(&partition.topic, partition.number);
            // Before it is assigned, so that no record of it goes to the common queue.
            let reading = Reading::new(&self.client, &self.handover, (lane, epoch), partition).ok_or(Error::Broken)?;
            self.readings.push(reading);
            self.handover.open(lane, epoch);
        }
        self.client.incremental_assign(&partitions).map_err(Error::Assign)
    }

    /// Reads lanes no more, and returns those that it read.
    pub(super) fn remove(&mut self, lanes: &[Lane]) -> Result<Vec<(Lane, Epoch)>, Error> {
        let mut partitions = TopicPartitionList::new();
        let mut gone = Vec::new();
        for reading in self.readings.extract_if(.., |reading| lanes.contains(&reading.lane)) {
            partitions.add_partition(&reading.partition.topic, reading.partition.number);
            gone.push((reading.lane, reading.epoch));
            self.missing.remove(&reading.lane);
        }
        if !gone.is_empty() {
            self.client.incremental_unassign(&partitions).map_err(Error::Assign)?;
        }
        Ok(gone)
    }

    /// Is the lane being read, in this epoch?
    pub(super) fn reads(&self, lane: Lane, epoch: Epoch) -> bool {
        self.readings.iter().any(|reading| (reading.lane, reading.epoch) == (lane, epoch))
    }

    /// Begins again with a lane whose topic is not there, as another assignment: if it is made again, it is another one.
    pub(super) fn wait_for(&mut self, lane: Lane, epoch: Epoch, partition: Partition) -> Result<(), Error> {
        let gone = self.remove(&[lane])?;
        self.handover.shut(&gone, crate::source::Event::Lost { lanes: gone.clone() });
        self.add(vec![(lane, epoch, partition)])?;
        self.missing.insert(lane);
        Ok(())
    }

    /// Serves the client's common queue: errors and statistics; and hears what it says of partitions.
    pub(super) fn listen(&mut self, found: &mut Vec<Found>) {
        for _ in 0..TURN_EVENTS {
            match self.client.poll(Duration::ZERO) {
                None => {}
                Some(Err(error)) => found.push(Found::Failed(None, error)),
                Some(Ok(_)) => found.push(Found::Astray),
            }
        }
        for remark in self.client.context().remarks() {
            let is_of = |reading: &&mut Reading| {
                (&*reading.partition.topic, reading.partition.number) == (&*remark.topic, remark.number)
            };
            let Some(reading) = self.readings.iter_mut().find(is_of) else { continue };
            match remark.what {
                What::Reset(at) => reading.reset(at),
                What::Missing if self.missing.contains(&reading.lane) => {}
                What::Missing => found.push(Found::Missing(reading.lane)),
            }
        }
    }

    /// Fills a parcel for each lane that takes one. `true` if there was anything.
    pub(super) fn read(&mut self, found: &mut Vec<Found>) -> bool {
        let mut has_read = false;
        let bytes_max = self.parcel_bytes_max();
        for reading in &mut self.readings {
            if !self.handover.has_room(reading.lane) {
                continue;
            }
            let stop = reading.fill(&mut self.parcel, bytes_max);
            has_read |= !matches!(stop, Stop::Empty) || !self.parcel.is_empty();
            if !self.parcel.is_empty() {
                self.missing.remove(&reading.lane);
                let parcel = std::mem::replace(&mut self.parcel, self.handover.buffer());
                self.handover.put(reading.lane, parcel);
            }
            match stop {
                Stop::Empty | Stop::Full => {}
                Stop::Backwards(first) => {
                    begin_anew(&self.handover, reading, &first);
                    found.push(Found::Anew(first));
                }
                Stop::Error(error) => found.push(Found::Failed(Some(reading.lane), error)),
            }
        }
        has_read
    }

    /// Lanes share what parcels may hold, however many they are: one that is paused keeps what it has.
    fn parcel_bytes_max(&self) -> usize {
        let share = self.parcels_bytes_max / (self.readings.len().max(1) * PARCELS_MAX);
        share.clamp(*PARCEL_BYTES.start(), *PARCEL_BYTES.end())
    }

    /// Passes markers and gaps behind the last record of lanes that were read to their end.
    pub(super) fn pass_gaps(&mut self) {
        for reading in &mut self.readings {
            if let Some(through) = reading.pass_gap() {
                self.handover.pass(reading.lane, through);
            }
        }
    }
}

/// As another assignment, since positions rise within one.
fn begin_anew(handover: &Handover, reading: &mut Reading, first: &Record) {
    let gone = vec![(reading.lane, reading.epoch)];
    reading.begin_anew(first);
    handover.shut(&gone, crate::source::Event::Lost { lanes: gone.clone() });
    handover.open(reading.lane, reading.epoch);
    handover.put(reading.lane, vec![first.clone()]);
}
