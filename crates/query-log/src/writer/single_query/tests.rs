//! A tracker with a single query records the same as a tracker with a pipeline from the start.

use std::{path::Path, rc::Rc, time::Duration, time::Instant};

use proptest::prelude::*;
use tidegate_config as config;
use tidegate_config::{JournalFormat, ParameterForm, RecordUnit};
use tidegate_session_state::{
    params::Settings,
    statements::{Statement, StatementCatalog},
};
use tidegate_wire::{
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, BindMessage, Parse},
};

use crate::writer::{FailedRequest, PeerInfo, QueryLog, QueryTracker, Recorder, SessionLog};

const TEXTS: [&str; 4] = ["select 1", "select $1, $2", "update t set a = 'secret' where b = $1", "copy t from stdin"];
const NAMES: [&str; 2] = ["", "named"];

/// A call to the tracker.
#[derive(Clone, Debug)]
enum TrackerEvent {
    Query(usize),
    Parse { name: usize, text: usize, is_kept: bool },
    Bind { portal: usize, statement: usize, text: usize, is_known: bool, values: usize },
    Execute { portal: usize },
    Call,
    Complete,
    Chunk(usize),
    Fail { failed: FailedRequest, skips: usize },
    Ready { is_idle: bool },
}

fn event() -> impl Strategy<Value = TrackerEvent> {
    let failed = prop_oneof![Just(FailedRequest::Query), Just(FailedRequest::Sync), Just(FailedRequest::Extended)];
    prop_oneof![
        3 => (0..4_usize).prop_map(TrackerEvent::Query),
        3 => on_parse(),
        5 => on_bind(),
        6 => name().prop_map(|portal| TrackerEvent::Execute { portal }),
        1 => Just(TrackerEvent::Call),
        7 => Just(TrackerEvent::Complete),
        3 => (1..50_usize).prop_map(TrackerEvent::Chunk),
        1 => (failed, 1..3_usize).prop_map(|(failed, skips)| TrackerEvent::Fail { failed, skips }),
        7 => any::<bool>().prop_map(|is_idle| TrackerEvent::Ready { is_idle }),
    ]
}

/// Mostly the unnamed one.
fn name() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0), 1 => Just(1)]
}

fn on_parse() -> impl Strategy<Value = TrackerEvent> {
    (name(), 0..4_usize, any::<bool>()).prop_map(|(name, text, is_kept)| TrackerEvent::Parse { name, text, is_kept })
}

fn on_bind() -> impl Strategy<Value = TrackerEvent> {
    (name(), name(), 0..4_usize, any::<bool>(), 0..3_usize).prop_map(|(portal, statement, text, is_known, values)| {
        TrackerEvent::Bind { portal, statement, text, is_known, values }
    })
}

/// A pipeline up to a Sync with its replies, of which parts may be missing.
fn flight() -> impl Strategy<Value = Vec<TrackerEvent>> {
    let part = |event: BoxedStrategy<TrackerEvent>| prop::option::weighted(0.6, event);
    let asked = prop_oneof![
        1 => event().boxed(),
        3 => Just(TrackerEvent::Execute { portal: 0 }).boxed(),
    ];
    let ready = any::<bool>().prop_map(|is_idle| TrackerEvent::Ready { is_idle });
    let parts = (
        part(on_parse().boxed()),
        part(on_bind().boxed()),
        part(asked.boxed()),
        part(Just(TrackerEvent::Complete).boxed()),
        ready,
    );
    parts.prop_map(|(parse, bind, asked, complete, ready)| {
        [parse, bind, asked, complete, Some(ready)].into_iter().flatten().collect()
    })
}

