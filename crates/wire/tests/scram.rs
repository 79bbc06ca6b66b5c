//! SCRAM-SHA-256 against the vectors of the RFCs, against itself, and against malicious peers.

use proptest::prelude::*;
use tidegate_wire::auth::scram::{
    ChannelBinding, ITERATIONS_MAX, MECHANISM, MECHANISM_PLUS, MESSAGE_MAX, Nonce, SaltedKeys, ScramClient, ScramError,
    ScramSecret, ScramServer, Verifier, normalize,
};

const SALT: &[u8] = b"0123456789abcdef";

fn nonce(text: &str) -> Nonce {
    Nonce::from_text(text).expect("the nonce is printable")
}

fn client(password: &[u8], binding: ChannelBinding) -> ScramClient {
    ScramClient::new(ScramSecret::Password(password.to_vec()), nonce("client"), binding)
}

fn server(password: &[u8], binding: ChannelBinding) -> ScramServer {
    ScramServer::new(Verifier::derive(password, SALT, 2), nonce("server"), binding)
}

/// Runs a whole exchange. Returns the keys of the server side and of the client side.
fn exchange(client: ScramClient, server: ScramServer) -> Result<(SaltedKeys, SaltedKeys), ScramError> {
    let (server, server_first) = server.challenge(&client.first())?;
    let (client, client_final) = client.respond(&server_first)?;
    let accepted = server.finish(&client_final)?;
    let keys = client.verify(&accepted.reply)?;
    Ok((accepted.keys, keys))
}

