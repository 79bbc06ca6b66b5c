//! The handover by itself.

use std::sync::Arc;

use super::*;

const WIDE: Room = Room { records: 10, bytes: 1_000 };

fn record(lane: u32, position: u64) -> Record {
    Record::new(Lane(lane), Epoch(1), Position(position), None, Some(&[0; 10]))
}

fn poll(handover: &Handover, room: Room) -> (Option<Event>, Vec<u64>) {
    let mut batch = Vec::new();
    let polled = handover.poll(&mut Context::from_waker(Waker::noop()), room, &mut batch);
    let event = match polled {
        Poll::Ready(event) => Some(event.expect("no end")),
        Poll::Pending => None,
    };
    (event, batch.iter().map(|record| record.position().0).collect())
}

fn opened(lanes: u32) -> Arc<Handover> {
    let handover = Arc::new(Handover::default());
    for lane in 0..lanes {
        handover.open(Lane(lane), Epoch(1));
        assert!(matches!(poll(&handover, WIDE).0, Some(Event::Assigned { .. })));
    }
    handover
}

#[test]
fn lanes_take_turns_and_keep_their_order() {
    let handover = opened(2);
    for position in [0, 2] {
        handover.put(Lane(0), vec![record(0, position), record(0, position + 1)]);
        handover.put(Lane(1), vec![record(1, 100 + position)]);
    }
    assert!(!handover.has_room(Lane(0)));
    let batches: Vec<Vec<u64>> = std::iter::repeat_with(|| poll(&handover, WIDE).1).take(4).collect();
    assert_eq!(batches, [vec![0, 1], vec![100], vec![2, 3], vec![102]]);
    assert_eq!((handover.has_room(Lane(0)), handover.buffered_bytes()), (true, 0));
}

#[test]
fn a_parcel_is_split_where_the_room_ends() {
    let handover = opened(1);
    handover.put(Lane(0), (0..5).map(|position| record(0, position)).collect());
    assert_eq!(poll(&handover, Room { records: 0, bytes: 0 }), (None, vec![]));
    assert_eq!(poll(&handover, Room { records: 2, bytes: 1_000 }).1, [0, 1]);
    assert_eq!(poll(&handover, Room { records: 10, bytes: 1 }).1, [2]);
    assert_eq!(handover.buffered_bytes(), 20);
    assert_eq!(poll(&handover, WIDE).1, [3, 4]);
}

#[test]
fn a_gap_comes_behind_the_records_before_it_even_without_room() {
    let handover = opened(1);
    handover.put(Lane(0), vec![record(0, 1)]);
    handover.pass(Lane(0), Position(7));
    assert_eq!(poll(&handover, Room { records: 0, bytes: 0 }).0, None);
    assert_eq!(poll(&handover, WIDE).1, [1]);
    let passed = Event::Passed { lane: Lane(0), epoch: Epoch(1), through: Position(7) };
    assert_eq!(poll(&handover, Room { records: 0, bytes: 0 }).0, Some(passed));
}

#[test]
fn what_is_paused_stays_and_counts() {
    let handover = opened(1);
    handover.put(Lane(0), vec![record(0, 1)]);
    handover.set_paused(Lane(0), Epoch(1), true);
    assert_eq!((poll(&handover, WIDE).0, handover.buffered_bytes()), (None, 10));
    handover.set_paused(Lane(0), Epoch(0), false);
    assert_eq!(poll(&handover, WIDE).0, None, "a wish of an epoch that is over");
    handover.set_paused(Lane(0), Epoch(1), false);
    assert_eq!(poll(&handover, WIDE).1, [1]);
}

#[test]
fn nothing_of_a_lane_that_was_shut_follows() {
    let handover = opened(2);
    handover.put(Lane(0), vec![record(0, 1)]);
    handover.put(Lane(1), vec![record(1, 1)]);
    let mark = |lane| Mark { lane: Lane(lane), epoch: Epoch(1), through: Position(1) };
    handover.commit(&[mark(0), mark(1)]);
    let gone = vec![(Lane(0), Epoch(1))];
    handover.shut(&gone, Event::Lost { lanes: gone.clone() });
    assert_eq!(poll(&handover, WIDE).0, Some(Event::Lost { lanes: gone }));
    assert_eq!(poll(&handover, WIDE), (Some(Event::Records), vec![1]));
    assert_eq!((poll(&handover, WIDE).0, handover.buffered_bytes()), (None, 0));
    assert_eq!(handover.wishes().marks, [mark(1)]);
}

#[test]
fn a_later_mark_of_a_lane_replaces_the_earlier_one() {
    let handover = opened(1);
    let mark = |through| Mark { lane: Lane(0), epoch: Epoch(1), through: Position(through) };
    handover.commit(&[mark(1)]);
    handover.commit(&[mark(2)]);
    assert_eq!(handover.wishes().marks, [mark(2)]);
    assert!(handover.wishes().marks.is_empty());
}
