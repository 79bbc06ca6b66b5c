//! Synchronization of settings: the server receives the client's settings, and the gateway tracks their changes.
//!
//! A server reports a parameter before ReadyForQuery, after any cause: a SET of the client, a SET inside a function, the end
//! of a transaction, or a configuration reload. The gateway tracks each SET and RESET that is visible in statement text. For
//! any other report, it sends a RESET between two transactions. If the value changes, it was the client's, and is set again
//! with the client's next transaction. Otherwise the value is the server's own.

use std::rc::Rc;

use tidegate_wire::{
    backend::{self, ErrorFields, ParameterStatus, TxStatus},
    frontend, sqlstate,
};

use super::{Exchange, ExchangeError, pins_of, reply::ReplyAction};
use tidegate_pending_replies::{Disposition, RequestKind};
use tidegate_session_state::{
    params::{IN_HOT_STANDBY, ParameterValue, ROLE, Settings, is_role, is_settable, reset_sql},
    pending_changes::Settled,
    statements::affects_analysis,
};
use tidegate_sql::classify::{ConfigValue, Pins, SessionChange};

use crate::server::{ResetNeed, SyncedParams};

/// Server reports since the client's settings were last settled.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Parameters that were reported, or will be.
    names: Vec<Box<str>>,
    /// Parameters that the client has set to the value that the server reports.
    set: Vec<Box<str>>,
}

impl Reports {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.set.is_empty()
    }

    fn note(&mut self, name: &str) {
        add(&mut self.names, name);
    }

    fn note_set(&mut self, name: &str) {
        add(&mut self.set, name);
    }

    /// Records a reset of `name`: the reported value is the server's own.
    fn note_reset(&mut self, name: &str) {
        self.set.retain(|known| !known.eq_ignore_ascii_case(name));
        self.note(name);
    }
}

/// The list is bounded by the number of parameters that a server reports.
fn add(names: &mut Vec<Box<str>>, name: &str) {
    if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        names.push(name.into());
    }
}

/// Check of the origin of reported values without a known cause.
#[derive(Debug)]
pub(super) enum OriginCheck {
    /// No check is running.
    None,
    /// A RESET of these parameters is pending; each has the reported value.
    Reset(Vec<(Box<str>, ParameterValue)>),
    /// The client's values are being set again.
    Restore(Vec<(Box<str>, ParameterValue)>),
}

impl OriginCheck {
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// OID of `set_config`.
const SET_CONFIG: u32 = 2078;

impl Exchange<'_> {
    /// Sends the client's settings before the first message, if the server has others.
    #[inline]
    pub(super) fn sync_params(&mut self) {
        let is_same = |synced_params: &SyncedParams| {
            Rc::ptr_eq(&synced_params.settings, &self.front.settings)
                && Rc::ptr_eq(&synced_params.reported, &self.front.reported)
        };
        if !self.server.synced_params.as_ref().is_some_and(is_same) {
            self.send_settings();
        }
    }

    fn send_settings(&mut self) {
        let queries = self.server.settings.sync_queries(&self.front.settings, self.front.role_turn);
        if queries.is_empty() {
            let mut out = Vec::new();
            self.note_synced_params(&mut out);
            if !out.is_empty() {
                self.front.link.write(out);
            }
            return;
        }
        let mut messages = Vec::with_capacity(queries.iter().map(|sql| sql.len() + 6).sum());
        for sql in queries {
            frontend::query(&sql, &mut messages);
            self.pending_replies.push(RequestKind::Query(None, None), Disposition::Discard);
            self.settings_pending += 1;
        }
        self.server.link().write(messages);
        self.server.unnamed = None;
        self.server.synced_params = None;
    }

    /// Records that the server has the client's settings. Appends ParameterStatus messages for values that the client has not
    /// received, as after a configuration reload on this server.
    fn note_synced_params(&mut self, out: &mut Vec<u8>) {
        let reported = match &self.server.synced_params {
            Some(synced_params) => synced_params.reported.clone(),
            None => self.interned.intern(self.server.settings.reported().clone()),
        };
        if !Rc::ptr_eq(&reported, &self.front.reported) {
            // A routed client receives `in_hot_standby` at login only, and not with each transaction.
            let is_routed = |name: &str| name == IN_HOT_STANDBY && self.is_routed;
            let is_reported =
                |name: &str, value: &ParameterValue| self.front.reported.get(name) == Some(value) || is_routed(name);
            for (name, value) in reported.iter().filter(|(name, value)| !is_reported(name, value)) {
                backend::parameter_status(name.as_bytes(), value.bytes(), out);
            }
            self.front.reported = reported.clone();
        }
        self.server.synced_params = Some(SyncedParams { settings: self.front.settings.clone(), reported });
    }

