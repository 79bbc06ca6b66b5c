//! The admin console: a virtual database whose queries are commands.
//!
//! Clients use the simple or the extended protocol. The console waits for values of all threads without blocking its own thread.
//! During any wait, the client may disconnect, be killed, or cancel.

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
    action::AdminAction,
    command::{self, CompatEffect, ConsoleCommand, ConstantValue, HELP},
    context::AdminContext,
    error::ConsoleError,
    portals::{Portal, PortalProgress, PortalStore},
    queries,
    show::{MetricsSnapshot, ShowTopic, shapes},
    table::{Formats, ResultTable, TableCell, TableColumn, TableRow, data_row, describe},
};
use tidegate_config::Dialect;
use tidegate_proxy::{
    client,
    plane::{ClientState, ConsoleClient, Phase, RegisteredClient, Signal, Worker},
};

/// Serves a console client until it disconnects. Returns the reason of the end.
pub fn serve(
    context: Arc<AdminContext>,
    worker: Rc<Worker>,
    client: ConsoleClient,
) -> Pin<Box<dyn Future<Output = &'static str>>> {
    let ConsoleClient { link, user, may_change, entry } = client;
    let session = ConsoleSession {
        context,
        link,
        user,
        may_change,
        guard: ConsoleGuard::begin(worker, entry),
        inbox: Vec::new(),
        out: Vec::new(),
        portals: PortalStore::default(),
        skipping: false,
        in_transaction: false,
        suspends: false,
    };
    Box::pin(session.run())
}

/// Limit of a message; commands are far shorter.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Size of the output buffer at which the console waits for the client.
const OUT_BYTES_MAX: usize = 64 * 1024;

/// A session of one console client.
struct ConsoleSession {
    context: Arc<AdminContext>,
    link: Link,
    user: String,
    may_change: bool,
    guard: ConsoleGuard,
    /// Received bytes that are not processed yet.
    inbox: Vec<u8>,
    /// Encoded messages that are not sent yet.
    out: Vec<u8>,
    portals: PortalStore,
    /// Skip messages until Sync, after an error.
    skipping: bool,
    /// A transaction has no effect except on portals.
    in_transaction: bool,
    /// This session has suspended the gateway.
    suspends: bool,
}

/// Reason for the end of a session.
enum ConsoleEnd {
    /// The client has disconnected, or the connection is lost.
    Disconnected(&'static str),
    /// The client gets this error first.
    Error(ErrorReply),
}

impl From<DecodeError> for ConsoleEnd {
    fn from(error: DecodeError) -> Self {
        Self::Error(ErrorReply::protocol(format!("invalid message: {error}")))
    }
}

/// Result of a command.
enum CommandResult {
    Table(ResultTable),
    Notice,
    Done,
}

/// Registration of a client and its count among console clients; undone when dropped.
struct ConsoleGuard {
    worker: Rc<Worker>,
    entry: RegisteredClient,
}

impl ConsoleGuard {
    fn begin(worker: Rc<Worker>, entry: RegisteredClient) -> Self {
        worker.gateway.statistics.console.enter();
        Self { worker, entry }
    }

    /// Returns the reason if the gateway ends the session.
    fn end_request(&self) -> Option<ConsoleEnd> {
        let ended = |reason| Some(ConsoleEnd::Error(ErrorReply::new(sqlstate::ADMIN_SHUTDOWN, reason)));
        if self.entry.client_info.peek_signal() == Some(Signal::Kill) {
            return ended("the connection was ended by an operator");
        }
        let gateway = &self.worker.gateway;
        match gateway.lifecycle.phase() {
            // PgBouncer's console stays until the end.
            Phase::WaitingForTransactions if gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer => None,
            Phase::WaitingForTransactions | Phase::Stopping => ended("the gateway is shutting down"),
            // Operators may watch these phases.
            Phase::Active | Phase::Paused | Phase::Suspended | Phase::WaitingForClients => None,
        }
    }

