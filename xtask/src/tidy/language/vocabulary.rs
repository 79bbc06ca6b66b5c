//! Words and phrases that do not occur in the project, each with its replacement.

/// Words in lower case. An identifier is checked part by part (`was_told`, `WasTold`).
pub(super) const WORDS: &[(&[&str], &str)] = &[
    (&["tell", "tells", "told", "telling"], "the operation: send, return, report, log, notify, distinguish"),
    (&["say", "says", "said", "saying"], "the operation: report, return, declare, specify, contain"),
    (&["speak", "speaks", "spoke", "spoken"], "use, send or negotiate (a protocol)"),
    (&["hear", "hears", "heard", "hearing"], "receive, or the event: on_message"),
    (&["heed", "heeds", "obey", "obeys", "obeyed"], "apply, follow, or handle"),
    (&["knows", "knew"], "hold, record, cache, or detect"),
    (&["wish", "wishes", "wished"], "request, or configure"),
    (&["want", "wants", "wanted"], "need, request, or expect"),
    (&["whoever", "whomever", "whom"], "the component: the caller, the client, the reader"),
    (&["nobody", "anybody", "somebody"], "the component: no client, any task, another thread"),
    (&["anew", "hither", "forthwith", "betimes"], "again, or immediately"),
    (&["thereby"], "the consequence in a sentence of its own"),
    (&["farewell", "goodbye"], "Terminate, close, or shutdown"),
    (&["mourn", "mourns", "mourned"], "the event: on_error, on_partitions_lost"),
    (&["newcomer", "latecomer"], "new client, new member, late record"),
];

/// Phrases of whole words in lower case, in comments, string literals and pages.
pub(super) const PHRASES: &[(&str, &str)] = &[
    ("put down", "return to the pool, or release"),
    ("puts down", "returns to the pool, or releases"),
    ("in line", "in the queue, waiting"),
    ("at once", "immediately, or together"),
    ("what became of", "the outcome of"),
    ("of those", "the noun"),
    ("those who", "the noun: clients that"),
    ("one that", "the noun: a server that"),
    ("ones that", "the noun: servers that"),
    ("comes to rest", "becomes idle, or ends"),
    ("lets go", "releases"),
    ("let go", "release"),
    ("give up on", "cancel, or stop waiting for"),
    ("gives up on", "cancels, or stops waiting for"),
];

/// Words that do not open a comment: a pronoun or a preposition hides the subject.
pub(super) const OPENINGS: &[&str] = &[
    "who", "what", "whoever", "whatever", "which", "whose", "whom", "it", "its", "they", "their", "them", "he", "his",
    "one", "that", "those", "such", "so", "of", "in", "on", "at", "by", "for", "from", "to", "with", "without",
    "under", "until", "among", "between", "behind", "beside", "into", "onto", "over", "through",
];

/// Identifiers and string literals of other projects that contain a word of [`WORDS`]: rustls, and the unprivileged account.
pub(super) const FOREIGN: &[&str] = &["wants_read", "wants_write", "WantsClientCert", "\"nobody\""];
