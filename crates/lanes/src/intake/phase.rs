//! The phases of a subscription.

use crate::error::RunError;

#[derive(Debug)]
pub(super) enum IntakePhase {
    Running,
    /// The source has ended; taken records are still processed.
    Ended,
    /// All lanes drain, until a deadline.
    Draining(Option<RunError>),
    /// The source received the last commits and is being closed.
    Closing(Option<RunError>),
}

impl IntakePhase {
    pub(super) fn is_shutdown(&self) -> bool {
        matches!(self, Self::Draining(_) | Self::Closing(_))
    }

    /// Whether the source is still polled for events.
    pub(super) fn polls_source(&self) -> bool {
        match self {
            Self::Running | Self::Ended => true,
            Self::Draining(error) => !matches!(error, Some(RunError::Source(_))),
            Self::Closing(_) => false,
        }
    }

    pub(super) fn takes_records(&self) -> bool {
        matches!(self, Self::Running)
    }

    pub(super) fn on_source_ended(&mut self) {
        if matches!(self, Self::Running) {
            *self = Self::Ended;
        }
    }
}
