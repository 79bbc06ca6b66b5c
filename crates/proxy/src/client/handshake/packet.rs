//! The startup packet: user, database and parameters.

use tidegate_wire::{
    backend::ErrorReply,
    startup::{self, StartupMessage},
};

use tidegate_config::{Dialect, Route};
use tidegate_link::PeerAddress;

use crate::{error::Cause, plane::Replication};

/// Contents of a startup packet.
pub(in crate::client) struct Request {
    pub(in crate::client) minor: u16,
    pub(in crate::client) user: String,
    pub(in crate::client) database: String,
    /// Names and values of all other parameters, including those in `options`.
    pub(in crate::client) params: Vec<(String, Vec<u8>)>,
    pub(in crate::client) replication: Option<Vec<u8>>,
    /// The requested route, for a database with several servers.
    pub(in crate::client) route: Option<Route>,
    pub(super) unknown: Vec<Vec<u8>>,
}

impl Request {
    /// The kind of replication that the client requests.
    pub(in crate::client) fn stream(&self) -> Replication {
        match self.replication.as_deref() {
            Some(mode) if mode.eq_ignore_ascii_case(b"database") => Replication::Logical,
            _ => Replication::Physical,
        }
    }

    /// The client's `application_name`; empty without one.
    pub(super) fn application(&self) -> &[u8] {
        self.params.iter().rev().find(is_application).map_or(&[], |(_, value)| value)
    }

    /// Appends the client address to `application_name`.
    pub(super) fn add_peer_to_application(&mut self, peer: PeerAddress) {
        let given = Some(self.application()).filter(|name| !name.is_empty()).unwrap_or(b"app");
        let name = format!("{} - {peer}", String::from_utf8_lossy(given));
        self.params.retain(|pair| !is_application(&pair));
        self.params.push(("application_name".to_owned(), name.into_bytes()));
    }
}

fn is_application((name, _): &&(String, Vec<u8>)) -> bool {
    name.eq_ignore_ascii_case("application_name")
}

/// Whether PgBouncer tracks a parameter by default. With `ignore_startup_parameters = options` it applies these of `options`, and
/// ignores all others.
fn is_tracked(name: &str) -> bool {
    const TRACKED: [&str; 6] = [
        "application_name",
        "client_encoding",
        "DateStyle",
        "IntervalStyle",
        "standard_conforming_strings",
        "TimeZone",
    ];
    TRACKED.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Reads the packet without ignored parameters; the ignored name `options` covers parameters in `options`.
pub(super) fn read_startup(
    startup: &StartupMessage<'_>,
    ignored: &[String],
    dialect: Dialect,
) -> Result<Request, ErrorReply> {
    let is_ignored = |name: &str| ignored.iter().any(|known| known.eq_ignore_ascii_case(name));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(user) = startup.get("user").filter(|user| !user.is_empty()).map(text) else {
        return Err(Cause::Nameless.refusal(dialect));
    };
    let database = startup.get("database").filter(|name| !name.is_empty()).map_or_else(|| user.clone(), text);
    let mut request = Request {
        minor: startup.minor,
        user,
        database,
        params: Vec::new(),
        replication: None,
        route: None,
        unknown: startup.extensions().map(<[u8]>::to_vec).collect(),
    };
    let mut options = Vec::new();
    for (name, value) in startup.params() {
        match name {
            b"user" | b"database" => {}
            b"replication" => request.replication = is_replication(value).then(|| value.to_vec()),
            b"options" => match startup::parse_options(value) {
                Ok(parsed) if is_ignored("options") => {
                    let is_kept = |name: &str| dialect == Dialect::Pgbouncer && is_tracked(name);
                    options = parsed.into_iter().filter(|(name, _)| is_kept(name)).collect();
                }
                Ok(parsed) => options = parsed,
                Err(_) if is_ignored("options") => {}
                Err(error) => {
                    let text = match dialect {
                        Dialect::Postgres => format!("invalid options: {error}"),
                        Dialect::Pgbouncer => "unsupported options startup parameter: only '-c config=val' and \
                                               '--config=val' are allowed"
                            .to_owned(),
                    };
                    return Err(ErrorReply::protocol(text));
                }
            },
            name if name.starts_with(b"_pq_.") => {}
            name => request.params.push((text(name), value.to_vec())),
        }
    }
    // Separate parameters override those in `options`, in any order.
    let settings = options.into_iter().map(|(name, value)| (name, value.into_bytes()));
    request.params = settings.chain(request.params).filter(|(name, _)| !is_ignored(name)).collect();
    Ok(request)
}

fn is_replication(value: &[u8]) -> bool {
    !["false", "off", "no", "0", ""].iter().any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}
