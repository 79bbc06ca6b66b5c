use tidegate_wire::{DecodeError, Delivery, ScanStep, Scanner};

const LIMIT_WHOLE: usize = 300;

/// The scanner: every split of the bytes gives the same messages, the same end, and accounts for every byte.
///
/// The first byte seeds the sizes of the chunks.
pub fn scan(data: &[u8]) {
    let Some((seed, bytes)) = data.split_first() else {
        return;
    };
    let whole = run(bytes, std::iter::repeat(usize::MAX));
    let single = run(bytes, std::iter::repeat(1));
    let mixed = run(bytes, sizes(u32::from(*seed)));
    assert_eq!(whole, single);
    assert_eq!(whole, mixed);
}

fn sizes(mut state: u32) -> impl Iterator<Item = usize> {
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 13 + 1
    })
}

fn delivery(tag: u8) -> Delivery {
    if tag % 2 == 1 { Delivery::Whole } else { Delivery::Stream }
}

/// The complete messages of a stream, their number, and whether it ended in an error.
#[derive(Debug, Default, PartialEq, Eq)]
struct ScanResult {
    bytes: Vec<u8>,
    messages: usize,
    broken: bool,
}

fn run(mut bytes: &[u8], mut sizes: impl Iterator<Item = usize>) -> ScanResult {
    let (mut scanner, mut result, mut open) = (Scanner::new(LIMIT_WHOLE), ScanResult::default(), Vec::new());
    let mut taken = 0;
    while !bytes.is_empty() && !result.broken {
        let (chunk, rest) = bytes.split_at(sizes.next().unwrap_or(1).min(bytes.len()));
        result.broken = read(&mut scanner, chunk, &mut result, &mut open).is_err();
        taken += chunk.len();
        bytes = rest;
        if !result.broken {
            assert_eq!(scanner.is_between_messages(), result.bytes.len() == taken);
        }
    }
    result
}

fn read(scanner: &mut Scanner, chunk: &[u8], result: &mut ScanResult, open: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut at = 0;
    loop {
        let (piece, end, last) = match scanner.step(chunk, at, delivery)? {
            ScanStep::Message { end, .. } => (&chunk[at..end], end, true),
            ScanStep::Carried { end, .. } => (scanner.carry(), end, true),
            ScanStep::StreamHead { end, .. } => (scanner.carry(), end, false),
            ScanStep::Stream { end, last, .. } => (&chunk[at..end], end, last),
            ScanStep::NeedMore => return Ok(()),
        };
        assert!(end <= chunk.len() && (end > at || !piece.is_empty()));
        open.extend_from_slice(piece);
        if last {
            result.bytes.append(open);
            result.messages += 1;
        }
        at = end;
    }
}