    /// Handles the end of a gateway query: settings, the RESET of an origin check, or the ROLLBACK after a failed query.
    pub(super) fn gateway_query_done(&mut self) -> Result<ReplyAction, ExchangeError> {
        let Some(left) = self.settings_pending.checked_sub(1) else { return Ok(ReplyAction::Swallow) };
        self.settings_pending = left;
        if left > 0 {
            return Ok(ReplyAction::Swallow);
        }
        let error = self.settings_error.take();
        // A cancel request of the client may have hit the query, and takes effect once.
        let is_cancelled = error.as_ref().is_some_and(|error| is_cancelled(error));
        match std::mem::replace(&mut self.origin_check, OriginCheck::None) {
            OriginCheck::Reset(values) if is_cancelled => {
                self.begin_origin_check(values);
                return Ok(ReplyAction::Swallow);
            }
            OriginCheck::Reset(values) => {
                self.finish_origin_check(values, error.is_some());
                return Ok(ReplyAction::Swallow);
            }
            OriginCheck::Restore(values) if is_cancelled => {
                self.restore(values);
                return Ok(ReplyAction::Swallow);
            }
            OriginCheck::Restore(_) | OriginCheck::None => {}
        }
        if let Some(error) = error {
            return Err(ExchangeError::Settings(error));
        }
        let settled = self.server.settings.finish_sync(&self.front.settings);
        let settled = self.interned.intern(settled);
        if Rc::ptr_eq(&self.front.startup_settings, &self.front.settings) {
            // Store the values as the server would report them after a RESET.
            self.front.startup_settings = settled.clone();
        }
        self.front.settings = settled;
        let mut out = Vec::new();
        self.note_synced_params(&mut out);
        Ok(if out.is_empty() { ReplyAction::Swallow } else { ReplyAction::Replace(out) })
    }

    pub(super) fn parameter(&mut self, body: &[u8]) -> Result<ReplyAction, ExchangeError> {
        let status = ParameterStatus::decode(body).map_err(ExchangeError::BadServer)?;
        let Ok(name) = str::from_utf8(status.name) else { return Ok(ReplyAction::Pass) };
        if !self.server.settings.report(name, status.value) {
            return Ok(ReplyAction::Pass);
        }
        if self.settings_pending > 0 {
            // The client receives a ParameterStatus at the end, if its value differs.
            return Ok(ReplyAction::Swallow);
        }
        self.server.synced_params = None;
        self.front.reported = self.interned.with(&self.front.reported, name, Some(ParameterValue::text(status.value)));
        if is_settable(name) {
            if !self.doubtful.is_empty() && affects_analysis(name) {
                self.expire_doubtful();
            }
            self.reports.get_or_insert_default().note(name);
        }
        Ok(ReplyAction::Pass)
    }

    /// Handles a rollback that another transaction may follow without a ReadyForQuery between. Outside a block, a procedure
    /// may have committed some of the changes.
    pub(super) fn undo_pending(&mut self) {
        let undone = self.pending.as_mut().is_some_and(|pending| pending.roll_back());
        if undone && self.pending_replies.status == TxStatus::Idle {
            self.server.needs_reset(ResetNeed::Session);
        }
    }

    pub(super) fn settle_pending(&mut self, status: TxStatus) {
        if status != TxStatus::Idle {
            return;
        }
        let Some(mut pending) = self.pending.take() else { return };
        let kept = pending.take_kept();
        if !kept.is_empty() {
            self.settle(Settled::Kept(kept));
        }
        self.settle(pending.settle());
    }

    pub(super) fn settle(&mut self, settled: Settled) {
        if settled == Settled::Nothing {
            return;
        }
        self.server.synced_params = None;
        match settled {
            Settled::Nothing => {}
            Settled::Kept(changes) => changes.into_iter().for_each(|change| self.apply_change(change)),
            // A procedure may have committed some of the changes: the server is reset before its next client, and the
            // client's settings stay unchanged.
            Settled::Undone => self.server.needs_reset(ResetNeed::Session),
            Settled::Unclear => self.pin_setting(),
        }
    }