/// RFC 7677, section 3.
mod rfc7677 {
    use super::*;

    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    #[test]
    fn client_messages_match_the_rfc() -> Result<(), ScramError> {
        let secret = ScramSecret::Password(b"pencil".to_vec());
        let client = ScramClient::new(secret, nonce("rOprNGfwEbeRWgbNEkqO"), ChannelBinding::None).with_user("user");
        assert_eq!(client.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let (client, last) = client.respond(SERVER_FIRST.as_bytes())?;
        assert_eq!(String::from_utf8_lossy(&last), CLIENT_FINAL);
        client.verify(SERVER_FINAL.as_bytes())?;
        Ok(())
    }

    #[test]
    fn server_messages_match_the_rfc() -> Result<(), ScramError> {
        // The salt W22ZaJ0SNY7soEsUEjb6gQ== of the RFC.
        let salt = [91, 109, 153, 104, 157, 18, 53, 142, 236, 160, 75, 20, 18, 54, 250, 129];
        let verifier = Verifier::derive(b"pencil", &salt, 4096);
        let server = ScramServer::new(verifier, nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"), ChannelBinding::None);
        let (server, first) = server.challenge(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")?;
        assert_eq!(String::from_utf8_lossy(&first), SERVER_FIRST);
        let accepted = server.finish(CLIENT_FINAL.as_bytes())?;
        assert_eq!(String::from_utf8_lossy(&accepted.reply), SERVER_FINAL);
        Ok(())
    }
}

#[test]
fn recovered_keys_log_in_to_another_server() -> Result<(), ScramError> {
    let (recovered, derived) =
        exchange(client(b"secret", ChannelBinding::None), server(b"secret", ChannelBinding::None))?;
    assert_eq!(recovered, derived);
    let upstream = ScramClient::new(ScramSecret::Keys(recovered), nonce("gateway"), ChannelBinding::None);
    exchange(upstream, server(b"secret", ChannelBinding::None))?;
    Ok(())
}

#[test]
fn keys_for_another_salt_are_stale() -> Result<(), ScramError> {
    let (keys, _) = exchange(client(b"secret", ChannelBinding::None), server(b"secret", ChannelBinding::None))?;
    let renewed = Verifier::derive(b"secret", b"another salt", 2);
    let upstream = ScramClient::new(ScramSecret::Keys(keys), nonce("gateway"), ChannelBinding::None);
    let server = ScramServer::new(renewed, nonce("server"), ChannelBinding::None);
    assert_eq!(exchange(upstream, server).err(), Some(ScramError::StaleKeys));
    Ok(())
}

#[test]
fn wrong_password_is_a_wrong_proof() {
    let result = exchange(client(b"guess", ChannelBinding::None), server(b"secret", ChannelBinding::None));
    assert_eq!(result.err(), Some(ScramError::WrongProof));
}

#[test]
fn fake_verifier_refuses_every_password() {
    let fake = Verifier::fake(b"missing", b"gateway secret", 2);
    assert_eq!(fake, Verifier::fake(b"missing", b"gateway secret", 2));
    assert_ne!(fake.salt(), Verifier::fake(b"missing2", b"gateway secret", 2).salt());
    assert_ne!(fake.salt(), Verifier::fake(b"missing", b"other secret", 2).salt());
    assert_eq!(fake.salt().len(), 16);
    let server = ScramServer::new(fake, nonce("server"), ChannelBinding::None);
    assert_eq!(exchange(client(b"", ChannelBinding::None), server).err(), Some(ScramError::WrongProof));
}

#[test]
fn binding_requires_the_same_connection() {
    let end_point = |hash: &[u8]| ChannelBinding::EndPoint(hash.to_vec());
    let bad = Some(ScramError::WrongBinding);
    let cases = [
        (ChannelBinding::None, ChannelBinding::None, None),
        (ChannelBinding::Unused, ChannelBinding::None, None),
        (ChannelBinding::None, ChannelBinding::Unused, None),
        (end_point(b"hash"), end_point(b"hash"), None),
        // The client supports binding and the server offered it: a third party removed the offer.
        (ChannelBinding::Unused, ChannelBinding::Unused, bad.clone()),
        (end_point(b"hash"), end_point(b"other"), bad.clone()),
        (end_point(b"hash"), ChannelBinding::None, bad.clone()),
        (end_point(b"hash"), ChannelBinding::Unused, bad.clone()),
        (ChannelBinding::None, end_point(b"hash"), bad.clone()),
        (ChannelBinding::Unused, end_point(b"hash"), bad),
    ];
    for (ours, theirs, expected) in cases {
        let result = exchange(client(b"x", ours.clone()), server(b"x", theirs.clone()));
        assert_eq!(result.err(), expected, "{ours:?} to {theirs:?}");
    }
    assert_eq!(end_point(b"").mechanism(), MECHANISM_PLUS);
    assert_eq!(ChannelBinding::Unused.mechanism(), MECHANISM);
}

#[test]
fn first_client_message_is_checked() {
    let malformed = |offset, expected| ScramError::Malformed { offset, expected };
    let long = [b"n,,n=,r=".as_slice(), &[b'x'; MESSAGE_MAX]].concat();
    let cases: &[(&[u8], ScramError)] = &[
        (b"", malformed(0, "n, y or p=")),
        (b"x,,n=,r=a", malformed(0, "n, y or p=")),
        (b"n", malformed(1, "n=")),
        (b"n,,", malformed(3, "n=")),
        (b"n,,r=a", malformed(3, "n=")),
        (b"n,,n=", malformed(5, "r=")),
        (b"n,,n=a,r=", malformed(7, "a nonce")),
        (b"n,,n=a,r=\x01", malformed(7, "a nonce")),
        (b"n,,n=a,r=\xff", malformed(9, "UTF-8")),
        (b"n,a=admin,n=,r=a", ScramError::Unsupported("authorization identity")),
        (b"n,,m=1,n=,r=a", ScramError::Unsupported("extension")),
        (b"p=tls-unique,,n=,r=a", ScramError::Unsupported("channel binding type")),
        (&long, ScramError::TooLong { len: long.len() }),
    ];
    for (message, expected) in cases {
        let error = server(b"x", ChannelBinding::None).challenge(message).map(|_| ());
        assert_eq!(error, Err(expected.clone()), "{}", message.escape_ascii());
    }
    assert!(server(b"x", ChannelBinding::None).challenge(b"n,,n=,r=a,t=extension").is_ok());
}

#[test]
fn final_client_message_is_checked() {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let cases = [
        String::new(),
        "c=biws".into(),
        "c=biws,r=clientserver".into(),
        "c=biws,r=clientserver,p=".into(),
        "c=biws,r=clientserver,p=AAAA".into(),
        format!("c=biws,r=clientserver,p={key}AAAA"),
        format!("c=biws,r=clientserver,p={key}{key}"),
        format!("c=biws,r=clientserver,p=*{}", &key[1..]),
        format!("c=biws,r=clientserver,p={key},x=y"),
        format!("r=clientserver,c=biws,p={key}"),
    ];
    for message in cases {
        let (server, _) =
            server(b"x", ChannelBinding::None).challenge(b"n,,n=,r=client").expect("a good first message");
        let error = server.finish(message.as_bytes()).map(|_| ());
        assert!(matches!(error, Err(ScramError::Malformed { .. })), "{message}: {error:?}");
    }
    for (message, expected) in [
        (format!("c=biws,r=clientserver,x=y,p={key}"), ScramError::WrongProof),
        (format!("c=biws,r=clientserve,p={key}"), ScramError::WrongNonce),
        (format!("c=eSws,r=clientserver,p={key}"), ScramError::WrongBinding),
    ] {
        let (server, _) =
            server(b"x", ChannelBinding::None).challenge(b"n,,n=,r=client").expect("a good first message");
        assert_eq!(server.finish(message.as_bytes()).map(|_| ()), Err(expected));
    }
}

#[test]
fn server_challenge_is_checked() {
    let malformed = |offset, expected| ScramError::Malformed { offset, expected };
    let too_many = format!("r=clientx,s=QUJD,i={}", ITERATIONS_MAX + 1);
    let cases: &[(&str, ScramError)] = &[
        ("", malformed(0, "r=")),
        ("r=clientx", malformed(9, "s=")),
        ("r=clientx,s=,i=1", malformed(10, "a salt in base64")),
        ("r=clientx,s=QUJ,i=1", malformed(10, "a salt in base64")),
        ("r=clientx,s=QUJD", malformed(16, "i=")),
        ("r=clientx,s=QUJD,i=0", ScramError::Iterations),
        ("r=clientx,s=QUJD,i=+1", ScramError::Iterations),
        ("r=clientx,s=QUJD,i=-1", ScramError::Iterations),
        ("r=clientx,s=QUJD,i=", ScramError::Iterations),
        ("r=clientx,s=QUJD,i=99999999999999999999", ScramError::Iterations),
        (&too_many, ScramError::Iterations),
        ("r=clientx,s=QUJD,i=1,x=y", malformed(21, "the end")),
        ("m=x,r=clientx,s=QUJD,i=1", ScramError::Unsupported("extension")),
        ("r=client,s=QUJD,i=1", ScramError::WrongNonce),
        ("r=other,s=QUJD,i=1", ScramError::WrongNonce),
    ];
    for (message, expected) in cases {
        let error = client(b"x", ChannelBinding::None).respond(message.as_bytes()).map(|_| ());
        assert_eq!(error, Err(expected.clone()), "{message}");
    }
}

#[test]
fn server_signature_is_checked() {
    let answer = |reply: &[u8]| {
        let (client, _) =
            client(b"x", ChannelBinding::None).respond(b"r=clientserver,s=QUJD,i=1").expect("a good challenge");
        client.verify(reply).map(|_| ())
    };
    assert_eq!(answer(b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="), Err(ScramError::WrongServer));
    assert_eq!(answer(b"e=invalid-proof"), Err(ScramError::Refused("invalid-proof".into())));
    for junk in [b"".as_slice(), b"v=", b"v=AAAA", b"v=?", b"\xff"] {
        assert!(matches!(answer(junk), Err(ScramError::Malformed { .. })));
    }
}

#[test]
fn verifiers_have_a_text_form() {
    let verifier = Verifier::derive(b"secret", SALT, 4096);
    assert_eq!(verifier.to_text().parse(), Ok(verifier.clone()));
    assert!(verifier.matches(b"secret") && !verifier.matches(b"Secret"));
    assert!(!format!("{verifier:?}").contains(&verifier.to_text()[20..30]));
}

#[test]
fn malformed_verifiers_are_refused() {
    let good = Verifier::derive(b"secret", SALT, 4096).to_text();
    let cases = [
        String::new(),
        "md5900150983cd24fb0d6963f7d28e17f72".into(),
        "SCRAM-SHA-256$".into(),
        "SCRAM-SHA-256$4096:$:".into(),
        good.replace("4096", "0"),
        good.replace("4096", "1000001"),
        good.replace("4096", " 4096"),
        good.replace("SHA-256", "SHA-1"),
        good.replacen(':', "", 1),
        good[..good.len() - 1].to_owned(),
        format!("{good}="),
        format!("{good}:x"),
    ];
    for text in cases {
        assert!(text.parse::<Verifier>().is_err(), "{text}");
    }
}

#[test]
fn passwords_are_normalized_where_possible() {
    // The examples of RFC 4013, section 3, and passwords without a normal form.
    let cases: &[(&[u8], &[u8])] = &[
        (b"user", b"user"),
        ("I\u{ad}X".as_bytes(), b"IX"),
        ("\u{aa}".as_bytes(), b"a"),
        ("\u{2168}".as_bytes(), b"IX"),
        (b"\x07", b"\x07"),
        ("\u{627}1".as_bytes(), "\u{627}1".as_bytes()),
        ("\u{ad}".as_bytes(), "\u{ad}".as_bytes()),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"", b""),
    ];
    for (password, expected) in cases {
        assert_eq!(normalize(password), *expected, "{}", password.escape_ascii());
    }
}

#[test]
fn nonce_is_printable_and_has_no_comma() {
    for text in ["", "a,b", "a b", "ä", "\0"] {
        assert_eq!(Nonce::from_text(text), None, "{text:?}");
    }
    assert_eq!(Nonce::from_random(&[0; 3]), nonce("AAAA"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn correct_password_is_accepted(password in prop::collection::vec(any::<u8>(), 0..40), user in ".{0,20}") {
        let client = client(&password, ChannelBinding::None).with_user(&user);
        prop_assert!(exchange(client, server(&password, ChannelBinding::None)).is_ok());
    }

    #[test]
    fn changed_proof_is_refused(at in 0_usize..32, bit in 0_u8..8) {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let client = client(b"secret", ChannelBinding::None);
        let (server, first) = server(b"secret", ChannelBinding::None).challenge(&client.first()).expect("a good first message");
        let (_client, last) = client.respond(&first).expect("a good challenge");
        let text = String::from_utf8(last).expect("messages are text");
        let (rest, proof) = text.split_once(",p=").expect("the proof stands last");
        let mut proof = STANDARD.decode(proof).expect("the proof is base64");
        proof[at] ^= 1 << bit;
        let changed = format!("{rest},p={}", STANDARD.encode(proof));
        prop_assert_eq!(server.finish(changed.as_bytes()).map(|_| ()), Err(ScramError::WrongProof));
    }
}
