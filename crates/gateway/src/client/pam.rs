//! Passwords that the system's PAM checks, on threads of the control plane: a module may take seconds.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{config::Secret, plane::Gateway};

/// What PAM is asked.
pub(super) struct Question {
    /// Which of the system's rules hold: `/etc/pam.d/SERVICE`.
    pub(super) service: String,
    pub(super) user: String,
    pub(super) password: Secret,
    /// Where the client comes from.
    pub(super) host: String,
}

/// Asks PAM. Waits until a thread is free for it; who has asked bounds the wait.
///
/// # Errors
/// Why the user is not let in, for the log.
///
/// # Cancel safety
/// Safe: what was begun ends by itself, and keeps its place among the checks until then.
pub(super) async fn ask(gateway: &Gateway, question: Question) -> Result<(), String> {
    let room: Arc<Semaphore> = gateway.pam_checks.clone();
    let Ok(permit) = room.acquire_owned().await else { return Err("the gateway is stopping".to_owned()) };
    let check = move || {
        let answer = check(&question);
        drop(permit);
        answer
    };
    let answer = gateway.connector.resolver.offload("a check by PAM", check).await;
    answer.unwrap_or_else(|| Err("the check has broken off".to_owned()))
}

/// Authenticates the user, and asks whether the account may be used.
#[cfg(feature = "pam")]
fn check(question: &Question) -> Result<(), String> {
    use std::ffi::OsStr;

    use nonstick::{
        AuthnFlags, ConversationAdapter as _, PamShared as _, Transaction as _, TransactionBuilder,
        items::ItemsMut as _,
    };

    let Question { service, user, password, host } = question;
    // A text of PAM ends at its first zero.
    if [service, user, host].iter().any(|text| text.contains('\0')) || password.reveal().contains('\0') {
        return Err("a name or password with a zero byte".to_owned());
    }
    let begun = TransactionBuilder::new_with_service(service).username(user);
    let mut transaction = begun
        .build(Knows { user, password }.into_conversation())
        .map_err(|error| format!("PAM cannot be asked: {error}"))?;
    let told = transaction.items_mut().set_remote_host(Some(OsStr::new(host)));
    told.map_err(|error| format!("PAM takes no host: {error}"))?;
    transaction.authenticate(AuthnFlags::empty()).map_err(|error| error.to_string())?;
    transaction.account_management(AuthnFlags::empty()).map_err(|error| format!("the account: {error}"))
}

/// Without libpam nobody is let in; a configuration that asks for it is refused before.
#[cfg(not(feature = "pam"))]
fn check(question: &Question) -> Result<(), String> {
    let Question { service, user, password, host } = question;
    let _ = (service, user, password, host);
    Err(crate::config::NO_PAM.to_owned())
}

/// Answers a module that asks for the user or for the password.
#[cfg(feature = "pam")]
struct Knows<'a> {
    user: &'a str,
    password: &'a Secret,
}

#[cfg(feature = "pam")]
impl nonstick::ConversationAdapter for Knows<'_> {
    fn prompt(&self, _: impl AsRef<std::ffi::OsStr>) -> nonstick::Result<std::ffi::OsString> {
        Ok(self.user.into())
    }

    fn masked_prompt(&self, _: impl AsRef<std::ffi::OsStr>) -> nonstick::Result<std::ffi::OsString> {
        Ok(self.password.reveal().into())
    }

    fn error_msg(&self, message: impl AsRef<std::ffi::OsStr>) {
        tracing::info!(user = self.user, message = ?message.as_ref(), "PAM says");
    }

    fn info_msg(&self, message: impl AsRef<std::ffi::OsStr>) {
        tracing::debug!(user = self.user, message = ?message.as_ref(), "PAM says");
    }
}