    /// Pins the client, whose setting cannot be reproduced on another server.
    fn pin_setting(&mut self) {
        if self.keeps_state_apart() {
            self.front.pins.add(Pins::SETTING);
        }
    }

    fn apply_change(&mut self, change: SessionChange) {
        if !self.doubtful.is_empty() {
            self.expire_doubtful();
        }
        if change.is_reset() {
            (self.has_reset, self.reports_settings) = (true, true);
        }
        match change {
            SessionChange::Set { name, value } => {
                self.apply_set(&name, value.map(|value| ParameterValue::Sql(value.into())));
            }
            SessionChange::SetConfig { name, value: ConfigValue::Text(text) } => {
                self.apply_set(&name, Some(ParameterValue::text(text.as_bytes())));
            }
            SessionChange::SetConfig { name, .. } => self.apply_set(&name, None),
            SessionChange::Reset(name) => {
                self.server.settings.reset(&name);
                self.reports.get_or_insert_default().note_reset(&name);
                let original = self.front.startup_settings.get(&name).cloned();
                self.front.settings = self.interned.with(&self.front.settings, &name, original);
            }
            SessionChange::DeallocateAll | SessionChange::Deallocate(_) => {}
            SessionChange::Sets(sets) => sets.into_iter().for_each(|set| self.apply_change(set)),
            SessionChange::Savepoint(_)
            | SessionChange::Release(_)
            | SessionChange::RollbackTo(_)
            | SessionChange::Savepoints => {}
            SessionChange::ResetAll => {
                self.note_reset_all();
                let role = self.server.settings.role().cloned();
                self.front.settings = self.interned.with(&self.front.settings, ROLE, role);
            }
            SessionChange::DiscardAll => {
                self.note_reset_all();
                self.server.settings.reset(ROLE);
                let had_origin = self.front.pins.has(Pins::ORIGIN);
                self.front.pins = pins_of(&self.front.settings);
                if had_origin {
                    self.front.pins.add(Pins::ORIGIN);
                }
                self.front.pins.add(self.pins_behind.take().unwrap_or_default());
            }
        }
    }

    /// Applies a SET. Without a value, only the server has the value.
    fn apply_set(&mut self, name: &str, value: Option<ParameterValue>) {
        if self.server.settings.reported().get(name).is_some() {
            return self.reports.get_or_insert_default().note_set(name);
        }
        let Some(value) = value.filter(|_| !self.front.settings.has_no_room_for(name)) else {
            return self.pin_setting();
        };
        let value = if is_role(name) { self.front.own(value) } else { value };
        self.server.settings.set(name, value.clone());
        self.front.settings = self.interned.with(&self.front.settings, name, Some(value));
    }

    fn note_reset_all(&mut self) {
        self.front.settings = self.front.startup_settings.clone();
        let reports = self.reports.get_or_insert_default();
        reports.set.clear();
        self.server.settings.reset_all().iter().for_each(|name| reports.note_reset(name));
    }

