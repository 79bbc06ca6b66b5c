//! The Kafka source where brokers ask for TLS and for logins: with the client that is built with OpenSSL (feature
//! `kafka-ssl`), against a real broker.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate_lanes::source::kafka::{Error, Kafka, Settings};
use tidegate_lanes::{RunError, Subscription};
use tidegate_sandbox::kafka::Broker;

/// Longer than anything here takes on a busy machine; reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);
const RECORDS: u32 = 1_000;
const TOPIC: &str = "orders";
const USER: (&str, &str) = ("ann", "secret");

/// A broker with a certificate for 127.0.0.1 and a user, and the authority that clients are to trust.
struct World {
    broker: Broker,
    folder: TempDir,
}

impl World {
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

    /// A file with an authority.
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn over_tls(&self, authority: &str) -> Settings {
        let bootstrap = self.broker.tls_bootstrap().unwrap();
        let settings = Kafka::builder(&bootstrap, &format!("group-of-{authority}")).topic(TOPIC);
        settings.property("security.protocol", "SSL").property("ssl.ca.location", &self.path(authority))
    }

    fn logged_in(&self, password: &str) -> Settings {
        let bootstrap = self.broker.login_bootstrap().unwrap();
        Kafka::builder(&bootstrap, &format!("group-with-{password}"))
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
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Reads until all records were seen once, and returns their payloads in order of their numbers.
async fn read_all(source: Kafka) -> Result<Vec<u32>, RunError> {
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

#[tokio::test(flavor = "multi_thread")]
async fn records_come_over_tls_and_by_a_login_and_a_wrong_password_is_refused() {
    let world = World::new();
    let all: Vec<u32> = (0..RECORDS).collect();
    assert_eq!(read_all(world.over_tls("ca.pem").build().unwrap()).await.unwrap(), all);
    assert_eq!(read_all(world.logged_in(USER.1).build().unwrap()).await.unwrap(), all);
    let refused = read_all(world.logged_in("other").build().unwrap()).await.unwrap_err();
    let RunError::Source(error) = refused else { panic!("{refused}") };
    assert!(matches!(error.downcast_ref(), Some(Error::Refused(_))), "{error}");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn says(&self, words: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(words)
    }
}

/// A broker whose certificate may be mended is waited for, so the source goes on, and the log says why nothing comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_authority_is_not_trusted_is_not_read_and_the_log_says_so() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let world = World::new();
    let source = world.over_tls("stranger.pem").build().unwrap();
    let process = |_| async { Err::<(), _>("a record of a stranger") };
    let subscription = Subscription::builder("tls").source(source).process(process).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    let refused = async {
        while !log.says("certificate verify failed") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, refused).await.is_ok(), "{}", String::from_utf8_lossy(&log.0.lock().unwrap()));
    handle.stop(Duration::ZERO);
    let tally = running.await.unwrap().unwrap();
    assert_eq!((tally.done, tally.failed), (0, 0));
}
