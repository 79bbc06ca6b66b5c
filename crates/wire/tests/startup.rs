//! The kinds of first packets, and packets that are refused.

use proptest::prelude::*;
use tidegate_wire::startup::{self, FirstPacket, NegotiateProtocolVersion, PACKET_MAX, StartupMessage};
use tidegate_wire::{DecodeError, DecodeErrorKind};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn packet(code: u32, rest: &[u8]) -> Vec<u8> {
    [&(rest.len() as u32 + 8).to_be_bytes(), &code.to_be_bytes(), rest].concat()
}

fn session(packet: &[u8]) -> StartupMessage<'_> {
    match FirstPacket::decode(packet) {
        Ok(FirstPacket::Startup(startup)) => startup,
        other => panic!("not a startup packet: {other:?}"),
    }
}

#[test]
fn requests_have_the_documented_bytes() {
    let ssl = written(startup::ssl_request);
    assert_eq!(ssl, [0, 0, 0, 8, 4, 210, 22, 47]);
    assert_eq!(FirstPacket::decode(&ssl), Ok(FirstPacket::Ssl));
    let gss = written(startup::gss_request);
    assert_eq!(gss, [0, 0, 0, 8, 4, 210, 22, 48]);
    assert_eq!(FirstPacket::decode(&gss), Ok(FirstPacket::Gss));
    let cancel = written(|out| startup::cancel_request(7, b"key!", out));
    assert_eq!(cancel, b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07key!");
    assert_eq!(FirstPacket::decode(&cancel), Ok(FirstPacket::Cancel { pid: 7, key: b"key!" }));
    let start = written(|out| startup::startup(2, &[(b"user", b"a")], out));
    assert_eq!(start, b"\0\0\0\x10\0\x03\0\x02user\0a\0\0");
}

#[test]
fn last_value_of_a_parameter_counts() {
    let params: &[(&[u8], &[u8])] =
        &[(b"user", b"a"), (b"database", b""), (b"user", b"\xff"), (b"_pq_.x", b"1"), (b"options", b"-c a=b")];
    let packet = written(|out| startup::startup(0, params, out));
    let startup = session(&packet);
    assert_eq!(startup.minor, 0);
    assert_eq!(startup.params().collect::<Vec<_>>(), params);
    assert_eq!(startup.get("user"), Some(b"\xff".as_slice()));
    assert_eq!(startup.text("user"), None);
    assert_eq!(startup.text("database"), Some(""));
    assert_eq!(startup.get("use"), None);
    assert_eq!(startup.extensions().collect::<Vec<_>>(), [b"_pq_.x"]);
}

#[test]
fn other_versions_are_refused_by_number() {
    for (code, major, minor) in [(2 << 16, 2, 0), (4 << 16 | 1, 4, 1), (1234 << 16 | 5681, 1234, 5681), (0, 0, 0)] {
        let expected = DecodeError { offset: 4, kind: DecodeErrorKind::Version { major, minor } };
        assert_eq!(FirstPacket::decode(&packet(code, b"\0")), Err(expected));
    }
    assert_eq!(session(&packet(3 << 16 | 9999, b"\0")).minor, 9999);
}

#[test]
fn length_is_checked_before_the_body_arrives() {
    assert_eq!(startup::peek_len(b"\0\0\0"), Ok(None));
    assert_eq!(startup::peek_len(b"\0\0\0\x08"), Ok(Some(8)));
    assert_eq!(startup::peek_len(&10_000_u32.to_be_bytes()), Ok(Some(PACKET_MAX)));
    for len in [0, 3, 7, 10_001, u32::MAX] {
        assert!(startup::peek_len(&len.to_be_bytes()).is_err(), "{len}");
    }
    assert!(startup::peek_len(b"GET / HTTP/1.1").is_err());
}

#[test]
fn broken_packets_are_errors_with_their_offset() {
    let at = |bytes: &[u8]| FirstPacket::decode(bytes).map(|_| ()).map_err(|error| error.offset);
    assert_eq!(at(b""), Err(0));
    assert_eq!(at(b"\0\0\0\x08\0\x03"), Err(6));
    assert_eq!(at(&packet(3 << 16, b"")), Err(8));
    assert_eq!(at(&packet(3 << 16, b"user\0a\0")), Err(15));
    assert_eq!(at(&packet(3 << 16, b"user\0\0")), Err(14));
    assert_eq!(at(&packet(3 << 16, b"user\0a\0\0x")), Err(16));
    assert_eq!(at(&packet(80_877_103, b"x")), Err(8));
    assert_eq!(at(&packet(80_877_102, b"pid.key")), Err(12));
    assert_eq!(at(&packet(80_877_102, &[0; 4 + 257])), Err(12));
    assert_eq!(at(&packet(80_877_102, &[0; 4 + 256])), Ok(()));
    let mut trailing = packet(80_877_103, b"");
    trailing.push(0);
    assert_eq!(at(&trailing), Err(8));
}

#[test]
fn negotiation_may_omit_the_major_version() {
    for version in [b"\0\x03\0\x02", b"\0\0\0\x02"] {
        let body = [version.as_slice(), b"\0\0\0\x01_pq_.x\0"].concat();
        let negotiate = NegotiateProtocolVersion::decode(&body).expect("a negotiation");
        assert_eq!(negotiate.minor, 2);
        assert_eq!(negotiate.unknown().collect::<Vec<_>>(), [b"_pq_.x"]);
    }
    assert!(NegotiateProtocolVersion::decode(b"\0\x04\0\0\0\0\0\0").is_err());
    assert!(NegotiateProtocolVersion::decode(b"\0\x03\0\0\xff\xff\xff\xffa\0").is_err());
    assert!(NegotiateProtocolVersion::decode(b"\0\x03\0\0\0\0\0\0a\0").is_err());
}

proptest! {
    #[test]
    fn startup_message_is_decoded_as_encoded(minor: u16, params in prop::collection::vec(
        (prop::collection::vec(1..=255_u8, 1..8), prop::collection::vec(1..=255_u8, 0..8)), 0..6)) {
        let params: Vec<_> = params.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let packet = written(|out| startup::startup(minor, &params, out));
        prop_assert_eq!(startup::peek_len(&packet), Ok(Some(packet.len())));
        let startup = session(&packet);
        prop_assert_eq!(startup.minor, minor);
        prop_assert_eq!(startup.params().collect::<Vec<_>>(), params);
    }

    #[test]
    fn parameter_without_a_name_is_left_out(value in prop::collection::vec(any::<u8>(), 0..5)) {
        let params: &[(&[u8], &[u8])] = &[(b"", &value), (b"\0x", &value), (b"user", b"a")];
        let packet = written(|out| startup::startup(0, params, out));
        prop_assert_eq!(session(&packet).get("user"), Some(b"a".as_slice()));
    }

    #[test]
    fn escaped_options_are_parsed(settings in prop::collection::vec(("[a-z_]{1,8}", ".{0,8}"), 0..4), long: bool) {
        let escape = |value: &str| value.chars().fold(String::new(), |mut text, c| {
            if c == '\\' || c.is_ascii_whitespace() || c == '\x0b' { text.push('\\'); }
            text.push(c);
            text
        });
        let option = if long { "--" } else { "-c " };
        let words: Vec<_> = settings.iter().map(|(name, value)| format!("{option}{name}={}", escape(value))).collect();
        prop_assert_eq!(startup::parse_options(words.join(" ").as_bytes()), Ok(settings));
    }
}