    /// Whether the client has cancelled its wait.
    fn take_cancel(&self) -> bool {
        let cancelled = self.entry.client_info.peek_signal() == Some(Signal::CancelWait);
        if cancelled {
            self.entry.client_info.clear_signal();
        }
        cancelled
    }
}

impl Drop for ConsoleGuard {
    fn drop(&mut self) {
        self.worker.gateway.statistics.console.leave();
        self.worker.registry.leave(&self.entry);
    }
}

impl ConsoleSession {
    async fn run(mut self) -> &'static str {
        std::future::poll_fn(|cx| {
            self.guard.entry.client_info.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
        let end = self.serve_messages().await;
        if self.suspends {
            AdminAction::Suspend.undo_on_disconnect(&self.guard.worker.gateway);
        }
        match end {
            ConsoleEnd::Disconnected(reason) => {
                self.link.shutdown();
                reason
            }
            ConsoleEnd::Error(refusal) => {
                self.send();
                client::close_with(&self.guard.worker, &mut self.link, refusal.fatal()).await;
                "console closed"
            }
        }
    }

    async fn serve_messages(&mut self) -> ConsoleEnd {
        loop {
            let handled = match self.next_message().await {
                Ok((tag, body)) => self.on_message(tag, &body).await,
                Err(end) => Err(end),
            };
            if let Err(end) = handled {
                return end;
            }
        }
    }

    /// Returns tag and body of the next message.
    async fn next_message(&mut self) -> Result<(u8, Vec<u8>), ConsoleEnd> {
        loop {
            if let Some(header) = MessageHeader::peek(&self.inbox)? {
                if header.total() > MESSAGE_BYTES_MAX {
                    let message = format!("console commands are limited to {MESSAGE_BYTES_MAX} bytes");
                    return Err(ConsoleEnd::Error(ErrorReply::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message)));
                }
                if self.inbox.len() >= header.total() {
                    let body = self.inbox[HEADER..header.total()].to_vec();
                    self.inbox.drain(..header.total());
                    return Ok((header.tag, body));
                }
            }
            self.send();
            std::future::poll_fn(|cx| self.poll_receive(cx)).await?;
        }
    }

    fn send(&mut self) {
        if !self.out.is_empty() {
            self.link.write(std::mem::take(&mut self.out));
        }
    }

    /// Sends pending output and receives input.
    fn poll_receive(&mut self, cx: &Context<'_>) -> Poll<Result<(), ConsoleEnd>> {
        if let Poll::Ready(Err(_)) = self.link.poll_flush(cx) {
            return Poll::Ready(Err(ConsoleEnd::Disconnected("connection lost")));
        }
        if let Some(end) = self.guard.end_request() {
            return Poll::Ready(Err(end));
        }
        match std::task::ready!(self.link.poll_read(cx)) {
            Ok(chunk) if !chunk.is_empty() => {
                self.inbox.extend_from_slice(&chunk);
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(ConsoleEnd::Disconnected("client closed the connection"))),
        }
    }

    /// Waits until the client has received most of the output, then lets other tasks run.
    async fn wait_for_output(&mut self) -> Result<(), ConsoleEnd> {
        if self.out.len() < OUT_BYTES_MAX {
            return Ok(());
        }
        self.send();
        std::future::poll_fn(|cx| {
            if let Some(end) = self.guard.end_request() {
                return Poll::Ready(Err(end));
            }
            self.link.poll_flush(cx).map_err(|_| ConsoleEnd::Disconnected("connection lost"))
        })
        .await?;
        yield_now().await;
        Ok(())
    }

    async fn on_message(&mut self, tag: u8, body: &[u8]) -> Result<(), ConsoleEnd> {
        let done = match tag {
            frontend::TERMINATE => return Err(ConsoleEnd::Disconnected("console closed")),
            frontend::SYNC => {
                self.send_ready();
                Ok(())
            }
            frontend::FLUSH | frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => Ok(()),
            _ if self.skipping => Ok(()),
            frontend::QUERY => {
                self.query(Query::decode(body)?.text).await?;
                self.send_ready();
                Ok(())
            }
            frontend::FUNCTION_CALL => {
                self.put_error(&ConsoleError::new(
                    sqlstate::FEATURE_NOT_SUPPORTED,
                    "the console does not support function calls",
                ));
                self.send_ready();
                Ok(())
            }
            frontend::PARSE => {
                let parsed = self.portals.parse(&Parse::decode(body)?);
                parsed.map(|()| backend::parse_complete(&mut self.out))
            }
            frontend::BIND => {
                let bound = self.portals.bind(&Bind::decode(body)?);
                bound.map(|()| backend::bind_complete(&mut self.out))
            }
            frontend::DESCRIBE => self.portals.describe(&ObjectName::decode(body)?, &mut self.out),
            frontend::CLOSE => {
                self.portals.close(&ObjectName::decode(body)?);
                backend::close_complete(&mut self.out);
                Ok(())
            }
            frontend::EXECUTE => self.execute(&Execute::decode(body)?).await?,
            tag => {
                let message = format!("invalid frontend message type {tag}");
                return Err(ConsoleEnd::Error(ErrorReply::protocol(message)));
            }
        };
        if let Err(error) = done {
            self.put_error(&error);
            self.skipping = true;
        }
        self.wait_for_output().await
    }

