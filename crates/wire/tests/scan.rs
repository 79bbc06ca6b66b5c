//! However a stream of messages is cut into chunks, the scanner tells the same messages.

use proptest::prelude::*;
use tidegate_wire::{Header, Scanner, Step, Walk, Want};

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

/// Odd tags are wanted whole.
fn want(tag: u8) -> Want {
    if tag % 2 == 1 { Want::Whole } else { Want::Stream }
}

/// Puts the messages together again from what the scanner tells, and checks its promises on the way.
#[derive(Default)]
struct Collector {
    done: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl Collector {
    fn read(&mut self, scanner: &mut Scanner, chunk: &[u8]) {
        let mut at = 0;
        loop {
            let step = scanner.step(chunk, at, want).expect("the messages are well-formed");
            at = match step {
                Step::Message { end, .. } => {
                    assert!(self.open.is_empty());
                    self.done.push(chunk[at..end].to_vec());
                    end
                }
                Step::Carried { tag, end } => {
                    assert!(self.open.is_empty() && scanner.is_between_messages());
                    assert_eq!(scanner.carry().first(), Some(&tag));
                    self.done.push(scanner.carry().to_vec());
                    end
                }
                Step::StreamHead { tag, end } => {
                    assert!(self.open.is_empty() && want(tag) == Want::Stream);
                    self.open = scanner.take_carry();
                    end
                }
                Step::Stream { tag, end, first, last } => {
                    self.stream(tag, first, last, &chunk[at..end]);
                    assert_eq!(scanner.is_between_messages(), last);
                    end
                }
                Step::NeedMore => return,
            };
        }
    }

    fn stream(&mut self, tag: u8, first: bool, last: bool, piece: &[u8]) {
        assert!(want(tag) == Want::Stream && !piece.is_empty());
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
    fn any_cut_gives_the_same_messages(messages in messages(), cuts in prop::collection::vec(0.0..1.0_f64, 0..40)) {
        let bytes = encode(&messages);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let (mut scanner, mut collector) = (Scanner::new(1 << 20), Collector::default());
        for ends in cuts.windows(2) {
            collector.read(&mut scanner, &bytes[ends[0]..ends[1]]);
            let told: usize = collector.done.iter().map(Vec::len).sum();
            prop_assert_eq!(scanner.is_between_messages(), told == ends[1]);
        }
        let expected: Vec<_> = messages.iter().map(|message| encode(std::slice::from_ref(message))).collect();
        prop_assert_eq!(collector.done, expected);
    }

    #[test]
    fn byte_by_byte_gives_the_same_messages(messages in messages()) {
        let (mut scanner, mut collector) = (Scanner::new(1 << 20), Collector::default());
        for byte in encode(&messages) {
            collector.read(&mut scanner, &[byte]);
        }
        let expected: Vec<_> = messages.iter().map(|message| encode(std::slice::from_ref(message))).collect();
        prop_assert_eq!(collector.done, expected);
    }

    #[test]
    fn walk_agrees_with_the_messages_and_leaves_the_rest(messages in messages(), tail in 0_usize..5) {
        let mut bytes = encode(&messages);
        bytes.extend_from_slice(&b"Q\0\0\0\x0a"[..tail]);
        let mut walk = Walk::new(&bytes);
        for (tag, body) in &messages {
            let frame = walk.next().expect("one frame a message").expect("it is well-formed");
            prop_assert_eq!((frame.tag, frame.body()), (*tag, body.as_slice()));
        }
        prop_assert!(walk.next().is_none());
        prop_assert_eq!(walk.rest().len(), tail);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0_usize..64) {
        let mut scanner = Scanner::new(1000);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        'chunks: for chunk in [first, second] {
            let mut at = 0;
            while let Ok(step) = scanner.step(chunk, at, want) {
                at = match step {
                    Step::Message { end, .. } | Step::Carried { end, .. } => end,
                    Step::StreamHead { end, .. } | Step::Stream { end, .. } => end,
                    Step::NeedMore => continue 'chunks,
                };
            }
            break;
        }
    }
}

#[test]
fn header_lengths_are_checked_at_both_ends() {
    assert_eq!(Header::peek(b"Q\0\0\0"), Ok(None));
    assert_eq!(Header::peek(b"Q\0\0\0\x04").map(|header| header.map(Header::total)), Ok(Some(5)));
    assert!(Header::peek(b"Q\x40\0\0\0").is_ok());
    for bytes in [b"Q\0\0\0\x03", b"Q\x40\0\0\x01", b"Q\xff\xff\xff\xff"] {
        let error = Header::peek(bytes).expect_err("the length is out of range");
        assert_eq!(error.offset, 1);
    }
}

#[test]
fn walk_stops_at_an_error() {
    let mut walk = Walk::new(b"S\0\0\0\x04Q\0\0\0\0S\0\0\0\x04");
    assert!(walk.next().is_some_and(|frame| frame.is_ok()));
    assert_eq!(walk.next().and_then(Result::err).map(|error| error.offset), Some(6));
    assert!(walk.next().is_none());
}
