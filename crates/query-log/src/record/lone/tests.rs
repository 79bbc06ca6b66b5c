//! A ledger that has had a book from the beginning says what is to be written down by one that gets along without.

use std::{path::Path, rc::Rc, time::Duration, time::Instant};

use proptest::prelude::*;
use tidegate_config as config;
use tidegate_config::{JournalFormat, ParameterForm, Per};
use tidegate_session_state::{
    params::Settings,
    statements::{Statement, StatementCatalog},
};
use tidegate_wire::{
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, BindMessage, Parse},
};

use crate::record::{Archive, Front, Ledger, Recorder, Stranger, Witness};

const TEXTS: [&str; 4] = ["select 1", "select $1, $2", "update t set a = 'secret' where b = $1", "copy t from stdin"];
const NAMES: [&str; 2] = ["", "named"];

/// What may come next in an exchange.
#[derive(Clone, Debug)]
enum Act {
    Query(usize),
    Parse { name: usize, text: usize, is_kept: bool },
    Bind { portal: usize, statement: usize, text: usize, knows: bool, values: usize },
    Execute { portal: usize },
    Call,
    Complete,
    Chunk(usize),
    Fail { front: Front, skips: usize },
    Ready { is_idle: bool },
}

fn act() -> impl Strategy<Value = Act> {
    let front = prop_oneof![Just(Front::Query), Just(Front::Sync), Just(Front::Extended)];
    prop_oneof![
        3 => (0..4_usize).prop_map(Act::Query),
        3 => parse(),
        5 => bind(),
        6 => name().prop_map(|portal| Act::Execute { portal }),
        1 => Just(Act::Call),
        7 => Just(Act::Complete),
        3 => (1..50_usize).prop_map(Act::Chunk),
        1 => (front, 1..3_usize).prop_map(|(front, skips)| Act::Fail { front, skips }),
        7 => any::<bool>().prop_map(|is_idle| Act::Ready { is_idle }),
    ]
}

/// Without a name, mostly.
fn name() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0), 1 => Just(1)]
}

fn parse() -> impl Strategy<Value = Act> {
    (name(), 0..4_usize, any::<bool>()).prop_map(|(name, text, is_kept)| Act::Parse { name, text, is_kept })
}

fn bind() -> impl Strategy<Value = Act> {
    (name(), name(), 0..4_usize, any::<bool>(), 0..3_usize)
        .prop_map(|(portal, statement, text, knows, values)| Act::Bind { portal, statement, text, knows, values })
}

/// What a client sends up to a Sync, with its replies, one or another part left out.
fn flight() -> impl Strategy<Value = Vec<Act>> {
    let part = |act: BoxedStrategy<Act>| prop::option::weighted(0.6, act);
    let asked = prop_oneof![
        1 => act().boxed(),
        3 => Just(Act::Execute { portal: 0 }).boxed(),
    ];
    let ready = any::<bool>().prop_map(|is_idle| Act::Ready { is_idle });
    let parts =
        (part(parse().boxed()), part(bind().boxed()), part(asked.boxed()), part(Just(Act::Complete).boxed()), ready);
    parts.prop_map(|(parse, bind, asked, complete, ready)| {
        [parse, bind, asked, complete, Some(ready)].into_iter().flatten().collect()
    })
}