    fn put_error(&mut self, error: &ConsoleError) {
        let dialect = self.guard.worker.gateway.config.setup().config.listen.dialect;
        error.write(dialect, &mut self.out);
    }

    fn send_ready(&mut self) {
        self.skipping = false;
        if !self.in_transaction {
            self.portals.end_transaction();
        }
        let status = if self.in_transaction { TxStatus::InTransaction } else { TxStatus::Idle };
        backend::ready_for_query(status, &mut self.out);
    }

    /// Executes the statements of a text, up to the first error. A text with a syntax error has no effect.
    async fn query(&mut self, text: &[u8]) -> Result<(), ConsoleEnd> {
        self.guard.worker.gateway.statistics.console.note_query();
        let commands = match command::parse(&String::from_utf8_lossy(text)) {
            Ok(commands) => commands,
            Err(error) => {
                self.put_error(&error);
                return Ok(());
            }
        };
        if commands.is_empty() {
            backend::empty_query(&mut self.out);
        }
        for command in &commands {
            match self.answer(command).await? {
                Ok(answer) => self.put(command, answer).await?,
                Err(error) => {
                    self.put_error(&error);
                    return Ok(());
                }
            }
            self.wait_for_output().await?;
        }
        Ok(())
    }

    async fn put(&mut self, command: &ConsoleCommand, answer: CommandResult) -> Result<(), ConsoleEnd> {
        match answer {
            CommandResult::Table(ResultTable { columns, rows }) => {
                let formats = Formats::default();
                describe(&columns, &formats, &mut self.out);
                self.send_rows(&columns, rows.into_iter(), &formats).await?;
            }
            CommandResult::Notice => write_help(&mut self.out),
            CommandResult::Done => {}
        }
        backend::command_complete(command.tag().as_bytes(), &mut self.out);
        Ok(())
    }

    /// Sends rows in parts: there may be many, and the thread has other clients.
    async fn send_rows(
        &mut self,
        columns: &[TableColumn],
        rows: impl Iterator<Item = TableRow>,
        formats: &Formats,
    ) -> Result<(), ConsoleEnd> {
        for row in rows {
            data_row(columns, &row, formats, &mut self.out);
            self.wait_for_output().await?;
        }
        Ok(())
    }

    async fn execute(&mut self, execute: &Execute<'_>) -> Result<Result<(), ConsoleError>, ConsoleEnd> {
        let mut portal = match self.portals.take(execute.portal) {
            Ok(portal) => portal,
            Err(error) => return Ok(Err(error)),
        };
        let executed = self.execute_portal(&mut portal, execute.max_rows).await;
        self.portals.put_back(execute.portal, portal);
        executed
    }

    async fn execute_portal(
        &mut self,
        portal: &mut Portal,
        max_rows: i32,
    ) -> Result<Result<(), ConsoleError>, ConsoleEnd> {
        let statement = portal.statement.clone();
        let Some(command) = &*statement else {
            backend::empty_query(&mut self.out);
            return Ok(Ok(()));
        };
        if let PortalProgress::Fresh = portal.progress {
            self.guard.worker.gateway.statistics.console.note_query();
            portal.progress = match self.answer(command).await? {
                Ok(CommandResult::Table(ResultTable { columns, rows })) => {
                    PortalProgress::Reading(columns, rows.into_iter())
                }
                Ok(CommandResult::Notice) => {
                    write_help(&mut self.out);
                    PortalProgress::Over
                }
                Ok(CommandResult::Done) => PortalProgress::Over,
                Err(error) => return Ok(Err(error)),
            };
        }
        if self.send_portal_rows(portal, max_rows).await? {
            backend::command_complete(command.tag().as_bytes(), &mut self.out);
            portal.progress = PortalProgress::Over;
        }
        Ok(Ok(()))
    }

