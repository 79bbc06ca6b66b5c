//! Parses `STREAM ...`.

use super::{database, unexpected};
use crate::{action::StreamAction, error::ConsoleError, lexer::CommandWord};

const VERBS: &str = "STREAM PAUSE, STREAM RESUME, STREAM STOP, STREAM START, STREAM UNPARK or STREAM BACKFILL";

/// Parses the words after `STREAM`.
pub(super) fn parse(rest: &[CommandWord]) -> Result<StreamAction, ConsoleError> {
    let Some((verb, rest)) = rest.split_first() else {
        return Err(ConsoleError::syntax("a stream command is required").hint(format!("The command is {VERBS}.")));
    };
    let keyword = if verb.quoted { String::new() } else { verb.text.to_ascii_uppercase() };
    match keyword.as_str() {
        "PAUSE" => database(rest, "STREAM PAUSE [name]").map(StreamAction::Pause),
        "RESUME" => database(rest, "STREAM RESUME [name]").map(StreamAction::Resume),
        "STOP" => database(rest, "STREAM STOP [name]").map(StreamAction::Stop),
        "START" => database(rest, "STREAM START [name]").map(StreamAction::Start),
        "UNPARK" => unpark(rest),
        "BACKFILL" => backfill(rest),
        _ => Err(unexpected(verb, VERBS)),
    }
}

fn unpark(rest: &[CommandWord]) -> Result<StreamAction, ConsoleError> {
    let usage = "STREAM UNPARK name [key]";
    match rest {
        [] => Err(ConsoleError::syntax("a stream is required").hint(format!("The command is: {usage}"))),
        [name] => Ok(StreamAction::Unpark(name.text.clone(), None)),
        [name, key] => Ok(StreamAction::Unpark(name.text.clone(), Some(key.text.clone()))),
        [_, _, more, ..] => Err(unexpected(more, usage)),
    }
}

fn backfill(rest: &[CommandWord]) -> Result<StreamAction, ConsoleError> {
    let usage = "STREAM BACKFILL name table";
    match rest {
        [name, table] => Ok(StreamAction::Backfill(name.text.clone(), table.text.clone())),
        [_, _, more, ..] => Err(unexpected(more, usage)),
        _ => Err(ConsoleError::syntax("a stream and a table are required").hint(format!("The command is: {usage}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConsoleCommand, parse};
    use crate::action::{AdminAction, StreamAction};

    fn action(text: &str) -> StreamAction {
        match parse(text).expect(text).remove(0) {
            ConsoleCommand::Action(AdminAction::Stream(action)) => action,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn stream_names_keep_their_case() {
        assert_eq!(action("STREAM stop Orders"), StreamAction::Stop(Some("Orders".into())));
        assert_eq!(action("stream pause"), StreamAction::Pause(None));
        assert_eq!(action("STREAM UNPARK orders"), StreamAction::Unpark("orders".into(), None));
        assert_eq!(action("STREAM UNPARK orders 'K=1;'"), StreamAction::Unpark("orders".into(), Some("K=1;".into())));
    }

    #[test]
    fn backfill_names_a_stream_and_a_table() {
        let expected = StreamAction::Backfill("orders".into(), "public.Items".into());
        assert_eq!(action("STREAM BACKFILL orders 'public.Items'"), expected);
    }

    #[test]
    fn wrong_number_of_words_is_rejected() {
        for text in
            ["STREAM", "STREAM GO a", "STREAM STOP a b", "STREAM UNPARK", "STREAM BACKFILL a", "STREAM UNPARK a b c"]
        {
            let error = parse(text).expect_err(text);
            assert_eq!(error.sqlstate.as_str(), "42601", "{text}");
            assert!(error.hint.is_some_and(|hint| hint.contains("STREAM")), "{text}");
        }
    }
}