/// Whatever may come up in an exchange.
fn exchange() -> impl Strategy<Value = Vec<Act>> {
    let part = prop_oneof![1 => act().prop_map(|act| vec![act]), 4 => flight()];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

/// Two ledgers that hear the same, and what the server owes.
struct Pair {
    ledgers: [Ledger; 2],
    owed: usize,
    /// Portals that a client may execute, and whether they were bound behind the last query.
    portals: [Option<bool>; 2],
    /// The text of the unnamed statement.
    unnamed: Option<usize>,
    /// The gateway knows it, as it does but in session mode.
    knows_unnamed: bool,
    statements: Vec<Rc<Statement>>,
    now: Instant,
}

impl Pair {
    fn both(&mut self, act: impl Fn(&mut Ledger)) {
        self.ledgers.iter_mut().for_each(act);
    }

    fn note_query(&mut self) {
        self.owed += 1;
        self.portals = self.portals.map(|portal| portal.map(|_| false));
    }

    fn play(&mut self, act: &Act) {
        self.now += Duration::from_micros(7);
        let now = self.now;
        self.both(|ledger| {
            ledger.turn(now);
            ledger.hear(11);
        });
        match *act {
            Act::Query(text) => {
                self.both(|ledger| ledger.query(TEXTS[text].as_bytes()));
                (self.unnamed, self.portals[0]) = (None, None);
                self.note_query();
            }
            Act::Parse { name, text, is_kept } => {
                let mut message = Vec::new();
                frontend::parse(NAMES[name].as_bytes(), TEXTS[text].as_bytes(), &[], &mut message);
                let parse = Parse::decode(&message[HEADER..]).unwrap();
                self.both(|ledger| ledger.parse(&parse, is_kept));
                if name == 0 {
                    self.unnamed = Some(text);
                }
            }
            Act::Bind { portal, statement, text, knows, values } => self.bind([portal, statement, text, values], knows),
            Act::Execute { portal } if self.portals[portal].is_some() => {
                self.both(|ledger| ledger.execute(NAMES[portal].as_bytes()));
                self.note_query();
            }
            Act::Call => {
                self.both(Ledger::call);
                self.note_query();
            }
            Act::Complete if self.owed > 0 => {
                self.owed -= 1;
                let owed = self.owed;
                self.both(|ledger| {
                    ledger.tag(b"SELECT 3\0");
                    ledger.settle(owed);
                });
            }
            Act::Chunk(bytes) => self.both(|ledger| ledger.advance(bytes)),
            Act::Fail { front, skips } => self.fail(front, skips),
            Act::Ready { is_idle } => {
                let status = if is_idle { TxStatus::Idle } else { TxStatus::InTransaction };
                let owed = self.owed;
                self.both(|ledger| ledger.ready(status, owed));
                if is_idle {
                    self.portals = self.portals.map(|portal| portal.filter(|is_new| *is_new));
                }
            }
            Act::Execute { .. } | Act::Complete => {}
        }
    }

    fn bind(&mut self, [portal, statement, text, values]: [usize; 4], knows: bool) {
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
        let known = (statement == 1 && knows).then(|| self.statements[text].clone());
        let unnamed = self.unnamed.filter(|_| statement == 0 && self.knows_unnamed).map(|text| TEXTS[text].as_bytes());
        self.both(|ledger| ledger.bind(&bind, known.as_ref(), unnamed));
        self.portals[portal] = Some(true);
    }

    fn fail(&mut self, front: Front, skips: usize) {
        if front == Front::Query && self.owed == 0 {
            return;
        }
        let fields = ErrorFields::decode(b"SERROR\0C22P02\0Minvalid input: \"secret\"\0\0").unwrap();
        self.owed -= if front == Front::Sync { 0 } else { skips.min(self.owed) };
        let owed = self.owed;
        self.both(|ledger| ledger.fail(&fields, front, owed));
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

/// What is written down of these exchanges, without a book as long as it can be done, and with one.
fn played(exchanges: &[(bool, Vec<Act>)], per: Per, parameters: ParameterForm) -> [Vec<String>; 2] {
    let (now, folder) = (Instant::now(), tempfile::tempdir().unwrap());
    let settings = ["lone", "book"].map(|name| config::Journal {
        folder: folder.path().join(name),
        format: JournalFormat::Json,
        per,
        parameters,
        ..config::Journal::default()
    });
    let archives = [0, 1].map(|at| Archive::open(&settings[at]).unwrap().unwrap());
    let recorders = [0, 1].map(|at| Recorder::new(&archives[at], 0, &settings[at], now).unwrap());
    recorders.iter().for_each(|recorder| recorder.set_clock_to(now, 1_700_000_000));
    let witnesses = [0, 1].map(|at| Witness::new(&recorders[at], Stranger::default(), 1, None, now));
    let client = Rc::new(Settings::default());
    for (knows_unnamed, exchange) in exchanges {
        let mut ledgers =
            [0, 1].map(|at| Ledger::open(&witnesses[at], &client, Some(now), now + Duration::from_micros(5)));
        ledgers[1].open_book();
        let mut pair = Pair {
            ledgers,
            owed: 0,
            portals: [None; 2],
            unnamed: None,
            knows_unnamed: *knows_unnamed,
            statements: statements(),
            now,
        };
        exchange.iter().for_each(|act| pair.play(act));
        let end = pair.now;
        pair.ledgers.into_iter().for_each(|ledger| ledger.close((b"57P01", "the end"), end));
    }
    archives.into_iter().for_each(|archive| assert!(archive.close(Duration::from_secs(60)).unwrap().is_complete()));
    [0, 1].map(|at| lines(&settings[at].folder))
}

fn parse_and_bind() -> [Act; 2] {
    [
        Act::Parse { name: 0, text: 1, is_kept: false },
        Act::Bind { portal: 0, statement: 0, text: 0, knows: true, values: 2 },
    ]
}

/// A portal lives on within its transaction, whatever is prepared meanwhile.
#[test]
fn a_portal_keeps_its_text() {
    let ready = || Act::Ready { is_idle: false };
    let mut acts = parse_and_bind().to_vec();
    acts.extend([Act::Execute { portal: 0 }, Act::Complete, ready(), Act::Parse { name: 0, text: 2, is_kept: false }]);
    acts.extend([Act::Execute { portal: 0 }, Act::Complete, ready()]);
    let [lone, book] = played(&[(true, acts)], Per::Query, ParameterForm::On);
    assert_eq!(lone, book);
    assert_eq!(lone.iter().filter(|line| line.contains("select $1, $2")).count(), 2, "{lone:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_same_is_written_down_without_a_book(
        exchanges in prop::collection::vec((any::<bool>(), exchange()), 1..6),
        of_transactions in any::<bool>(),
        parameters in prop_oneof![Just(ParameterForm::Off), Just(ParameterForm::On), Just(ParameterForm::Redacted)],
    ) {
        let per = if of_transactions { Per::Transaction } else { Per::Query };
        let [lone, book] = played(&exchanges, per, parameters);
        prop_assert_eq!(lone, book);
    }
}
