//! Calls of the same hash to the same endpoint, as long as it is there.

use std::error::Error;

use super::{Local, Member, Policy, Table, View};

/// Calls of the same [hash](crate::Pick::hash) to the same endpoint, as long as it is there.
///
/// Each endpoint owns points on a ring; a call goes to the owner of the next point (Karger et al., "Consistent Hashing
/// and Random Trees", 1997). When one of n endpoints comes or goes, about 1/n of the hashes move; at most twice as many
/// when the ring is full. The points depend on keys and weights alone, so processes agree. A slow start does not apply: it
/// would move hashes twice.
#[derive(Clone, Copy, Debug)]
pub struct RingHash {
    points_max: usize,
}

/// Points of an endpoint of weight 1, while the ring is not full: shares then differ by about 9 % (1/sqrt(128)).
const POINTS: u64 = 128;

impl RingHash {
    /// A ring of about so many points at most, but of one for each endpoint at least. When all together would have more,
    /// every endpoint gets as much less.
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

    fn table(&self, members: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        let all_zero = members.iter().all(|member| member.weight == 0);
        let full = |member: &Member| if all_zero { POINTS } else { u64::from(member.weight) * POINTS };
        let total: u64 = members.iter().map(full).sum();
        let most = (self.points_max as u64).min(total);
        let mut ring = Vec::new();
        for (owner, member) in members.iter().enumerate() {
            let base = hash_of(member.key.as_str().as_bytes());
            let points = share(full(member), most, total, base).max(u64::from(member.weight > 0));
            ring.extend((0..points).map(|point| (mix(base ^ mix(point + 1)), owner as u32)));
        }
        ring.sort_unstable();
        Ok(Box::new(Ring(ring.into())))
    }
}

/// The part of `most` that `full` of `total` is worth. What is left of a whole point is one for some and none for others,
/// by their hashes: so not all lose a point at the same moment when the total grows.
fn share(full: u64, most: u64, total: u64, base: u64) -> u64 {
    let whole = u128::from(total.max(1));
    let luck = (u128::from(base) * whole) >> 64;
    ((u128::from(full) * u128::from(most) + luck) / whole) as u64
}

struct Ring(Box<[(u64, u32)]>);

impl Table for Ring {
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        // Mixed, since it may be a plain number: those of few digits lie side by side, before one and the same point.
        let hash = view.wants.hash.map_or_else(|| local.random.u64(..), mix);
        let start = self.0.partition_point(|&(point, _)| point < hash);
        let mut round = self.0[start..].iter().chain(&self.0[..start]).map(|&(_, owner)| owner as usize);
        let found = round.find(|&owner| view.allows(owner));
        // Those of no weight are not on the ring.
        found.or_else(|| view.allowed().next())
    }
}

/// A hash of bytes that is the same in every process: FNV-1a, then the finaliser of SplitMix64 to spread it. Not for
/// keys that an adversary chooses to hit one endpoint.
pub fn hash_of(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    mix(bytes.iter().fold(0xCBF2_9CE4_8422_2325, step))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