/// A sequence of calls in an exchange.
fn exchange() -> impl Strategy<Value = Vec<TrackerEvent>> {
    let part = prop_oneof![1 => event().prop_map(|event| vec![event]), 4 => flight()];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

/// Two trackers that receive the same calls, and the number of pending replies.
struct TrackerPair {
    trackers: [QueryTracker; 2],
    pending: usize,
    /// Portals that can be executed, and whether they were bound after the last query.
    portals: [Option<bool>; 2],
    /// The text of the unnamed statement.
    unnamed: Option<usize>,
    /// Whether the gateway is_known the unnamed statement, as in all modes but session mode.
    is_unnamed_known: bool,
    statements: Vec<Rc<Statement>>,
    now: Instant,
}

impl TrackerPair {
    fn both(&mut self, event: impl Fn(&mut QueryTracker)) {
        self.trackers.iter_mut().for_each(event);
    }

    fn note_query(&mut self) {
        self.pending += 1;
        self.portals = self.portals.map(|portal| portal.map(|_| false));
    }

    fn play(&mut self, event: &TrackerEvent) {
        self.now += Duration::from_micros(7);
        let now = self.now;
        self.both(|tracker| {
            tracker.on_chunk(now);
            tracker.add_bytes_in(11);
        });
        match *event {
            TrackerEvent::Query(text) => {
                self.both(|tracker| tracker.on_query(TEXTS[text].as_bytes()));
                (self.unnamed, self.portals[0]) = (None, None);
                self.note_query();
            }
            TrackerEvent::Parse { name, text, is_kept } => {
                let mut message = Vec::new();
                frontend::parse(NAMES[name].as_bytes(), TEXTS[text].as_bytes(), &[], &mut message);
                let parse = Parse::decode(&message[HEADER..]).unwrap();
                self.both(|tracker| tracker.on_parse(&parse, is_kept));
                if name == 0 {
                    self.unnamed = Some(text);
                }
            }
            TrackerEvent::Bind { portal, statement, text, is_known, values } => {
                self.on_bind([portal, statement, text, values], is_known);
            }
            TrackerEvent::Execute { portal } if self.portals[portal].is_some() => {
                self.both(|tracker| tracker.on_execute(NAMES[portal].as_bytes()));
                self.note_query();
            }
            TrackerEvent::Call => {
                self.both(QueryTracker::on_function_call);
                self.note_query();
            }
            TrackerEvent::Complete if self.pending > 0 => {
                self.pending -= 1;
                let pending = self.pending;
                self.both(|tracker| {
                    tracker.on_command_complete(b"SELECT 3\0");
                    tracker.set_pending(pending);
                });
            }
            TrackerEvent::Chunk(bytes) => self.both(|tracker| tracker.advance_to(bytes)),
            TrackerEvent::Fail { failed, skips } => self.fail(failed, skips),
            TrackerEvent::Ready { is_idle } => {
                let status = if is_idle { TxStatus::Idle } else { TxStatus::InTransaction };
                let pending = self.pending;
                self.both(|tracker| tracker.on_ready_for_query(status, pending));
                if is_idle {
                    self.portals = self.portals.map(|portal| portal.filter(|is_new| *is_new));
                }
            }
            TrackerEvent::Execute { .. } | TrackerEvent::Complete => {}
        }
    }

    fn on_bind(&mut self, [portal, statement, text, values]: [usize; 4], is_known: bool) {
        let all: [Option<&[u8]>; 2] = [Some(b"abc"), None];
        let mut message = Vec::new();
        let bind = BindMessage {
            portal: NAMES[portal].as_bytes(),
            statement: NAMES[statement].as_bytes(),
            formats: &[],
            values: &all[..values],
            result_formats: &[],
        };
        frontend::bind(&bind, &mut message);
        let bind = Bind::decode(&message[HEADER..]).unwrap();
        let known = (statement == 1 && is_known).then(|| self.statements[text].clone());
        let unnamed =
            self.unnamed.filter(|_| statement == 0 && self.is_unnamed_known).map(|text| TEXTS[text].as_bytes());
        self.both(|tracker| tracker.on_bind(&bind, known.as_ref(), unnamed));
        self.portals[portal] = Some(true);
    }

    fn fail(&mut self, failed: FailedRequest, skips: usize) {
        if failed == FailedRequest::Query && self.pending == 0 {
            return;
        }
        let fields = ErrorFields::decode(b"SERROR\0C22P02\0Minvalid input: \"secret\"\0\0").unwrap();
        self.pending -= if failed == FailedRequest::Sync { 0 } else { skips.min(self.pending) };
        let pending = self.pending;
        self.both(|tracker| tracker.on_error_response(&fields, failed, pending));
    }
}

fn statements() -> Vec<Rc<Statement>> {
    let (catalog, settings) = (StatementCatalog::default(), Rc::new(Settings::default()));
    let intern = |text: &&str| {
        let mut message = Vec::new();
        frontend::parse(b"named", text.as_bytes(), &[], &mut message);
        catalog.intern(&Parse::decode(&message[HEADER..]).unwrap(), &settings, ["shop"; 3])
    };
    TEXTS.iter().map(intern).collect()
}

fn lines(folder: &Path) -> Vec<String> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The records of these exchanges, by trackers that use the single state as long as possible, and by trackers with
/// pipelines.
fn played(exchanges: &[(bool, Vec<TrackerEvent>)], per: RecordUnit, parameters: ParameterForm) -> [Vec<String>; 2] {
    let (now, folder) = (Instant::now(), tempfile::tempdir().unwrap());
    let settings = ["lone", "book"].map(|name| config::QueryLogConfig {
        folder: folder.path().join(name),
        format: JournalFormat::Json,
        per,
        parameters,
        ..config::QueryLogConfig::default()
    });
    let query_logs = [0, 1].map(|at| QueryLog::open(&settings[at], None).unwrap().unwrap());
    let recorders = [0, 1].map(|at| Recorder::new(&query_logs[at], 0, &settings[at], now).unwrap());
    recorders.iter().for_each(|recorder| recorder.set_clock_to(now, 1_700_000_000));
    let session_logs = [0, 1].map(|at| SessionLog::new(&recorders[at], PeerInfo::default(), 1, None, now));
    let client = Rc::new(Settings::default());
    for (is_unnamed_known, exchange) in exchanges {
        let mut trackers =
            [0, 1].map(|at| QueryTracker::new(&session_logs[at], &client, Some(now), now + Duration::from_micros(5)));
        trackers[1].use_pipeline();
        let mut pair = TrackerPair {
            trackers,
            pending: 0,
            portals: [None; 2],
            unnamed: None,
            is_unnamed_known: *is_unnamed_known,
            statements: statements(),
            now,
        };
        exchange.iter().for_each(|event| pair.play(event));
        let end = pair.now;
        pair.trackers.into_iter().for_each(|tracker| tracker.finish((b"57P01", "the end"), end));
    }
    query_logs
        .into_iter()
        .for_each(|query_log| assert!(query_log.close(Duration::from_secs(60)).unwrap().is_complete()));
    [0, 1].map(|at| lines(&settings[at].folder))
}

fn parse_and_bind() -> [TrackerEvent; 2] {
    [
        TrackerEvent::Parse { name: 0, text: 1, is_kept: false },
        TrackerEvent::Bind { portal: 0, statement: 0, text: 0, is_known: true, values: 2 },
    ]
}

/// A portal keeps its statement within the transaction.
#[test]
fn a_portal_keeps_its_text() {
    let ready = || TrackerEvent::Ready { is_idle: false };
    let mut events = parse_and_bind().to_vec();
    events.extend([
        TrackerEvent::Execute { portal: 0 },
        TrackerEvent::Complete,
        ready(),
        TrackerEvent::Parse { name: 0, text: 2, is_kept: false },
    ]);
    events.extend([TrackerEvent::Execute { portal: 0 }, TrackerEvent::Complete, ready()]);
    let [single, pipeline] = played(&[(true, events)], RecordUnit::Query, ParameterForm::On);
    assert_eq!(single, pipeline);
    assert_eq!(single.iter().filter(|line| line.contains("select $1, $2")).count(), 2, "{single:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_same_is_written_down_without_a_book(
        exchanges in prop::collection::vec((any::<bool>(), exchange()), 1..6),
        of_transactions in any::<bool>(),
        parameters in prop_oneof![Just(ParameterForm::Off), Just(ParameterForm::On), Just(ParameterForm::Redacted)],
    ) {
        let per = if of_transactions { RecordUnit::Transaction } else { RecordUnit::Query };
        let [single, pipeline] = played(&exchanges, per, parameters);
        prop_assert_eq!(single, pipeline);
    }
}
