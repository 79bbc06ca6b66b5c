//! The form of log messages in memory and on disk: items of a position, a length and a JSON text.

use crate::offset::LogOffset;

/// Position (two 64-bit numbers) and length (32 bits) of an item, little-endian.
const HEADER_LEN: usize = 20;

/// Appends an item; `push` appends its JSON text.
pub(crate) fn push_item(out: &mut Vec<u8>, offset: LogOffset, push: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&offset.tx.to_le_bytes());
    out.extend_from_slice(&offset.op.to_le_bytes());
    let len_at = out.len();
    out.extend_from_slice(&[0; 4]);
    push(out);
    let len = u32::try_from(out.len() - len_at - 4).expect("a message is shorter than a Postgres message");
    out[len_at..len_at + 4].copy_from_slice(&len.to_le_bytes());
}

/// The items of a run. Ends at the first malformed one; runs on disk have checksums.
pub(crate) fn items(mut run: &[u8]) -> impl Iterator<Item = (LogOffset, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = run.split_at_checked(HEADER_LEN)?;
        let number = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let len = u32::from_le_bytes(header.get(16..20)?.try_into().ok()?);
        let (json, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        run = rest;
        Some((LogOffset { tx: number(0)?, op: number(8)? }, json))
    })
}

/// Appends the JSON texts of the items in `(after, end]` to `out`, separated by commas.
pub(crate) fn push_messages(out: &mut Vec<u8>, run: &[u8], after: LogOffset, end: LogOffset) {
    for (_, json) in items(run).filter(|(offset, _)| *offset > after && *offset <= end) {
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(json);
    }
}

/// Appends the items in `(after, end]` as server-sent events. JSON texts have no line breaks.
pub(crate) fn push_events(out: &mut Vec<u8>, run: &[u8], after: LogOffset, end: LogOffset) {
    for (_, json) in items(run).filter(|(offset, _)| *offset > after && *offset <= end) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(json);
        out.extend_from_slice(b"\n\n");
    }
}

/// Finds the ends of full chunks: the item that crosses `threshold` closes a chunk and is in it. `open_bytes` counts the
/// bytes of the chunk that is not full.
pub(crate) fn chunk_ends(run: &[u8], threshold: u64, open_bytes: &mut u64) -> Vec<LogOffset> {
    let mut ends = Vec::new();
    for (offset, json) in items(run) {
        *open_bytes += json.len() as u64;
        if *open_bytes >= threshold {
            ends.push(offset);
            *open_bytes = 0;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lens: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        for (op, len) in lens.iter().enumerate() {
            let offset = LogOffset { tx: 9, op: op as u64 * 2 };
            push_item(&mut out, offset, |out| out.resize(out.len() + len, b'x'));
        }
        out
    }

    #[test]
    fn messages_of_a_range_are_joined() {
        let mut bytes = Vec::new();
        for (op, text) in ["a", "b", "c"].iter().enumerate() {
            push_item(&mut bytes, LogOffset { tx: 9, op: op as u64 }, |out| out.extend_from_slice(text.as_bytes()));
        }
        let text = |after: u64, end: u64| {
            let mut out = Vec::new();
            push_messages(&mut out, &bytes, LogOffset { tx: 9, op: after }, LogOffset { tx: 9, op: end });
            String::from_utf8(out).unwrap()
        };
        assert_eq!([text(0, 2), text(0, 1), text(2, 9)], ["b,c", "b", ""]);
    }

    /// SH-17: sizes around the threshold.
    #[test]
    fn row_that_crosses_the_threshold_closes_the_chunk() {
        for (lens, ends, open) in
            [(&[99][..], &[][..], 99), (&[100], &[0], 0), (&[99, 1, 5], &[2], 5), (&[250, 99, 1], &[0, 4], 0)]
        {
            let mut open_bytes = 0;
            let found = chunk_ends(&run(lens), 100, &mut open_bytes);
            assert_eq!(found.iter().map(|end| end.op).collect::<Vec<_>>(), ends, "{lens:?}");
            assert_eq!(open_bytes, open);
        }
    }

    /// Chunk ends do not depend on how the messages were grouped into runs, so a replay has the same ones.
    #[test]
    fn grouping_does_not_move_chunk_ends() {
        let lens: Vec<usize> = (0..200).map(|n| (n * 7919) % 61).collect();
        let whole = run(&lens);
        let mut open_bytes = 0;
        let expected = chunk_ends(&whole, 100, &mut open_bytes);
        let mut parts = Vec::new();
        let mut open_in_parts = 0;
        for (offset, json) in items(&whole) {
            let mut single = Vec::new();
            push_item(&mut single, offset, |out| out.extend_from_slice(json));
            parts.extend(chunk_ends(&single, 100, &mut open_in_parts));
        }
        assert_eq!((parts, open_in_parts), (expected, open_bytes));
    }

    #[test]
    fn damaged_run_ends_early() {
        let whole = run(&[10, 20]);
        for len in 0..whole.len() {
            assert!(items(&whole[..len]).count() < 2);
        }
    }
}
