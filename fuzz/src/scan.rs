use tidegate_wire::{DecodeError, Scanner, Step, Want};

const LIMIT_WHOLE: usize = 300;

/// The scanner: however the bytes are cut, the same messages, the same end, and every byte accounted for.
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

fn want(tag: u8) -> Want {
    if tag % 2 == 1 { Want::Whole } else { Want::Stream }
}

/// What was told of a stream: the complete messages one after the other, how many they are, and whether it broke.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    bytes: Vec<u8>,
    messages: usize,
    broken: bool,
}

fn run(mut bytes: &[u8], mut sizes: impl Iterator<Item = usize>) -> Told {
    let (mut scanner, mut told, mut open) = (Scanner::new(LIMIT_WHOLE), Told::default(), Vec::new());
    let mut taken = 0;
    while !bytes.is_empty() && !told.broken {
        let (chunk, rest) = bytes.split_at(sizes.next().unwrap_or(1).min(bytes.len()));
        told.broken = read(&mut scanner, chunk, &mut told, &mut open).is_err();
        taken += chunk.len();
        bytes = rest;
        if !told.broken {
            assert_eq!(scanner.is_between_messages(), told.bytes.len() == taken);
        }
    }
    told
}

fn read(scanner: &mut Scanner, chunk: &[u8], told: &mut Told, open: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut at = 0;
    loop {
        let (piece, end, last) = match scanner.step(chunk, at, want)? {
            Step::Message { end, .. } => (&chunk[at..end], end, true),
            Step::Carried { end, .. } => (scanner.carry(), end, true),
            Step::StreamHead { end, .. } => (scanner.carry(), end, false),
            Step::Stream { end, last, .. } => (&chunk[at..end], end, last),
            Step::NeedMore => return Ok(()),
        };
        assert!(end <= chunk.len() && (end > at || !piece.is_empty()));
        open.extend_from_slice(piece);
        if last {
            told.bytes.append(open);
            told.messages += 1;
        }
        at = end;
    }
}