    #[inline]
    pub(super) fn has_pending_changes(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.is_empty())
    }

    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        self.reports.as_ref().is_some_and(|reports| !reports.is_empty())
    }

    /// Settles the reports once no transaction is open. The origin of each value decides the settings of the next client.
    #[inline]
    pub(super) fn settle_reports(&mut self, status: TxStatus) {
        if self.has_reports() && status == TxStatus::Idle && self.settings_pending == 0 {
            self.resolve_reports();
        }
    }

    fn resolve_reports(&mut self) {
        let Reports { names, set } = *self.reports.take().unwrap_or_default();
        for name in set {
            self.note_value(&name);
        }
        let mut unexplained = Vec::new();
        for name in names {
            if self.server.settings.is_default_unknown(&name) {
                self.server.settings.update_default_unless_set(&name);
            } else if !self.server.settings.is_as_expected(&name) {
                unexplained.push(name);
            }
        }
        if unexplained.is_empty() {
            return;
        }
        self.server.synced_params = None;
        if self.pending_replies.is_over() {
            let value = |name: Box<str>| Some((name.clone(), self.server.settings.reported().get(&name)?.clone()));
            let values = unexplained.into_iter().filter_map(value).collect();
            self.begin_origin_check(values);
        } else {
            self.reports.get_or_insert_default().names = unexplained;
        }
    }

    /// Records the reported value of a parameter that the client has set.
    fn note_value(&mut self, name: &str) {
        let Some(value) = self.server.settings.reported().get(name).cloned() else { return };
        if self.front.settings.has_no_room_for(name) {
            return self.pin_setting();
        }
        self.server.settings.set(name, value.clone());
        if self.front.settings.get(name) != Some(&value) {
            self.front.settings = self.interned.with(&self.front.settings, name, Some(value));
        }
    }

    /// Starts a check of the origin of reported values.
    fn begin_origin_check(&mut self, values: Vec<(Box<str>, ParameterValue)>) {
        let mut out = Vec::new();
        if self.keeps_state_apart() {
            frontend::query(&reset_sql(values.iter().map(|(name, _)| &**name)), &mut out);
            self.pending_replies.push(RequestKind::Query(None, None), Disposition::Discard);
            self.settings_pending += 1;
            self.server.unnamed = None;
        } else {
            // A Query would drop the unnamed statement, which is the client's own here. `set_config` with NULL acts as RESET.
            for (name, _) in &values {
                self.call_set_config(name, None, &mut out);
            }
        }
        self.origin_check = OriginCheck::Reset(values);
        self.server.link().write(out);
    }

    fn call_set_config(&mut self, name: &str, value: Option<&[u8]>, out: &mut Vec<u8>) {
        frontend::function_call(SET_CONFIG, &[Some(name.as_bytes()), value, Some(b"false")], out);
        self.pending_replies.push(RequestKind::FunctionCall, Disposition::Discard);
        self.settings_pending += 1;
    }

    /// Handles the result of an origin check.
    fn finish_origin_check(&mut self, values: Vec<(Box<str>, ParameterValue)>, is_refused: bool) {
        if is_refused {
            self.server.needs_reset(ResetNeed::Session);
            values.iter().for_each(|(name, _)| self.note_value(name));
            return;
        }
        let mut set = Vec::new();
        for (name, value) in values {
            self.server.settings.reset(&name);
            let was_set = self.server.settings.reported().get(&name) != Some(&value);
            self.server.settings.update_default_unless_set(&name);
            let kept = Some(value).filter(|_| was_set && !self.front.settings.has_no_room_for(&name));
            self.front.settings = self.interned.with(&self.front.settings, &name, kept.clone());
            set.extend(kept.map(|value| (name, value)));
        }
        if self.keeps_state_apart() {
            // A client that stays on this server gets its values again.
            self.has_reset = true;
        } else if !set.is_empty() {
            self.restore(set);
        }
    }

    /// Sets the values of a session-mode client again.
    fn restore(&mut self, values: Vec<(Box<str>, ParameterValue)>) {
        let mut out = Vec::new();
        for (name, value) in &values {
            self.call_set_config(name, Some(value.bytes()), &mut out);
        }
        self.origin_check = OriginCheck::Restore(values);
        self.server.link().write(out);
    }

    /// Handles the end of the exchange: reports without a known cause count as settings of a client.
    pub(super) fn close_reports(&mut self) {
        if self.has_reports() || self.origin_check.is_under_way() {
            self.server.settings.mark_unexpected_reports();
            self.server.synced_params = None;
        }
    }

    /// Messages for a client that has received the server's values after a RESET, where these differ from its login settings.
    pub(super) fn settings_to_report(&mut self) -> Vec<u8> {
        let (mut out, mut updated) = (Vec::new(), Settings::clone(&self.front.reported));
        for (name, value) in self.front.settings.iter() {
            if let ParameterValue::Text(text) = value
                && self.server.settings.reported().get(name).is_some_and(|reported| reported != value)
            {
                backend::parameter_status(name.as_bytes(), text, &mut out);
                updated.set(name, value.clone());
            }
        }
        if !out.is_empty() {
            self.front.reported = self.interned.intern(updated);
        }
        out
    }
}

fn is_cancelled(error: &[u8]) -> bool {
    ErrorFields::decode(error).is_ok_and(|fields| fields.code() == Some(sqlstate::QUERY_CANCELED))
}
