//! Cancel keys among peers: they identify the peer of a client and limit how often a request is forwarded.
//!
//! A client gets a process id and a secret, 8 bytes in protocol 3.0. In a single gateway the process id is derived from the
//! slot of the client. With `listen.peer_id` it identifies the peer only: all other bits are random, so that a key cannot be
//! guessed, and a request is matched against every client.

/// Bits of a process id for the peer. The sign bit stays zero, because drivers parse a signed number.
const PEER_BITS: u32 = 14;
/// The bits below are random.
const RANDOM_BITS: u32 = 31 - PEER_BITS;

/// Bits of the last byte of the secret that count the remaining hops.
const HOPS: u8 = 3;

/// Hops of a client's own request. Peers that know each other need one; the limit ends loops.
pub const HOPS_MAX: u8 = 3;

/// Added to the number of a peer, modulo the range, so that process ids are above those of Linux (2^22) for all but the last
/// 32 peers.
const PEER_OFFSET: u16 = 1 << (22 - RANDOM_BITS);

/// The process id of a client of that peer.
#[must_use]
pub const fn pid(peer: u16, random: u32) -> u32 {
    let peer = peer.wrapping_add(PEER_OFFSET) as u32 & ((1 << PEER_BITS) - 1);
    (peer << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1))
}

/// The peer of a process id.
#[must_use]
pub const fn peer_of(pid: u32) -> u16 {
    ((pid >> RANDOM_BITS) as u16).wrapping_sub(PEER_OFFSET) & ((1 << PEER_BITS) - 1)
}

/// Remaining hops of a request with this secret.
#[must_use]
pub fn hops_of(secret: &[u8]) -> u8 {
    secret.last().map_or(0, |last| last & HOPS)
}

/// The secret with that number of hops.
#[must_use]
pub fn with_hops(secret: &[u8], hops: u8) -> Box<[u8]> {
    let mut secret: Box<[u8]> = secret.into();
    if let Some(last) = secret.last_mut() {
        *last = (*last & !HOPS) | (hops & HOPS);
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_id_names_its_peer_and_is_positive() {
        for peer in [1, 2, 77, 16_351, 16_383] {
            for random in [1, 2, u32::MAX] {
                let pid = pid(peer, random);
                assert_eq!(peer_of(pid), peer);
                assert!(pid > 0 && i32::try_from(pid).is_ok());
                assert!(pid > 1 << 22 || peer > 16_351);
            }
        }
    }

    #[test]
    fn hops_are_counted_beside_the_secret() {
        let secret = with_hops(&[1, 2, 3, 0xff], 2);
        assert_eq!((hops_of(&secret), &secret[..]), (2, &[1, 2, 3, 0xfe][..]));
        assert_eq!(with_hops(&secret, HOPS_MAX), with_hops(&[1, 2, 3, 0xfc], HOPS_MAX));
        assert_eq!(hops_of(&[]), 0);
    }
}
