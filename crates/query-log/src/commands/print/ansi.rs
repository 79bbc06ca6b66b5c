//! ANSI colours, if they are enabled.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};

use crate::options::ColorChoice;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands) struct AnsiStyle(bool);

impl AnsiStyle {
    pub(in crate::commands) fn new(colour: ColorChoice) -> Self {
        // Convention of https://no-color.org: the variable is set and not empty.
        let unwanted = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(match colour {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => stdout().is_terminal() && !unwanted(),
        })
    }

    pub(in crate::commands) fn dim(self, text: &str) -> Cow<'_, str> {
        self.wrap("2", text)
    }

    pub(in crate::commands) fn bold(self, text: &str) -> Cow<'_, str> {
        self.wrap("1", text)
    }

    pub(in crate::commands) fn red(self, text: &str) -> Cow<'_, str> {
        self.wrap("31", text)
    }

    pub(in crate::commands) fn yellow(self, text: &str) -> Cow<'_, str> {
        self.wrap("33", text)
    }

    pub(in crate::commands) fn cyan(self, text: &str) -> Cow<'_, str> {
        self.wrap("36", text)
    }

    fn wrap<'a>(self, code: &str, text: &'a str) -> Cow<'a, str> {
        if self.0 { Cow::Owned(format!("\u{1b}[{code}m{text}\u{1b}[0m")) } else { Cow::Borrowed(text) }
    }
}