    /// Sends the next rows of a portal, at most `max_rows` if positive. Returns whether they were the last ones.
    async fn send_portal_rows(&mut self, portal: &mut Portal, max_rows: i32) -> Result<bool, ConsoleEnd> {
        let PortalProgress::Reading(columns, rows) = &mut portal.progress else { return Ok(true) };
        let max = usize::try_from(max_rows).ok().filter(|max| *max > 0).unwrap_or(usize::MAX);
        // As in Postgres, a portal is suspended if the limit is just reached, because it has not tried to read more.
        let is_last = rows.len() < max;
        self.send_rows(columns, rows.take(max), &portal.formats).await?;
        if !is_last {
            write_suspended(&mut self.out);
        }
        Ok(is_last)
    }

    /// Executes a command.
    async fn answer(&mut self, command: &ConsoleCommand) -> Result<Result<CommandResult, ConsoleError>, ConsoleEnd> {
        match command {
            ConsoleCommand::Show(ShowTopic::Shapes) => self.shapes(String::new()).await,
            ConsoleCommand::Shapes(filter) => self.shapes(filter.clone()).await,
            ConsoleCommand::Show(topic) => {
                let rows = show(self.context.clone(), *topic);
                // A client that reads tables has no server.
                self.wait_for(ClientState::Idle, rows).await
            }
            ConsoleCommand::SlowQueries(minutes) => {
                let rows = queries::table(self.context.gateway.clone(), *minutes, self.may_change);
                Ok(self.wait_for(ClientState::Idle, rows).await?.map(CommandResult::Table))
            }
            ConsoleCommand::Help => Ok(Ok(CommandResult::Notice)),
            ConsoleCommand::NoTypes(..) => {
                Ok(Ok(CommandResult::Table(ResultTable { columns: command.columns(), rows: Vec::new() })))
            }
            ConsoleCommand::Value { value, .. } => Ok(Ok(CommandResult::Table(self.value(command, value)))),
            ConsoleCommand::Compat(compat, _) => Ok(self.apply_compat(compat).map(|()| CommandResult::Done)),
            ConsoleCommand::Action(action) if self.may_change => self.action(action.clone()).await,
            ConsoleCommand::Action(_) => Ok(Err(self.permission_denied())),
        }
    }

    /// SHOW SHAPES. A notice has the number of all.
    async fn shapes(&mut self, filter: String) -> Result<Result<CommandResult, ConsoleError>, ConsoleEnd> {
        let gateway = self.context.gateway.clone();
        let server = self.context.shapes();
        if server.is_none() {
            let text = "no live queries are served: see [shapes] in SHOW CONFIG, and the log";
            self.notice(text);
        }
        let table = move || async move { shapes::table(server.as_deref(), &filter) };
        let built = async {
            let built = gateway.pools.connector.resolver.offload_async("a console table", table).await;
            built.ok_or_else(stopping)
        };
        let found = self.wait_for(ClientState::Idle, built).await?;
        Ok(found.map(|(table, count)| {
            if count > table.rows.len() {
                self.notice(&format!("{} of {count} shapes; SHOW SHAPES text selects some", table.rows.len()));
            }
            CommandResult::Table(table)
        }))
    }

    async fn action(&mut self, action: AdminAction) -> Result<Result<CommandResult, ConsoleError>, ConsoleEnd> {
        let worker = self.guard.worker.clone();
        let since = worker.reactor.now();
        if let Some(notice) = action.notice() {
            self.notice(&notice);
        }
        let executed = action.clone().execute(self.context.clone(), worker.clone(), self.user.clone());
        self.suspends |= action == AdminAction::Suspend;
        let done = self.wait_for(ClientState::Waiting(since), executed).await?;
        if let Ok(Some(notice)) = &done {
            self.notice(notice);
        }
        Ok(done.map(|_| CommandResult::Done).map_err(|error| {
            let is_undone = error.sqlstate == sqlstate::QUERY_CANCELED && action.undo_on_cancel(&worker.gateway);
            if is_undone { error.hint("The command was undone.") } else { error }
        }))
    }

    fn notice(&mut self, text: &str) {
        let report = ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, text);
        backend::notice_response(&report, &mut self.out);
    }

