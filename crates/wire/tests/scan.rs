//! The scanner returns the same messages however the stream is cut into chunks.

use proptest::prelude::*;
use tidegate_wire::{Delivery, Frames, MessageHeader, ScanStep, Scanner};

fn messages() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let body = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..12),
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ];
    prop::collection::vec((any::<u8>(), body), 0..12)
}

fn encode(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, body) in messages {
        bytes.push(*tag);
        bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Messages with an odd tag are delivered whole.
fn delivery(tag: u8) -> Delivery {
    if tag % 2 == 1 { Delivery::Whole } else { Delivery::Stream }
}

/// Reassembles the messages from the steps, and checks the contract of each step.
#[derive(Default)]
struct Collector {
    done: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl Collector {
    fn read(&mut self, scanner: &mut Scanner, chunk: &[u8]) {
        let mut at = 0;
        loop {
            let step = scanner.step(chunk, at, delivery).expect("the messages are well-formed");
            at = match step {
                ScanStep::Message { end, .. } => {
                    assert!(self.open.is_empty());
                    self.done.push(chunk[at..end].to_vec());
                    end
                }
                ScanStep::Carried { tag, end } => {
                    assert!(self.open.is_empty() && scanner.is_between_messages());
                    assert_eq!(scanner.carry().first(), Some(&tag));
                    self.done.push(scanner.carry().to_vec());
                    end
                }
                ScanStep::StreamHead { tag, end } => {
                    assert!(self.open.is_empty() && delivery(tag) == Delivery::Stream);
                    self.open = scanner.take_carry();
                    end
                }
                ScanStep::Stream { tag, end, first, last } => {
                    self.stream(tag, first, last, &chunk[at..end]);
                    assert_eq!(scanner.is_between_messages(), last);
                    end
                }
                ScanStep::NeedMore => return,
            };
        }
    }

    fn stream(&mut self, tag: u8, first: bool, last: bool, piece: &[u8]) {
        assert!(delivery(tag) == Delivery::Stream && !piece.is_empty());
        assert_eq!(self.open.is_empty(), first);
        self.open.extend_from_slice(piece);
        assert_eq!(self.open[0], tag);
        if last {
            self.done.push(std::mem::take(&mut self.open));
        }
    }
}

proptest! {
    #[test]
    fn every_split_gives_the_same_messages(messages in messages(), cuts in prop::collection::vec(0.0..1.0_f64, 0..40)) {
        let bytes = encode(&messages);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let (mut scanner, mut collector) = (Scanner::new(1 << 20), Collector::default());
        for ends in cuts.windows(2) {
            collector.read(&mut scanner, &bytes[ends[0]..ends[1]]);
            let returned: usize = collector.done.iter().map(Vec::len).sum();
            prop_assert_eq!(scanner.is_between_messages(), returned == ends[1]);
        }
        let expected: Vec<_> = messages.iter().map(|message| encode(std::slice::from_ref(message))).collect();
        prop_assert_eq!(collector.done, expected);
    }

    #[test]
    fn single_bytes_give_the_same_messages(messages in messages()) {
        let (mut scanner, mut collector) = (Scanner::new(1 << 20), Collector::default());
        for byte in encode(&messages) {
            collector.read(&mut scanner, &[byte]);
        }
        let expected: Vec<_> = messages.iter().map(|message| encode(std::slice::from_ref(message))).collect();
        prop_assert_eq!(collector.done, expected);
    }

    #[test]
    fn frames_returns_the_messages_and_leaves_the_rest(messages in messages(), tail in 0_usize..5) {
        let mut bytes = encode(&messages);
        bytes.extend_from_slice(&b"Q\0\0\0\x0a"[..tail]);
        let mut frames = Frames::new(&bytes);
        for (tag, body) in &messages {
            let frame = frames.next().expect("one frame a message").expect("it is well-formed");
            prop_assert_eq!((frame.tag, frame.body()), (*tag, body.as_slice()));
        }
        prop_assert!(frames.next().is_none());
        prop_assert_eq!(frames.rest().len(), tail);
    }

    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0_usize..64) {
        let mut scanner = Scanner::new(1000);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        'chunks: for chunk in [first, second] {
            let mut at = 0;
            while let Ok(step) = scanner.step(chunk, at, delivery) {
                at = match step {
                    ScanStep::Message { end, .. } | ScanStep::Carried { end, .. } => end,
                    ScanStep::StreamHead { end, .. } | ScanStep::Stream { end, .. } => end,
                    ScanStep::NeedMore => continue 'chunks,
                };
            }
            break;
        }
    }
}

#[test]
fn header_lengths_have_a_minimum_and_a_maximum() {
    assert_eq!(MessageHeader::peek(b"Q\0\0\0"), Ok(None));
    assert_eq!(MessageHeader::peek(b"Q\0\0\0\x04").map(|header| header.map(MessageHeader::total)), Ok(Some(5)));
    assert!(MessageHeader::peek(b"Q\x40\0\0\0").is_ok());
    for bytes in [b"Q\0\0\0\x03", b"Q\x40\0\0\x01", b"Q\xff\xff\xff\xff"] {
        let error = MessageHeader::peek(bytes).expect_err("the length is out of range");
        assert_eq!(error.offset, 1);
    }
}

#[test]
fn frames_ends_at_an_error() {
    let mut frames = Frames::new(b"S\0\0\0\x04Q\0\0\0\0S\0\0\0\x04");
    assert!(frames.next().is_some_and(|frame| frame.is_ok()));
    assert_eq!(frames.next().and_then(Result::err).map(|error| error.offset), Some(6));
    assert!(frames.next().is_none());
}
