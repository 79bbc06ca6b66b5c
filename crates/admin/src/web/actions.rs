//! Changes of the gateway by the page: the commands of the console.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hyper::{Response, StatusCode, body::Bytes};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

use super::{Body, WebConsole, guard::Refusal, reply, sessions::Viewer};
use crate::{
    action::{AdminAction, StreamAction},
    context::AdminContext,
    error::ConsoleError,
};

/// How long a request waits for its command, such as a PAUSE that waits for transactions; then the command goes on alone.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The body of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionRequest {
    action: String,
    /// Database or stream; without one the action applies to all.
    name: Option<String>,
    /// Client.
    id: Option<u64>,
}

impl ActionRequest {
    /// The command; `None` if there is no such action.
    fn command(self) -> Option<AdminAction> {
        let Self { action, name, id } = self;
        Some(match action.as_str() {
            "pause" => AdminAction::Pause(name),
            "resume" => AdminAction::Resume(name),
            "reconnect" => AdminAction::Reconnect(name),
            "kill" => AdminAction::Kill(Some(name?)),
            "kill_client" => AdminAction::KillClient(id?),
            "enable" => AdminAction::Enable(name?),
            "disable" => AdminAction::Disable(name?),
            "reload" => AdminAction::Reload,
            "stream_pause" => AdminAction::Stream(StreamAction::Pause(Some(name?))),
            "stream_resume" => AdminAction::Stream(StreamAction::Resume(Some(name?))),
            "stream_stop" => AdminAction::Stream(StreamAction::Stop(Some(name?))),
            "stream_start" => AdminAction::Stream(StreamAction::Start(Some(name?))),
            "stream_unpark" => AdminAction::Stream(StreamAction::Unpark(name?, None)),
            _ => return None,
        })
    }
}

/// Runs a command for a user of `admin.users`.
pub(super) async fn run(
    web: &Arc<WebConsole>,
    viewer: &Viewer,
    body: &Bytes,
    peer: IpAddr,
) -> Result<Response<Body>, Refusal> {
    let user = viewer.user.as_str();
    let request: ActionRequest = serde_json::from_slice(body).map_err(|_| Refusal::Body)?;
    let command = request.command().ok_or(Refusal::Body)?;
    let text = command.to_string();
    if !viewer.may_change {
        tracing::warn!(user, %peer, command = text, "web console: command refused");
        return Err(Refusal::Forbidden);
    }
    tracing::info!(user, %peer, command = text, "web console: command");
    let outcome = execute(&web.context, command, user.to_owned());
    match tokio::time::timeout(WAIT_MAX, outcome).await {
        Ok(Ok(Ok(notice))) => Ok(reply(StatusCode::OK, &json!({ "command": text, "done": true, "notice": notice }))),
        Ok(Ok(Err(error))) => {
            let hint = error.hint.map(|hint| format!(". {hint}")).unwrap_or_default();
            Err(Refusal::Failed(format!("{}{hint}", error.message)))
        }
        Ok(Err(_)) => Err(Refusal::Failed("the gateway is stopping".to_owned())),
        Err(_) => Ok(reply(StatusCode::ACCEPTED, &json!({ "command": text, "done": false }))),
    }
}

/// Success may carry a warning for the operator.
type ActionOutcome = Result<Option<&'static str>, ConsoleError>;

/// Starts a command on the first thread, as a task of the clients: it ends with the gateway, and not with the request.
fn execute(context: &Arc<AdminContext>, command: AdminAction, user: String) -> oneshot::Receiver<ActionOutcome> {
    let (reply, outcome) = oneshot::channel();
    let context = context.clone();
    if let Some(mailbox) = context.workers.clone().all().first() {
        mailbox.visit(move |worker| {
            let owner = worker.clone();
            let id = worker.gateway.clients.next_id();
            let task = worker.client_scope.wrap_numbered(id, move |ctx| async move {
                if let Some(outcome) = ctx.run_until_cancelled(command.execute(context, owner, user)).await {
                    // The page may have gone.
                    let _ = reply.send(outcome);
                }
            });
            // Refused while the gateway is stopping; the reply is dropped then.
            if let Ok(task) = task {
                worker.reactor.spawn(task);
            }
        });
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_one_command() {
        let command = |text: &str| {
            let request: Result<ActionRequest, _> = serde_json::from_str(text);
            request.ok().and_then(ActionRequest::command).map(|command| command.to_string())
        };
        for (text, expected) in [
            (r#"{"action":"pause"}"#, Some("PAUSE")),
            (r#"{"action":"pause","name":"shop"}"#, Some("PAUSE shop")),
            (r#"{"action":"kill","name":"shop"}"#, Some("KILL shop")),
            (r#"{"action":"kill"}"#, None),
            (r#"{"action":"kill_client","id":7}"#, Some("KILL_CLIENT 7")),
            (r#"{"action":"stream_pause","name":"orders"}"#, Some("STREAM PAUSE orders")),
            (r#"{"action":"stream_unpark","name":"orders"}"#, Some("STREAM UNPARK orders")),
            (r#"{"action":"stream_unpark"}"#, None),
            (r#"{"action":"reload"}"#, Some("RELOAD")),
            (r#"{"action":"shutdown"}"#, None),
            (r#"{"action":"pause","database":"shop"}"#, None),
            ("[]", None),
        ] {
            assert_eq!(command(text).as_deref(), expected, "{text}");
        }
    }
}
