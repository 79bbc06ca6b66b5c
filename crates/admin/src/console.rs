//! The admin console: a database whose queries are commands.
//!
//! A client speaks either protocol. Figures are asked of all threads and waited for here, so that the thread goes on
//! with its other clients meanwhile; whatever is waited for, the client may leave, be killed, or cancel.

use std::{
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_wire::backend::ErrorReply;

use tidegate_link::Link;
use tidegate_wire::{
    DecodeError, MessageHeader,
    backend::{self, ErrorReport, Severity, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, ObjectName, Parse, Query},
    sqlstate,
};

use super::{
    command::{self, Command, Courtesy, HELP, Known},
    desk::{Desk, Portal, Progress},
    fault::Fault,
    order::Order,
    show::{Figures, Topic},
    table::{Column, Formats, Row, Table, Value, data_row, describe},
};
use tidegate_proxy::{
    client,
    plane::{ClientState, ConsoleClient, Entry, Gateway, Phase, Signal, Worker},
};

/// Serves a client of the console until it leaves, and says why it does.
pub fn serve(worker: Rc<Worker>, client: ConsoleClient) -> Pin<Box<dyn Future<Output = &'static str>>> {
    let ConsoleClient { link, user, may_change, entry } = client;
    let conversation = Conversation {
        link,
        user,
        may_change,
        presence: Presence::begin(worker, entry),
        inbox: Vec::new(),
        out: Vec::new(),
        desk: Desk::default(),
        skipping: false,
        in_transaction: false,
        suspends: false,
    };
    Box::pin(conversation.run())
}

/// A command is far shorter; whoever sends more has mistaken the console for a database.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// So much is put together before the client has to take it.
const OUT_BYTES_MAX: usize = 64 * 1024;

/// One client of the console.
struct Conversation {
    link: Link,
    user: String,
    may_change: bool,
    presence: Presence,
    /// Received and not yet looked at.
    inbox: Vec<u8>,
    /// Said and not yet sent.
    out: Vec<u8>,
    desk: Desk,
    /// After an error, up to the next Sync.
    skipping: bool,
    /// A transaction holds nothing here but portals.
    in_transaction: bool,
    /// It has suspended the gateway.
    suspends: bool,
}

/// Why a conversation ends.
enum Goodbye {
    /// The client left, or its link broke: there is nobody to tell.
    Gone(&'static str),
    /// The client is told this first.
    Told(ErrorReply),
}

impl From<DecodeError> for Goodbye {
    fn from(error: DecodeError) -> Self {
        Self::Told(ErrorReply::protocol(format!("invalid message: {error}")))
    }
}

/// What a command comes to.
enum Answer {
    Rows(Table),
    Notice,
    Done,
}

/// A client's place on the roster, and its count among the clients of the console.
struct Presence {
    worker: Rc<Worker>,
    entry: Entry,
}

impl Presence {
    fn begin(worker: Rc<Worker>, entry: Entry) -> Self {
        worker.gateway.statistics.console.enter();
        Self { worker, entry }
    }

    /// What ends the conversation, whatever the client does.
    fn interrupt(&self) -> Option<Goodbye> {
        let ended = |reason| Some(Goodbye::Told(ErrorReply::new(sqlstate::ADMIN_SHUTDOWN, reason)));
        if self.entry.client_info.peek_signal() == Some(Signal::Kill) {
            return ended("the connection was ended by an operator");
        }
        match self.worker.gateway.lifecycle.phase() {
            Phase::WaitingForTransactions | Phase::Stopping => ended("the gateway is shutting down"),
            // Somebody may want to watch.
            Phase::Active | Phase::Paused | Phase::Suspended | Phase::WaitingForClients => None,
        }
    }

