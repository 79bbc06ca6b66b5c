//! Colours, where they are wanted.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};

use crate::options::Colour;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Paint(bool);

impl Paint {
    pub(in crate::read) fn new(colour: Colour) -> Self {
        // https://no-color.org: set and not empty.
        let unwanted = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => stdout().is_terminal() && !unwanted(),
        })
    }

    pub(in crate::read) fn dim(self, text: &str) -> Cow<'_, str> {
        self.wrap("2", text)
    }

    pub(in crate::read) fn bold(self, text: &str) -> Cow<'_, str> {
        self.wrap("1", text)
    }

    pub(in crate::read) fn red(self, text: &str) -> Cow<'_, str> {
        self.wrap("31", text)
    }

    pub(in crate::read) fn yellow(self, text: &str) -> Cow<'_, str> {
        self.wrap("33", text)
    }

    pub(in crate::read) fn cyan(self, text: &str) -> Cow<'_, str> {
        self.wrap("36", text)
    }

    fn wrap<'a>(self, code: &str, text: &'a str) -> Cow<'a, str> {
        if self.0 { Cow::Owned(format!("\u{1b}[{code}m{text}\u{1b}[0m")) } else { Cow::Borrowed(text) }
    }
}
