//! What `STREAM ...` means.

use super::{database, unexpected};
use crate::{fault::Fault, order::StreamOrder, words::Word};

const VERBS: &str = "STREAM PAUSE, STREAM RESUME, STREAM STOP, STREAM START or STREAM UNPARK";

/// Reads the words behind `STREAM`.
pub(super) fn read(rest: &[Word]) -> Result<StreamOrder, Fault> {
    let Some((verb, rest)) = rest.split_first() else {
        return Err(Fault::syntax("what is to become of the stream?").hint(format!("The command is {VERBS}.")));
    };
    let keyword = if verb.quoted { String::new() } else { verb.text.to_ascii_uppercase() };
    match keyword.as_str() {
        "PAUSE" => database(rest, "STREAM PAUSE [name]").map(StreamOrder::Pause),
        "RESUME" => database(rest, "STREAM RESUME [name]").map(StreamOrder::Resume),
        "STOP" => database(rest, "STREAM STOP [name]").map(StreamOrder::Stop),
        "START" => database(rest, "STREAM START [name]").map(StreamOrder::Start),
        "UNPARK" => unpark(rest),
        _ => Err(unexpected(verb, VERBS)),
    }
}

fn unpark(rest: &[Word]) -> Result<StreamOrder, Fault> {
    let usage = "STREAM UNPARK name [key]";
    match rest {
        [] => Err(Fault::syntax("a stream is required").hint(format!("The command is: {usage}"))),
        [name] => Ok(StreamOrder::Unpark(name.text.clone(), None)),
        [name, key] => Ok(StreamOrder::Unpark(name.text.clone(), Some(key.text.clone()))),
        [_, _, more, ..] => Err(unexpected(more, usage)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use crate::order::{Order, StreamOrder};

    fn order(text: &str) -> StreamOrder {
        match parse(text).expect(text).remove(0) {
            Command::Order(Order::Stream(order)) => order,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_stream_is_named_as_it_is_written() {
        assert_eq!(order("STREAM stop Orders"), StreamOrder::Stop(Some("Orders".into())));
        assert_eq!(order("stream pause"), StreamOrder::Pause(None));
        assert_eq!(order("STREAM UNPARK orders"), StreamOrder::Unpark("orders".into(), None));
        assert_eq!(order("STREAM UNPARK orders 'K=1;'"), StreamOrder::Unpark("orders".into(), Some("K=1;".into())));
    }

    #[test]
    fn what_is_said_too_much_or_too_little_is_refused() {
        for text in ["STREAM", "STREAM GO a", "STREAM STOP a b", "STREAM UNPARK", "STREAM UNPARK a b c"] {
            let fault = parse(text).expect_err(text);
            assert_eq!(fault.sqlstate.as_str(), "42601", "{text}");
            assert!(fault.hint.is_some_and(|hint| hint.contains("STREAM")), "{text}");
        }
    }
}
