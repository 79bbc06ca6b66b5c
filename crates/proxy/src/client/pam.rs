//! Passwords that the system's PAM checks.

use tidegate_config::Secret;

/// Authenticates the user, and asks whether the account may be used.
///
/// # Errors
/// Why the user is not let in, for the log.
#[cfg(feature = "pam")]
pub(super) fn check(service: &str, host: &str, user: &str, password: &Secret) -> Result<(), String> {
    use std::ffi::OsStr;

    use nonstick::{
        AuthnFlags, ConversationAdapter as _, PamShared as _, Transaction as _, TransactionBuilder,
        items::ItemsMut as _,
    };

    // A text of PAM ends at its first zero.
    if [service, user, host].iter().any(|text| text.contains('\0')) || password.reveal().contains('\0') {
        return Err("a name or password with a zero byte".to_owned());
    }
    let begun = TransactionBuilder::new_with_service(service).username(user);
    let mut transaction = begun
        .build(StatementState { user, password }.into_conversation())
        .map_err(|error| format!("PAM cannot be asked: {error}"))?;
    let told = transaction.items_mut().set_remote_host(Some(OsStr::new(host)));
    told.map_err(|error| format!("PAM takes no host: {error}"))?;
    transaction.authenticate(AuthnFlags::empty()).map_err(|error| error.to_string())?;
    transaction.account_management(AuthnFlags::empty()).map_err(|error| format!("the account: {error}"))
}

/// Without libpam nobody is let in; a configuration that asks for it is refused before.
#[cfg(not(feature = "pam"))]
pub(super) fn check(service: &str, host: &str, user: &str, password: &Secret) -> Result<(), String> {
    let _ = (service, user, password, host);
    Err(tidegate_config::NO_PAM.to_owned())
}

/// Answers a module that asks for the user or for the password.
#[cfg(feature = "pam")]
struct StatementState<'a> {
    user: &'a str,
    password: &'a Secret,
}

#[cfg(feature = "pam")]
impl nonstick::ConversationAdapter for StatementState<'_> {
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
