//! Cancel keys among peers: whose client it is, and how often a request may still be passed on.
//!
//! A client is told a process id and a secret, 8 bytes in protocol 3.0. In a gateway that is alone the process id says where
//! the client is. With `listen.peer_id` it says which peer has the client, and nothing else: so that there is enough to
//! guess, all other bits are random, and a request costs a look at every client.

/// Bits of a process id that name the peer. The highest bit stays zero, because drivers read a signed number.
const PEER_BITS: u32 = 14;
/// Those below are random.
const RANDOM_BITS: u32 = 31 - PEER_BITS;

/// Bits of the secret's last byte that count how often a request may be passed on.
const HOPS: u8 = 3;

/// How often a client's own request may be passed on. Peers that know each other need it once; it is what ends a circle.
pub const HOPS_MAX: u8 = 3;

/// Added to the number of a peer, so that process ids are above those of Linux (2^22). It makes a circle: only those of the
/// last 32 peers are not.
const PEER_OFFSET: u16 = 1 << (22 - RANDOM_BITS);

/// The process id of a client of that peer.
#[must_use]
pub const fn pid(peer: u16, random: u32) -> u32 {
    let peer = peer.wrapping_add(PEER_OFFSET) as u32 & ((1 << PEER_BITS) - 1);
    (peer << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1))
}

/// The peer that a process id names.
#[must_use]
pub const fn peer_of(pid: u32) -> u16 {
    ((pid >> RANDOM_BITS) as u16).wrapping_sub(PEER_OFFSET) & ((1 << PEER_BITS) - 1)
}

/// How often a request with that secret may still be passed on.
#[must_use]
pub fn hops_of(secret: &[u8]) -> u8 {
    secret.last().map_or(0, |last| last & HOPS)
}

/// The secret of a request that may be passed on so often.
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