    /// Whether the client has cancelled what it waits for.
    fn take_cancel(&self) -> bool {
        let cancelled = self.entry.client_info.peek_signal() == Some(Signal::CancelWait);
        if cancelled {
            self.entry.client_info.clear_signal();
        }
        cancelled
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.worker.gateway.statistics.console.leave();
        self.worker.registry.leave(&self.entry);
    }
}

impl Conversation {
    async fn run(mut self) -> &'static str {
        std::future::poll_fn(|cx| {
            self.presence.entry.client_info.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
        let goodbye = self.converse().await;
        if self.suspends {
            Order::Suspend.expire(&self.presence.worker.gateway);
        }
        match goodbye {
            Goodbye::Gone(reason) => {
                self.link.shutdown();
                reason
            }
            Goodbye::Told(refusal) => {
                self.send();
                client::close_with(&self.presence.worker, &mut self.link, refusal.fatal()).await;
                "console closed"
            }
        }
    }

    async fn converse(&mut self) -> Goodbye {
        loop {
            let heard = match self.next_message().await {
                Ok((tag, body)) => self.hear(tag, &body).await,
                Err(goodbye) => Err(goodbye),
            };
            if let Err(goodbye) = heard {
                return goodbye;
            }
        }
    }

    /// The tag and the body of the client's next message.
    async fn next_message(&mut self) -> Result<(u8, Vec<u8>), Goodbye> {
        loop {
            if let Some(header) = MessageHeader::peek(&self.inbox)? {
                if header.total() > MESSAGE_BYTES_MAX {
                    let message = format!("a command of the console has {MESSAGE_BYTES_MAX} bytes at most");
                    return Err(Goodbye::Told(ErrorReply::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message)));
                }
                if self.inbox.len() >= header.total() {
                    let body = self.inbox[HEADER..header.total()].to_vec();
                    self.inbox.drain(..header.total());
                    return Ok((header.tag, body));
                }
            }
            self.send();
            std::future::poll_fn(|cx| self.poll_hear(cx)).await?;
        }
    }

    fn send(&mut self) {
        if !self.out.is_empty() {
            self.link.write(std::mem::take(&mut self.out));
        }
    }

    /// Sends, and takes in what the client says.
    fn poll_hear(&mut self, cx: &Context<'_>) -> Poll<Result<(), Goodbye>> {
        if let Poll::Ready(Err(_)) = self.link.poll_flush(cx) {
            return Poll::Ready(Err(Goodbye::Gone("connection lost")));
        }
        if let Some(goodbye) = self.presence.interrupt() {
            return Poll::Ready(Err(goodbye));
        }
        match std::task::ready!(self.link.poll_read(cx)) {
            Ok(chunk) if !chunk.is_empty() => {
                self.inbox.extend_from_slice(&chunk);
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(Goodbye::Gone("client closed the connection"))),
        }
    }

    /// Waits until the client has taken most of what was said to it, and others have had their turns.
    async fn keep_pace(&mut self) -> Result<(), Goodbye> {
        if self.out.len() < OUT_BYTES_MAX {
            return Ok(());
        }
        self.send();
        std::future::poll_fn(|cx| {
            if let Some(goodbye) = self.presence.interrupt() {
                return Poll::Ready(Err(goodbye));
            }
            self.link.poll_flush(cx).map_err(|_| Goodbye::Gone("connection lost"))
        })
        .await?;
        give_way().await;
        Ok(())
    }

    async fn hear(&mut self, tag: u8, body: &[u8]) -> Result<(), Goodbye> {
        let done = match tag {
            frontend::TERMINATE => return Err(Goodbye::Gone("console closed")),
            frontend::SYNC => {
                self.ready();
                Ok(())
            }
            frontend::FLUSH | frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => Ok(()),
            _ if self.skipping => Ok(()),
            frontend::QUERY => {
                self.query(Query::decode(body)?.text).await?;
                self.ready();
                Ok(())
            }
            frontend::FUNCTION_CALL => {
                Fault::new(sqlstate::FEATURE_NOT_SUPPORTED, "the console has no functions").put(&mut self.out);
                self.ready();
                Ok(())
            }
            frontend::PARSE => {
                let parsed = self.desk.parse(&Parse::decode(body)?);
                parsed.map(|()| backend::parse_complete(&mut self.out))
            }
            frontend::BIND => {
                let bound = self.desk.bind(&Bind::decode(body)?);
                bound.map(|()| backend::bind_complete(&mut self.out))
            }
            frontend::DESCRIBE => self.desk.describe(&ObjectName::decode(body)?, &mut self.out),
            frontend::CLOSE => {
                self.desk.close(&ObjectName::decode(body)?);
                backend::close_complete(&mut self.out);
                Ok(())
            }
            frontend::EXECUTE => self.execute(&Execute::decode(body)?).await?,
            tag => {
                let message = format!("invalid frontend message type {tag}");
                return Err(Goodbye::Told(ErrorReply::protocol(message)));
            }
        };
        if let Err(fault) = done {
            fault.put(&mut self.out);
            self.skipping = true;
        }
        self.keep_pace().await
    }

    fn ready(&mut self) {
        self.skipping = false;
        if !self.in_transaction {
            self.desk.end_transaction();
        }
        let status = if self.in_transaction { TxStatus::InTransaction } else { TxStatus::Idle };
        backend::ready_for_query(status, &mut self.out);
    }

