//! Settings between a client and its server: the server is given those of the client, and what the client sets is noted.
//!
//! A server reports a parameter before ReadyForQuery, whatever the cause: a SET of the client, one inside a function, the end of
//! a transaction, or a configuration that was loaded again. A SET or RESET that the text of a statement tells is followed. Of a
//! report that nothing explains the server is asked by a RESET between two transactions: if that changes the value, the client
//! had set it, and is given it again with its next transaction; if not, the value is the server's own.

use std::rc::Rc;

use tidegate_wire::{
    backend::{self, ErrorFields, ParameterStatus, TxStatus},
    frontend, sqlstate,
};

use super::{
    Exchange, ExchangeError,
    pending_changes::Settled,
    pending_replies::{Disposition, RequestKind},
    pins_of,
    reply::ReplyAction,
};
use tidegate_session_state::{
    params::{IN_HOT_STANDBY, ParameterValue, ROLE, Settings, is_role, is_settable, reset_sql},
    statements::affects_analysis,
};
use tidegate_sql::classify::{ConfigValue, Pins, SessionChange};

use crate::server::{ResetNeed, SyncedParams};

/// Reports of the server since the client's settings were last settled.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Parameters that were reported, or that are about to be.
    names: Vec<Box<str>>,
    /// Those that the client has set: the value is the one that the server reports.
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

    /// `name` was reset: the value that is reported is the server's own.
    fn note_reset(&mut self, name: &str) {
        self.set.retain(|known| !known.eq_ignore_ascii_case(name));
        self.note(name);
    }
}

/// Names are as few as the parameters that a server may report.
fn add(names: &mut Vec<Box<str>>, name: &str) {
    if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        names.push(name.into());
    }
}

/// Asking the server whose some reported values are, which nothing explains.
#[derive(Debug)]
pub(super) enum Inquiry {
    /// Nothing is asked.
    None,
    /// A RESET of these parameters is on its way; each with the value that was reported.
    Reset(Vec<(Box<str>, ParameterValue)>),
    /// The values that turned out to be the client's are being set again.
    Restore(Vec<(Box<str>, ParameterValue)>),
}

impl Inquiry {
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// The OID of `set_config`.
const SET_CONFIG: u32 = 2078;

impl Exchange<'_> {
    /// Gives the server the client's settings before its first message, if it has others.
    #[inline]
    pub(super) fn sync_params(&mut self) {
        let is_same = |synced_params: &SyncedParams| {
            Rc::ptr_eq(&synced_params.settings, &self.front.settings)
                && Rc::ptr_eq(&synced_params.reported, &self.front.told)
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
            self.adopting += 1;
        }
        self.server.link().write(messages);
        self.server.unnamed = None;
        self.server.synced_params = None;
    }

    /// The server has the client's settings. Appends what the client is to be told of it that it does not know, as after a
    /// configuration was loaded again on this server.
    fn note_synced_params(&mut self, out: &mut Vec<u8>) {
        let reported = match &self.server.synced_params {
            Some(synced_params) => synced_params.reported.clone(),
            None => self.interned.intern(self.server.settings.reported().clone()),
        };
        if !Rc::ptr_eq(&reported, &self.front.told) {
            // A client that has a choice of servers is told at its login what it has chosen, and not with each transaction.
            let is_routed = |name: &str| name == IN_HOT_STANDBY && self.is_routed;
            let is_told =
                |name: &str, value: &ParameterValue| self.front.told.get(name) == Some(value) || is_routed(name);
            for (name, value) in reported.iter().filter(|(name, value)| !is_told(name, value)) {
                backend::parameter_status(name.as_bytes(), value.bytes(), out);
            }
            self.front.told = reported.clone();
        }
        self.server.synced_params = Some(SyncedParams { settings: self.front.settings.clone(), reported });
    }

