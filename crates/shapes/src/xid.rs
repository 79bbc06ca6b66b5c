//! Transaction IDs in 64 bits.

/// Widens the 32 bits of the stream: the number nearest to `near`. IDs in use are less than 2^31 apart (SH-04).
#[must_use]
pub(crate) fn widen(xid: u32, near: u64) -> u64 {
    let low = near & !u64::from(u32::MAX) | u64::from(xid);
    let candidates = [low.checked_sub(1 << 32), Some(low), low.checked_add(1 << 32)];
    candidates.into_iter().flatten().min_by_key(|candidate| candidate.abs_diff(near)).unwrap_or(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SH-04.
    #[test]
    fn nearest_number_is_chosen() {
        for near in [1_000_u64, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (7 << 32) + 5, (1 << 40) - 3] {
            for distance in [0, 1, 2, 1000, 1 << 20, (1 << 31) - 1] {
                for full in [Some(near + distance), near.checked_sub(distance)].into_iter().flatten() {
                    let xid = u32::try_from(full & u64::from(u32::MAX)).unwrap();
                    assert_eq!(widen(xid, near), full, "{full} near {near}");
                }
            }
        }
    }
}