    /// All statements of a text, up to the first that fails. A text with a mistake in it does nothing.
    async fn query(&mut self, text: &[u8]) -> Result<(), Goodbye> {
        self.presence.worker.gateway.statistics.console.note_query();
        let commands = match command::parse(&String::from_utf8_lossy(text)) {
            Ok(commands) => commands,
            Err(fault) => {
                fault.put(&mut self.out);
                return Ok(());
            }
        };
        if commands.is_empty() {
            backend::empty_query(&mut self.out);
        }
        for command in &commands {
            match self.answer(command).await? {
                Ok(answer) => self.put(command, answer).await?,
                Err(fault) => {
                    fault.put(&mut self.out);
                    return Ok(());
                }
            }
            self.keep_pace().await?;
        }
        Ok(())
    }

    async fn put(&mut self, command: &Command, answer: Answer) -> Result<(), Goodbye> {
        match answer {
            Answer::Rows(Table { columns, rows }) => {
                let formats = Formats::default();
                describe(&columns, &formats, &mut self.out);
                self.put_rows(&columns, rows.into_iter(), &formats).await?;
            }
            Answer::Notice => put_help(&mut self.out),
            Answer::Done => {}
        }
        backend::command_complete(command.tag().as_bytes(), &mut self.out);
        Ok(())
    }

    /// Says rows, a piece at a time: there may be very many, and the thread has other clients.
    async fn put_rows(
        &mut self,
        columns: &[Column],
        rows: impl Iterator<Item = Row>,
        formats: &Formats,
    ) -> Result<(), Goodbye> {
        for row in rows {
            data_row(columns, &row, formats, &mut self.out);
            self.keep_pace().await?;
        }
        Ok(())
    }

    async fn execute(&mut self, execute: &Execute<'_>) -> Result<Result<(), Fault>, Goodbye> {
        let mut portal = match self.desk.take(execute.portal) {
            Ok(portal) => portal,
            Err(fault) => return Ok(Err(fault)),
        };
        let executed = self.execute_portal(&mut portal, execute.max_rows).await;
        self.desk.keep(execute.portal, portal);
        executed
    }

    async fn execute_portal(&mut self, portal: &mut Portal, max_rows: i32) -> Result<Result<(), Fault>, Goodbye> {
        let statement = portal.statement.clone();
        let Some(command) = &*statement else {
            backend::empty_query(&mut self.out);
            return Ok(Ok(()));
        };
        if let Progress::Fresh = portal.progress {
            self.presence.worker.gateway.statistics.console.note_query();
            portal.progress = match self.answer(command).await? {
                Ok(Answer::Rows(Table { columns, rows })) => Progress::Reading(columns, rows.into_iter()),
                Ok(Answer::Notice) => {
                    put_help(&mut self.out);
                    Progress::Over
                }
                Ok(Answer::Done) => Progress::Over,
                Err(fault) => return Ok(Err(fault)),
            };
        }
        if self.put_rows_of(portal, max_rows).await? {
            backend::command_complete(command.tag().as_bytes(), &mut self.out);
            portal.progress = Progress::Over;
        }
        Ok(Ok(()))
    }

    /// The next rows of a portal, at most so many if that is more than none. Whether those were the last.
    async fn put_rows_of(&mut self, portal: &mut Portal, max_rows: i32) -> Result<bool, Goodbye> {
        let Progress::Reading(columns, rows) = &mut portal.progress else { return Ok(true) };
        let max = usize::try_from(max_rows).ok().filter(|max| *max > 0).unwrap_or(usize::MAX);
        // As in Postgres, a limit that is just reached suspends the portal: it was not tried whether there is more.
        let is_last = rows.len() < max;
        self.put_rows(columns, rows.take(max), &portal.formats).await?;
        if !is_last {
            put_suspended(&mut self.out);
        }
        Ok(is_last)
    }

    /// Does what a command asks for.
    async fn answer(&mut self, command: &Command) -> Result<Result<Answer, Fault>, Goodbye> {
        match command {
            Command::Show(topic) => {
                let rows = show(self.presence.worker.gateway.clone(), *topic);
                // Whoever looks has no server.
                self.attend(ClientState::Idle, rows).await
            }
            Command::Help => Ok(Ok(Answer::Notice)),
            Command::Value { value, .. } => Ok(Ok(Answer::Rows(self.value(command, value)))),
            Command::Courtesy(courtesy, _) => Ok(self.oblige(courtesy).map(|()| Answer::Done)),
            Command::Order(order) if self.may_change => self.order(order.clone()).await,
            Command::Order(_) => Ok(Err(self.forbidden())),
        }
    }