    /// A query of the gateway's own is done: the adoption of settings, the RESET that tells whose a value is, or the ROLLBACK
    /// after a failed one.
    pub(super) fn gateway_query_done(&mut self) -> Result<ReplyAction, ExchangeError> {
        let Some(left) = self.adopting.checked_sub(1) else { return Ok(ReplyAction::Swallow) };
        self.adopting = left;
        if left > 0 {
            return Ok(ReplyAction::Swallow);
        }
        let error = self.adoption_error.take();
        // A request of the client to cancel may have hit it, and hits once.
        let is_cancelled = error.as_ref().is_some_and(|error| is_cancelled(error));
        match std::mem::replace(&mut self.inquiry, Inquiry::None) {
            Inquiry::Reset(values) if is_cancelled => {
                self.ask_whose(values);
                return Ok(ReplyAction::Swallow);
            }
            Inquiry::Reset(values) => {
                self.explain(values, error.is_some());
                return Ok(ReplyAction::Swallow);
            }
            Inquiry::Restore(values) if is_cancelled => {
                self.restore(values);
                return Ok(ReplyAction::Swallow);
            }
            Inquiry::Restore(_) | Inquiry::None => {}
        }
        if let Some(error) = error {
            return Err(ExchangeError::Settings(error));
        }
        let settled = self.server.settings.finish_sync(&self.front.settings);
        let settled = self.interned.intern(settled);
        if Rc::ptr_eq(&self.front.startup_settings, &self.front.settings) {
            // As a RESET would have the server report them.
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
        if self.adopting > 0 {
            // The client gets a ParameterStatus at the end, should it know another value.
            return Ok(ReplyAction::Swallow);
        }
        self.server.synced_params = None;
        self.front.told = self.interned.with(&self.front.told, name, Some(ParameterValue::text(status.value)));
        if is_settable(name) {
            if !self.doubtful.is_empty() && affects_analysis(name) {
                self.give_up_doubtful();
            }
            self.reports.note(name);
        }
        Ok(ReplyAction::Pass)
    }

    /// A transaction has been rolled back, and another may follow without a break. Where it was in no block, a procedure may
    /// have kept a part of what was set.
    pub(super) fn undo_pending(&mut self) {
        let undone = self.pending.roll_back();
        if undone && self.pending_replies.status == TxStatus::Idle {
            self.server.needs_reset(ResetNeed::Session);
        }
    }

    pub(super) fn settle_pending(&mut self, status: TxStatus) {
        if status != TxStatus::Idle {
            return;
        }
        let kept = self.pending.take_kept();
        if !kept.is_empty() {
            self.settle(Settled::Kept(kept));
        }
        let settled = self.pending.settle();
        self.settle(settled);
    }

    pub(super) fn settle(&mut self, settled: Settled) {
        if settled == Settled::Nothing {
            return;
        }
        self.server.synced_params = None;
        match settled {
            Settled::Nothing => {}
            Settled::Kept(changes) => changes.into_iter().for_each(|change| self.apply_change(change)),
            // A procedure may have kept a part of it: the server is cleaned before it goes to another client, and the client's
            // settings stay as they were.
            Settled::Undone => self.server.needs_reset(ResetNeed::Session),
            Settled::Unclear => self.pin_setting(),
        }
    }

    /// The client's setting cannot be repeated on another server.
    fn pin_setting(&mut self) {
        if self.keeps_state_apart() {
            self.front.pins.add(Pins::SETTING);
        }
    }

    fn apply_change(&mut self, change: SessionChange) {
        if !self.doubtful.is_empty() {
            self.give_up_doubtful();
        }
        if change.is_reset() {
            (self.has_reset, self.tells_settings) = (true, true);
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
                self.reports.note_reset(&name);
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

    /// A parameter was set; without a value, to what only the server knows.
    fn apply_set(&mut self, name: &str, value: Option<ParameterValue>) {
        if self.server.settings.reported().get(name).is_some() {
            return self.reports.note_set(name);
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
        self.reports.set.clear();
        self.server.settings.reset_all().iter().for_each(|name| self.reports.note_reset(name));
    }

    /// If no transaction is open, the server has reported what has changed: whose each value is decides what the next client
    /// gets.
    #[inline]
    pub(super) fn settle_reports(&mut self, status: TxStatus) {
        if !self.reports.is_empty() && status == TxStatus::Idle && self.adopting == 0 {
            self.find_causes();
        }
    }

    fn find_causes(&mut self) {
        for name in std::mem::take(&mut self.reports.set) {
            self.note_value(&name);
        }
        let mut unexplained = Vec::new();
        for name in std::mem::take(&mut self.reports.names) {
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
            self.ask_whose(values);
        } else {
            self.reports.names = unexplained;
        }
    }

    /// The client has set a parameter to what the server reports of it.
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

    /// Asks the server whose these values are, which it has reported.
    fn ask_whose(&mut self, values: Vec<(Box<str>, ParameterValue)>) {
        let mut out = Vec::new();
        if self.keeps_state_apart() {
            frontend::query(&reset_sql(values.iter().map(|(name, _)| &**name)), &mut out);
            self.pending_replies.push(RequestKind::Query(None, None), Disposition::Discard);
            self.adopting += 1;
            self.server.unnamed = None;
        } else {
            // A Query would make an end of the unnamed statement, which is the client's own here. With NULL it is a RESET.
            for (name, _) in &values {
                self.call_set_config(name, None, &mut out);
            }
        }
        self.inquiry = Inquiry::Reset(values);
        self.server.link().write(out);
    }

    fn call_set_config(&mut self, name: &str, value: Option<&[u8]>, out: &mut Vec<u8>) {
        frontend::function_call(SET_CONFIG, &[Some(name.as_bytes()), value, Some(b"false")], out);
        self.pending_replies.push(RequestKind::FunctionCall, Disposition::Discard);
        self.adopting += 1;
    }

    /// The server has been asked whose some values are.
    fn explain(&mut self, values: Vec<(Box<str>, ParameterValue)>, is_refused: bool) {
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
            // A client that stays on this server is given what it had set again.
            self.has_reset = true;
        } else if !set.is_empty() {
            self.restore(set);
        }
    }

    /// Gives the client of a session what it had set again.
    fn restore(&mut self, values: Vec<(Box<str>, ParameterValue)>) {
        let mut out = Vec::new();
        for (name, value) in &values {
            self.call_set_config(name, Some(value.bytes()), &mut out);
        }
        self.inquiry = Inquiry::Restore(values);
        self.server.link().write(out);
    }

    /// The exchange ends: reports that nothing has explained yet are taken for settings of a client.
    pub(super) fn give_up_reports(&mut self) {
        if !self.reports.is_empty() || self.inquiry.is_under_way() {
            self.server.settings.mark_unexpected_reports();
            self.server.synced_params = None;
        }
    }

    /// The client has been told to what the server went back, which is not what it had set at its login.
    pub(super) fn settings_to_tell(&mut self) -> Vec<u8> {
        let (mut out, mut told) = (Vec::new(), Settings::clone(&self.front.told));
        for (name, value) in self.front.settings.iter() {
            if let ParameterValue::Text(text) = value
                && self.server.settings.reported().get(name).is_some_and(|reported| reported != value)
            {
                backend::parameter_status(name.as_bytes(), text, &mut out);
                told.set(name, value.clone());
            }
        }
        if !out.is_empty() {
            self.front.told = self.interned.intern(told);
        }
        out
    }
}

fn is_cancelled(error: &[u8]) -> bool {
    ErrorFields::decode(error).is_ok_and(|fields| fields.code() == Some(sqlstate::QUERY_CANCELED))
}
