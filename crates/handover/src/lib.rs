//! Moves client sessions from a running gateway to the process that replaces it.
//!
//! The old process sends a [`SessionRecord`] with the client's socket (SCM_RIGHTS) over the unix socket of the hand-over. The new
//! process checks it, acknowledges it, and only then serves it.
//!
//! ```text
//! old process                                   new process
//!   hello, version          <------------->       hello, version
//!   session 1 and its socket   ----------->       check the record
//!                           <-------------        accepted 1, or refused 1 and why
//!   close its own socket                          serve the client
//! ```
//!
//! **No session is lost, and none is served twice.** A session belongs to the new process from the moment when its
//! acknowledgement is in the socket. If the old process stops waiting, it shuts the socket down first and then reads what is
//! left: later acknowledgements fail in the new process, which drops those sessions. All others stay with the old process,
//! whose own descriptor of the client's socket is still open.
//!
//! **Pinned clients.** A client that is pinned to its server (LISTEN, a temporary table) moves with it: the socket of the server
//! is sent right before the session, and the state of the server is a part of the record.
//!
//! **Versions.** Both sides send [`STATE_VERSION`]. If they differ, no session moves.

mod channel;
mod convert;
mod frame;
mod incoming;
mod moves;
mod outgoing;
mod record;

pub use channel::{receive_with_descriptor, send_with_descriptor};
pub use convert::{parameters_of, restore_parameters, restore_statements, statements_of};
pub use frame::{FrameReader, HandoverFrame, RECORD_BYTES_MAX, send_frame};
pub use incoming::{ForwardedCancel, IncomingSessions, SessionSockets, receive_sessions};
pub use moves::{SessionMoves, THREAD_NUMBERS};
pub use outgoing::{Departures, MoveOutcome, MovePermit, OutgoingSession, OutgoingSessions, SESSIONS_IN_FLIGHT};
pub use record::{RecordError, ServerRecord, SessionRecord, UnnamedRecord, wipe};

/// Version of the state of a session. Any change of [`SessionRecord`] or of the meaning of a field is a new version.
pub const STATE_VERSION: u32 = 2;

/// First bytes of a hello; the version follows.
const HELLO: &[u8; 8] = b"sessions";

/// Length of a hello.
pub const HELLO_BYTES: usize = HELLO.len() + 4;

/// The hello of a process with this version of the state.
#[must_use]
pub fn hello(version: u32) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..HELLO.len()].copy_from_slice(HELLO);
    bytes[HELLO.len()..].copy_from_slice(&version.to_be_bytes());
    bytes
}

/// The version in the hello of the other process; `None` if it is no hello.
#[must_use]
pub fn version_of(hello: [u8; HELLO_BYTES]) -> Option<u32> {
    let version = hello.strip_prefix(HELLO)?;
    Some(u32::from_be_bytes(version.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_carries_its_version() {
        assert_eq!(version_of(hello(7)), Some(7));
        assert_eq!(version_of(*b"SESSIONS\0\0\0\x01"), None);
    }
}
