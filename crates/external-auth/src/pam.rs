//! Password check by PAM.

use tidegate_config::Secret;

/// Authenticates the user and checks the account.
///
/// # Errors
/// Why PAM refused the user, for the log.
#[cfg(feature = "pam")]
pub(crate) fn check(service: &str, host: &str, user: &str, password: &Secret) -> Result<(), String> {
    use std::ffi::OsStr;

    use nonstick::{
        AuthnFlags, ConversationAdapter as _, PamShared as _, Transaction as _, TransactionBuilder,
        items::ItemsMut as _,
    };

    // PAM strings end at the first zero byte.
    if [service, user, host].iter().any(|text| text.contains('\0')) || password.reveal().contains('\0') {
        return Err("a name or password with a zero byte".to_owned());
    }
    let builder = TransactionBuilder::new_with_service(service).username(user);
    let mut transaction = builder
        .build(PamConversation { user, password }.into_conversation())
        .map_err(|error| format!("PAM cannot be asked: {error}"))?;
    let host_set = transaction.items_mut().set_remote_host(Some(OsStr::new(host)));
    host_set.map_err(|error| format!("PAM takes no host: {error}"))?;
    transaction.authenticate(AuthnFlags::empty()).map_err(|error| error.to_string())?;
    transaction.account_management(AuthnFlags::empty()).map_err(|error| format!("the account: {error}"))
}

/// Built without libpam; the configuration check already rejects method `pam`.
#[cfg(not(feature = "pam"))]
pub(crate) fn check(service: &str, host: &str, user: &str, password: &Secret) -> Result<(), String> {
    let _ = (service, user, password, host);
    Err(tidegate_config::NO_PAM.to_owned())
}

/// Replies to the prompts of a PAM module for the user and the password.
#[cfg(feature = "pam")]
struct PamConversation<'a> {
    user: &'a str,
    password: &'a Secret,
}

#[cfg(feature = "pam")]
impl nonstick::ConversationAdapter for PamConversation<'_> {
    fn prompt(&self, _: impl AsRef<std::ffi::OsStr>) -> nonstick::Result<std::ffi::OsString> {
        Ok(self.user.into())
    }

    fn masked_prompt(&self, _: impl AsRef<std::ffi::OsStr>) -> nonstick::Result<std::ffi::OsString> {
        Ok(self.password.reveal().into())
    }

    fn error_msg(&self, message: impl AsRef<std::ffi::OsStr>) {
        tracing::info!(user = self.user, text = ?message.as_ref(), "PAM message");
    }

    fn info_msg(&self, message: impl AsRef<std::ffi::OsStr>) {
        tracing::debug!(user = self.user, text = ?message.as_ref(), "PAM message");
    }
}
