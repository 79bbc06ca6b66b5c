//! Values of `set_config` that are statement parameters: Bind supplies them.

use tidegate_wire::{
    frame::HEADER,
    frontend::{Bind, Parse},
};

use super::Exchange;
use tidegate_session_state::config_values::bind_values;

impl Exchange<'_> {
    /// Fills the parameters of a bound portal's setting change with the values of its Bind.
    pub(super) fn read_config_values(&mut self, bind: &Bind<'_>) {
        let front = &mut *self.front;
        let Some(change) = front.portal_changes.of_bound(bind.portal) else { return };
        let known = front.statements.as_ref().and_then(|statements| statements.get(bind.statement));
        let message = match (&known, &front.unnamed) {
            (Some(known), _) => Some(known.statement.parse_message()),
            (None, Some(unnamed)) => Some(&*unnamed.message),
            (None, None) => None,
        };
        let parse = message.and_then(|message| Parse::decode(&message[HEADER..]).ok());
        bind_values(change, bind, parse.as_ref());
    }
}
