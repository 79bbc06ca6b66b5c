use std::sync::OnceLock;

use tidegate_wire::auth::{
    md5_answer,
    scram::{
        ChannelBinding, Nonce, SaltedKeys, ScramClient, ScramError, ScramSecret, ScramServer, Verifier, normalize,
    },
};

const SALT: &[u8] = b"0123456789abcdef";

/// SCRAM: the input is a message to each side in each state. No client without the password is accepted, and no server
/// without the verifier.
pub fn scram(data: &[u8]) {
    let _ = normalize(data);
    if let Ok(text) = str::from_utf8(data) {
        let _ = md5_answer(text, [0; 4]);
        if let Ok(verifier) = text.parse::<Verifier>() {
            assert_eq!(verifier.to_text().parse(), Ok(verifier));
        }
    }
    for binding in [ChannelBinding::None, ChannelBinding::Unused, ChannelBinding::EndPoint(b"hash".to_vec())] {
        to_server(data, &binding);
    }
    to_client(data);
}

fn verifier() -> Verifier {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    VERIFIER.get_or_init(|| Verifier::derive(b"secret", SALT, 1)).clone()
}

fn nonce(text: &str) -> Nonce {
    Nonce::from_text(text).expect("the nonce is printable")
}

fn to_server(data: &[u8], binding: &ChannelBinding) {
    let start = || ScramServer::new(verifier(), nonce("server"), binding.clone());
    if let Ok((server, challenge)) = start().challenge(data) {
        assert!(challenge.starts_with(b"r="));
        assert!(server.finish(data).is_err());
    }
    if let Ok((server, _)) = start().challenge(b"n,,n=,r=client") {
        assert!(server.finish(data).is_err());
    }
}

fn to_client(data: &[u8]) {
    // Uses keys, to avoid a derivation of up to a million iterations.
    let known = Verifier::derive(b"secret", SALT, 1);
    let keys = tidegate_wire::auth::scram::ScramKeys::derive(b"secret", known.salt(), 1);
    let secret = ScramSecret::Keys(SaltedKeys { keys, salt: SALT.to_vec(), iterations: 1 });
    let start = || ScramClient::new(secret.clone(), nonce("client"), ChannelBinding::None);
    if let Ok((client, _)) = start().respond(data) {
        assert!(client.verify(data).is_err());
    }
    let Ok((client, _)) = start().respond(b"r=clientserver,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=1") else {
        panic!("the challenge is good");
    };
    assert!(matches!(
        client.verify(data),
        Err(ScramError::WrongServer
            | ScramError::Refused(_)
            | ScramError::Malformed { .. }
            | ScramError::TooLong { .. })
    ));
}
