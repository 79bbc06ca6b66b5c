//! Invalid options and configuration files are rejected with the reason and a remedy.

use std::process::Command;

use crate::process::{Stream, TempFolder, binary};

/// Runs `tidegate stream` with invalid options, and returns its errors.
fn errors_of(arguments: &[&str]) -> String {
    let ended = Stream::run(arguments);
    assert!(matches!(ended.code, Some(1 | 2)), "{:?}: {}", ended.code, ended.errors);
    ended.errors
}

#[test]
fn options_are_checked() {
    for (arguments, text) in [
        (&["--from", "a", "--to", "htp://x"][..], "did you mean http://?"),
        (&["--from", "a", "--to", "postgres://x/y"], "needs sql"),
        (&["--from", "a", "--to", "-", "--timeout", "5"], "lacks a unit"),
        (&["--from", "a", "--to", "-", "--key", "id"], "starts with a slash"),
        (&["--from", "a", "--to", "-", "--exhausted", "dead_letter"], "there is no dead_letter"),
        (&["--from", "a", "--to", "-", "--exhausted", "ignore"], "possible values"),
        (&["--from", "a"], "--to"),
        (&["--from", "no/such/file", "--to", "-"], "no/such/file"),
        (&["--from", "-", "--to", "gateway://a@b", "--sql", "select 1"], "there is no gateway"),
        (&["--from", "kafka://h/t", "--to", "-"], "add --name orders"),
        (
            &["--from", "-", "--to", "postgres://h/b?target_session_attrs=standby", "--sql", "select 1"],
            "standby selects servers that take no writes",
        ),
        (&["--from", "-", "--to", "http://x", "--header", "a b=c"], "the header `a b` cannot be sent"),
        (&["--from", "-", "--to", "http://{key}/a"], "only be in the path or the query"),
        (&["--from", "-", "--to", "http://x/{key}", "--batch", "2"], "cannot depend on the record"),
        (&["--from", "a", "--to", "-", "--dead-letter", "./a"], "would read its own dead letters"),
        (
            &["--name", "a", "--from", "kafka://localhost/t", "--to", "-", "--dead-letter", "kafka://127.0.0.1:9092/t"],
            "would read its own dead letters",
        ),
        (&["--name", "a", "--from", "kafka://h/t", "--to", "-", "--start-time", "noon"], "`noon` is not a time"),
    ] {
        let errors = errors_of(arguments);
        assert!(errors.contains(text), "{arguments:?}: {errors}");
    }
}

#[test]
#[cfg(not(feature = "kafka-ssl"))]
fn unsupported_kafka_security_names_the_feature() {
    let from = ["--name", "a", "--from", "kafka://localhost:1/t", "--to", "-", "--kafka"];
    for property in ["security.protocol=ssl", "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512"] {
        let arguments: Vec<&str> = from.into_iter().chain([property]).collect();
        let errors = errors_of(&arguments);
        assert!(errors.contains("--features kafka-ssl") && errors.contains("needs OpenSSL"), "{property}: {errors}");
    }
    let arguments: Vec<&str> = from.into_iter().chain(["security.protocol=sasl_plaintext"]).collect();
    assert!(errors_of(&arguments).contains("\"sasl.mechanism\" = \"PLAIN\""));
}

#[test]
fn errors_have_the_line_and_the_nearest_key() {
    let folder = TempFolder::new();
    let good = "[[streams]]\nname = \"orders\"\nfrom = \"in\"\nto = \"-\"\n";
    for (text, message) in [
        ("[[streams]]\nname = \"a\"\nfrm = \"x\"\nto = \"-\"\n".to_owned(), ":3:1"),
        ("[[streams]]\nname = \"a\"\nfrm = \"x\"\nto = \"-\"\n".to_owned(), "did you mean `from`?"),
        (format!("{good}{good}"), "two streams named `orders`"),
        (
            format!("{good}checkpoint = \"c\"\n{}checkpoint = \"c\"\n", good.replace("orders", "more")),
            "two streams with the checkpoint",
        ),
        (format!("{good}batch = 0\n"), "write a number from 1"),
        (format!("{good}exhausted = \"dead_leter\"\n"), "did you mean `dead_letter`?"),
        (good.replace("\"-\"", "\"http://h\"") + "headers = { \"a b\" = \"c\" }\n", "the header `a b` cannot be sent"),
        ("[streams]\nname = \"a\"\n".to_owned(), "start a section: [[streams]]"),
        ("[[streams]]\nfrom = \"in\"\nto = \"-\"\n".to_owned(), "the stream has no name"),
        ("[databases.a]\nhost = \"db\"\n".to_owned(), "has no streams"),
    ] {
        let file = folder.write("tidegate.toml", &text);
        let errors = errors_of(&["-c", &file]);
        assert!(errors.contains(message), "{text}: {errors}");
    }
    let file = folder.write("tidegate.toml", good);
    assert!(errors_of(&["-c", &file, "order"]).contains("it has orders"));
    assert!(errors_of(&["-c", &file, "--batch", "7"]).contains("remove it from the command line"));
    let check = Command::new(binary()).arg("check").arg(&file).output().unwrap();
    assert!(check.status.success(), "{check:?}");
}

/// `tidegate check` rejects the file.
#[test]
#[cfg(feature = "kafka")]
fn invalid_kafka_settings_fail_check() {
    let folder = TempFolder::new();
    for (from, to, more, text) in [
        ("t", "kafka://h:1/u,t", "", "one topic only"),
        ("t", "kafka://h:1/t", "", "source and sink are the same topic"),
        ("t,^(", "-", "", "`^(` is neither a topic nor a regular expression"),
        ("t", "-", "kafka_properties = { \"sasl.pasword\" = \"hunter2\" }", "No such configuration property"),
        (
            "t",
            "-",
            "kafka_properties = { \"session.timeout.ms\" = \"soon\" }",
            "Invalid value for configuration property",
        ),
        ("t", "-", "kafka_properties = { \"group.id\" = \"mine\" }", "`group.id` is reserved by the source"),
    ] {
        let database = "[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n";
        let stream = format!("[[streams]]\nname = \"a\"\nfrom = \"kafka://h:1/{from}\"\nto = \"{to}\"\n{more}\n");
        let file = folder.write("tidegate.toml", &(database.to_owned() + &stream));
        let check = Command::new(binary()).arg("check").arg(&file).output().unwrap();
        let output = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert!(!check.status.success() && output.contains(text), "{stream}: {output}");
        // A password under a mistyped key occurs only in the quoted line.
        assert!(output.matches("hunter2").count() <= 1, "{output}");
    }
}

#[test]
fn password_in_a_url_is_not_printed() {
    let errors =
        errors_of(&["--from", "no/such/file", "--to", "postgres://me:hunter2@127.0.0.1:1/x", "--sql", "select 1"]);
    assert!(!errors.contains("hunter2"), "{errors}");
    let errors = errors_of(&["--from", "-", "--to", "kafka://me:hunter2@host/t"]);
    assert!(errors.contains("kafka_properties") && !errors.contains("hunter2"), "{errors}");
}
