//! The Kafka source with TLS and SASL, with librdkafka built against OpenSSL (feature `kafka-ssl`) and a real broker.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate_lanes::source::kafka::{KafkaSource, KafkaSourceBuilder, KafkaSourceError};
use tidegate_lanes::{RunError, Subscription};
use tidegate_sandbox::kafka::Broker;

/// A timeout that only a hang reaches, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const RECORDS: u32 = 1_000;
const TOPIC: &str = "orders";
const USER: (&str, &str) = ("ann", "secret");

/// A broker with a certificate for 127.0.0.1 and a user, and the authority that clients trust.
struct TlsFixture {
    broker: Broker,
    folder: TempDir,
}

impl TlsFixture {
    fn new() -> Self {
        let authority = authority();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let broker = Broker::builder()
            .tls(&certificate.pem(), &key.serialize_pem())
            .login(USER.0, USER.1)
            .start()
            .unwrap_or_else(|error| panic!("{error}"));
        broker.create_topic(TOPIC, 2, &[]).unwrap();
        broker.fill(TOPIC, (0..RECORDS).map(|n| (format!("key-{}", n % 50), n.to_string()))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        std::fs::write(folder.path().join("stranger.pem"), self::authority().pem()).unwrap();
        Self { broker, folder }
    }

    /// The path of a file with an authority.
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn over_tls(&self, authority: &str) -> KafkaSourceBuilder {
        let bootstrap = self.broker.tls_bootstrap().unwrap();
        let settings = KafkaSource::builder(&bootstrap, &format!("group-of-{authority}")).topic(TOPIC);
        settings.property("security.protocol", "SSL").property("ssl.ca.location", &self.path(authority))
    }

    fn logged_in(&self, password: &str) -> KafkaSourceBuilder {
        let bootstrap = self.broker.login_bootstrap().unwrap();
        KafkaSource::builder(&bootstrap, &format!("group-with-{password}"))
            .topic(TOPIC)
            .property("security.protocol", "SASL_SSL")
            .property("ssl.ca.location", &self.path("ca.pem"))
            .property("sasl.mechanism", "SCRAM-SHA-256")
            .property("sasl.username", USER.0)
            .property("sasl.password", password)
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    // Certificates with equal names would count as self-signed.
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Reads until all records were seen once. Returns their payloads in order.
async fn read_all(source: KafkaSource) -> Result<Vec<u32>, RunError> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    let subscription = Subscription::builder("tls").source(source).process(move |record| {
        theirs.lock().unwrap().push(std::str::from_utf8(record.payload().unwrap()).unwrap().parse().unwrap());
        std::future::ready(Ok::<(), String>(()))
    });
    let subscription = subscription.unwrap();
    let handle = subscription.handle();
    let mut running = tokio::spawn(subscription.run());
    let all = async {
        while seen.lock().unwrap().len() < RECORDS as usize {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = all => handle.stop(LIMIT),
        ended = &mut running => return ended.unwrap().map(|_| Vec::new()),
        () = tokio::time::sleep(LIMIT) => panic!("not within {LIMIT:?}"),
    }
    running.await.unwrap()?;
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    Ok(seen)
}

/// All cases are in one test, because a broker takes seconds to start.
#[tokio::test(flavor = "multi_thread")]
async fn tls_and_scram_work_and_untrusted_peers_fail() {
    let fixture = TlsFixture::new();
    let all: Vec<u32> = (0..RECORDS).collect();
    assert_eq!(read_all(fixture.over_tls("ca.pem").build().unwrap()).await.unwrap(), all);
    assert_eq!(read_all(fixture.logged_in(USER.1).build().unwrap()).await.unwrap(), all);
    let wrong_password = refused(fixture.logged_in("other")).await;
    assert!(matches!(wrong_password, KafkaSourceError::Refused(_)), "{wrong_password}");
    assert!(wrong_password.to_string().contains("check its credentials"), "{wrong_password}");
    let wrong_authority = refused(fixture.over_tls("stranger.pem")).await;
    assert!(matches!(wrong_authority, KafkaSourceError::Untrusted(_)), "{wrong_authority}");
    assert!(wrong_authority.to_string().contains("certificate verify failed"), "{wrong_authority}");
}

/// The error of a source that cannot read.
async fn refused(settings: KafkaSourceBuilder) -> KafkaSourceError {
    match read_all(settings.build().unwrap()).await {
        Err(RunError::Source(error)) => *error.downcast::<KafkaSourceError>().unwrap(),
        other => panic!("not rejected: {other:?}"),
    }
}