    async fn order(&mut self, order: Order) -> Result<Result<Answer, Fault>, Goodbye> {
        let worker = self.presence.worker.clone();
        let since = worker.reactor.now();
        if let Some(remark) = order.remark() {
            let report = ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, &remark);
            backend::notice_response(&report, &mut self.out);
        }
        let carried_out = order.clone().carry_out(worker.clone(), self.user.clone());
        self.suspends |= order == Order::Suspend;
        let done = self.attend(ClientState::Waiting(since), carried_out).await?;
        Ok(done.map(|()| Answer::Done).map_err(|fault| {
            let is_over = fault.sqlstate == sqlstate::QUERY_CANCELED && order.take_back(&worker.gateway);
            if is_over { fault.hint("What was ordered is taken back.") } else { fault }
        }))
    }

    fn forbidden(&self) -> Fault {
        let message = format!("permission denied: user \"{}\" may use SHOW only", self.user);
        Fault::new(sqlstate::INSUFFICIENT_PRIVILEGE, message).hint("Name it in users of [admin].")
    }

    fn value(&self, command: &Command, value: &Known) -> Table {
        let value = match value {
            Known::Text(text) => Value::from(*text),
            Known::Number(number) => Value::from(*number),
            Known::User => Value::from(self.user.clone()),
            Known::ProcessId => Value::from(self.presence.entry.pid(self.presence.worker.index)),
        };
        Table { columns: command.columns(), rows: vec![vec![value]] }
    }

    fn oblige(&mut self, courtesy: &Courtesy) -> Result<(), Fault> {
        match courtesy {
            Courtesy::Nothing => {}
            Courtesy::Begin => self.in_transaction = true,
            Courtesy::End => self.in_transaction = false,
            Courtesy::Deallocate(name) => self.desk.deallocate(name.as_deref())?,
        }
        Ok(())
    }

    /// Waits for `work` as long as the client is there and does not cancel. What it says meanwhile is heard later.
    async fn attend<T>(
        &mut self,
        state: ClientState,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<Result<T, Fault>, Goodbye> {
        let client_info = self.presence.entry.client_info.clone();
        // A cancel request that came too late for what went before.
        self.presence.take_cancel();
        client_info.request_at.set(Some(self.presence.worker.reactor.now()));
        client_info.state.set(state);
        let mut work = pin!(work);
        let done = std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            self.poll_meanwhile(cx).map(|ended| ended.map(Err))
        })
        .await;
        client_info.state.set(ClientState::Idle);
        done
    }

    /// Ready if there is no use in waiting any longer.
    fn poll_meanwhile(&mut self, cx: &Context<'_>) -> Poll<Result<Fault, Goodbye>> {
        if self.presence.take_cancel() {
            let fault = Fault::new(sqlstate::QUERY_CANCELED, "canceling statement due to user request");
            return Poll::Ready(Ok(fault.hint("What was ordered stays in force; RESUME ends a pause.")));
        }
        if let Some(goodbye) = self.presence.interrupt() {
            return Poll::Ready(Err(goodbye));
        }
        // A client that says so much without an answer is not looked after any more, but for the end of the work.
        while self.inbox.len() < MESSAGE_BYTES_MAX {
            std::task::ready!(self.poll_hear(cx))?;
        }
        Poll::Pending
    }
}

/// A table; a large one is put together beside the data plane.
async fn show(gateway: Arc<Gateway>, topic: Topic) -> Result<Answer, Fault> {
    if !topic.is_large() {
        return Ok(Answer::Rows(topic.table(&Figures::of(&gateway)).await));
    }
    let owner = gateway.clone();
    let table = move || async move { topic.table(&Figures::of(&owner)).await };
    let table = gateway.pools.connector.resolver.offload_async("a table of the console", table).await;
    let stopping = || Fault::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, "the gateway is stopping");
    table.map(Answer::Rows).ok_or_else(stopping)
}

/// Lets the other tasks of the thread have their turns.
async fn give_way() {
    let mut has_waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Appends PortalSuspended.
fn put_suspended(out: &mut Vec<u8>) {
    out.extend_from_slice(&[backend::PORTAL_SUSPENDED, 0, 0, 0, 4]);
}

/// Appends the list of commands, as the notice that PgBouncer makes of it.
fn put_help(out: &mut Vec<u8>) {
    let width = HELP.iter().map(|(usage, _)| usage.len()).max().unwrap_or_default();
    let lines: Vec<_> = HELP.iter().map(|(usage, meaning)| format!("\t{usage:width$}  {meaning}")).collect();
    let detail = format!("\n{}", lines.join("\n"));
    let report = ErrorReport {
        detail: Some(&detail),
        ..ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, "Console usage")
    };
    backend::notice_response(&report, out);
}
