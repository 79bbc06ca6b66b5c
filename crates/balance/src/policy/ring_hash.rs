//! Ring hash: calls with the same hash use the same endpoint.

use std::error::Error;

use super::pick_table::{Candidates, PickState, PickTable, Policy, PolicyMember};

/// Picks the same endpoint for calls with the same [hash](crate::Pick::hash), while that endpoint is usable.
///
/// Each endpoint owns points on a ring, and a call goes to the owner of the next point (Karger et al., "Consistent Hashing and
/// Random Trees", 1997). When one of n endpoints is added or removed, about 1/n of the hashes move; at most twice as many
/// when the ring is full. The points depend only on keys and weights, so all processes agree. The slow start does not
/// apply: it would move each hash twice.
#[derive(Clone, Copy, Debug)]
pub struct RingHash {
    points_max: usize,
}

/// Points of an endpoint of weight 1 while the ring is not full. The shares then differ by about 9 % (1/sqrt(128)).
const POINTS: u64 = 128;

impl RingHash {
    /// A ring of about `points_max` points, with at least one point for each endpoint. When the endpoints together would have
    /// more, the points of all are reduced proportionally.
    pub fn new(points_max: usize) -> Self {
        Self { points_max }
    }
}

impl Default for RingHash {
    /// 16,384 points: 128 endpoints at full resolution.
    fn default() -> Self {
        Self::new(16_384)
    }
}

impl Policy for RingHash {
    fn name(&self) -> &'static str {
        "ring_hash"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        let all_zero = members.iter().all(|member| member.weight == 0);
        let full = |member: &PolicyMember| if all_zero { POINTS } else { u64::from(member.weight) * POINTS };
        let total: u64 = members.iter().map(full).sum();
        let max = (self.points_max as u64).min(total);
        let mut ring = Vec::new();
        for (owner, member) in members.iter().enumerate() {
            let base = hash_bytes(member.key.as_str().as_bytes());
            let points = scaled_points(full(member), max, total, base).max(u64::from(member.weight > 0));
            ring.extend((0..points).map(|point| (mix(base ^ mix(point + 1)), owner as u32)));
        }
        ring.sort_unstable();
        Ok(Box::new(RingTable(ring.into())))
    }
}

/// `full * max / total`, rounded up or down by the endpoint's hash. With one rounding rule for all, all endpoints would lose a
/// point at the same moment when the total grows.
fn scaled_points(full: u64, max: u64, total: u64, base: u64) -> u64 {
    let total = u128::from(total.max(1));
    let rounding = (u128::from(base) * total) >> 64;
    ((u128::from(full) * u128::from(max) + rounding) / total) as u64
}

struct RingTable(Box<[(u64, u32)]>);

impl PickTable for RingTable {
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        // Mixed, because the hash can be a plain number: small numbers are adjacent, and would all use the same point.
        let hash = candidates.hash().map_or_else(|| state.random.u64(..), mix);
        let start = self.0.partition_point(|&(point, _)| point < hash);
        let mut round = self.0[start..].iter().chain(&self.0[..start]).map(|&(_, owner)| owner as usize);
        let found = round.find(|&owner| candidates.allows(owner));
        // Endpoints of weight zero have no points.
        found.or_else(|| candidates.allowed().next())
    }
}

/// Returns a hash that is the same in every process: FNV-1a, then the finaliser of SplitMix64. Not for keys chosen by an
/// adversary, who could direct all calls to one endpoint.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    mix(bytes.iter().fold(0xCBF2_9CE4_8422_2325, step))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
