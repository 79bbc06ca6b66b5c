//! Who ran what, when, for how long and with what result, for the query journal.
//!
//! An [`Archive`] is the journal of a gateway. Each thread has a [`Recorder`] that hands records in without ever waiting;
//! each session a [`Witness`] that says whose they are; and each exchange a [`Ledger`] that follows the queries under way.
//! Without a journal there is none of these, and the path of a query asks one `Option`.

mod archive;
mod decision;
mod item;
mod ledger;
mod lone;
mod recorder;
mod sum;
mod witness;

pub use archive::{Archive, ArchiveError};
pub use ledger::{Front, Ledger, Upstream, first_flight};
pub use recorder::Recorder;
pub use witness::{Stranger, Witness};