    fn permission_denied(&self) -> ConsoleError {
        let message = format!("permission denied: user \"{}\" may use SHOW only", self.user);
        let hint = match self.guard.worker.gateway.config.setup().config.listen.dialect {
            Dialect::Pgbouncer => "Name it in admin_users.",
            Dialect::Postgres => "Name it in users of [admin].",
        };
        ConsoleError::new(sqlstate::INSUFFICIENT_PRIVILEGE, message).hint(hint)
    }

    fn value(&self, command: &ConsoleCommand, value: &ConstantValue) -> ResultTable {
        let value = match value {
            ConstantValue::Text(text) => TableCell::from(*text),
            ConstantValue::Number(number) => TableCell::from(*number),
            ConstantValue::User => TableCell::from(self.user.clone()),
            ConstantValue::ProcessId => TableCell::from(self.guard.worker.pid_of(&self.guard.entry)),
        };
        ResultTable { columns: command.columns(), rows: vec![vec![value]] }
    }

    fn apply_compat(&mut self, compat: &CompatEffect) -> Result<(), ConsoleError> {
        match compat {
            CompatEffect::Nothing => {}
            CompatEffect::Begin => self.in_transaction = true,
            CompatEffect::End => self.in_transaction = false,
            CompatEffect::Deallocate(name) => self.portals.deallocate(name.as_deref())?,
        }
        Ok(())
    }

    /// Waits for `work` while the client is connected and does not cancel. Further messages are processed later.
    async fn wait_for<T>(
        &mut self,
        state: ClientState,
        work: impl Future<Output = Result<T, ConsoleError>>,
    ) -> Result<Result<T, ConsoleError>, ConsoleEnd> {
        let client_info = self.guard.entry.client_info.clone();
        // Drop a cancel request that arrived too late for the previous command.
        self.guard.take_cancel();
        client_info.request_at.set(Some(self.guard.worker.reactor.now()));
        client_info.state.set(state);
        let mut work = pin!(work);
        let done = std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            self.poll_while_waiting(cx).map(|ended| ended.map(Err))
        })
        .await;
        client_info.state.set(ClientState::Idle);
        done
    }

    /// Ready when waiting any longer is pointless.
    fn poll_while_waiting(&mut self, cx: &Context<'_>) -> Poll<Result<ConsoleError, ConsoleEnd>> {
        if self.guard.take_cancel() {
            let error = ConsoleError::new(sqlstate::QUERY_CANCELED, "canceling statement due to user request");
            return Poll::Ready(Ok(error.hint("The command stays in force; RESUME ends a pause.")));
        }
        if let Some(end) = self.guard.end_request() {
            return Poll::Ready(Err(end));
        }
        // Stop reading from a client that has filled its input buffer, until the work is done.
        while self.inbox.len() < MESSAGE_BYTES_MAX {
            std::task::ready!(self.poll_receive(cx))?;
        }
        Poll::Pending
    }
}

/// Returns a table. A large one is built outside of the data plane.
async fn show(context: Arc<AdminContext>, topic: ShowTopic) -> Result<CommandResult, ConsoleError> {
    if !topic.is_large() {
        return Ok(CommandResult::Table(topic.table(&MetricsSnapshot::new(&context)).await));
    }
    let owner = context.clone();
    let table = move || async move { topic.table(&MetricsSnapshot::new(&owner)).await };
    let table = context.gateway.pools.connector.resolver.offload_async("a console table", table).await;
    table.map(CommandResult::Table).ok_or_else(stopping)
}

fn stopping() -> ConsoleError {
    ConsoleError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, "the gateway is stopping")
}

/// Lets other tasks of the thread run.
async fn yield_now() {
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
fn write_suspended(out: &mut Vec<u8>) {
    out.extend_from_slice(&[backend::PORTAL_SUSPENDED, 0, 0, 0, 4]);
}

/// Appends the list of commands as a notice, like PgBouncer.
fn write_help(out: &mut Vec<u8>) {
    let width = HELP.iter().map(|(usage, _)| usage.len()).max().unwrap_or_default();
    let lines: Vec<_> = HELP.iter().map(|(usage, meaning)| format!("\t{usage:width$}  {meaning}")).collect();
    let detail = format!("\n{}", lines.join("\n"));
    let report = ErrorReport {
        detail: Some(&detail),
        ..ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, "Console usage")
    };
    backend::notice_response(&report, out);
}
