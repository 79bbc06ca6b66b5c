//! Rules on running text, whatever file it stands in.

use super::Fault;
use super::vocabulary::{OPENINGS, PHRASES, WORDS};

/// A longer sentence is two sentences; 25 words is the aim.
pub(super) const SENTENCE_WORDS_MAX: usize = 40;

/// The replacement of a word that does not occur in the project.
pub(super) fn replacement(word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(words, _)| words.contains(&word)).map(|(_, instead)| *instead)
}

/// Words and phrases of the vocabulary in `lines`, the first of which is line `first` of its file. Phrases may cross lines.
pub(super) fn vocabulary(first: usize, lines: &[&str]) -> Vec<Fault> {
    let words = words(first, lines);
    let mut faults = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if let Some(instead) = replacement(&word.text) {
            faults.push(replace(word.line, &word.text, instead));
        }
        let phrases = PHRASES.iter().filter(|(phrase, _)| starts_with(&words[at..], phrase));
        faults.extend(phrases.map(|(phrase, instead)| replace(word.line, phrase, instead)));
    }
    faults
}

pub(super) fn replace(line: usize, word: &str, instead: &str) -> Fault {
    Fault::new(line, format!("`{word}`: write {instead}"))
}

/// A word in lower case.
#[derive(Debug)]
struct Word {
    line: usize,
    text: String,
    /// Whether only white space separates it from the word before.
    follows: bool,
}

fn words(first: usize, lines: &[&str]) -> Vec<Word> {
    let mut words = Vec::new();
    let mut follows = false;
    for (index, line) in lines.iter().enumerate() {
        let mut rest = *line;
        while let Some(start) = rest.find(|char: char| char.is_ascii_alphabetic()) {
            follows &= rest[..start].trim().is_empty();
            let length = rest[start..].find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(rest.len() - start);
            let text = rest[start..start + length].to_ascii_lowercase();
            words.push(Word { line: first + index, text, follows });
            rest = &rest[start + length..];
            follows = true;
        }
        follows &= rest.trim().is_empty();
    }
    words
}

fn starts_with(words: &[Word], phrase: &str) -> bool {
    let parts = phrase.split(' ').enumerate();
    parts.into_iter().all(|(at, part)| words.get(at).is_some_and(|word| word.text == part && (at == 0 || word.follows)))
}

/// The word of [`OPENINGS`] that opens `text`.
pub(super) fn opening(line: usize, text: &str) -> Option<Fault> {
    let text = text.trim_start_matches(|char: char| !char.is_ascii_alphabetic() && char != '`' && char != '[');
    let end = text.find(|char: char| !char.is_ascii_alphabetic() && char != '\'').unwrap_or(text.len());
    let word = text[..end].to_ascii_lowercase();
    OPENINGS.contains(&word.as_str()).then(|| {
        let advice = format!("opens with `{word}`, which hides the subject: begin with the component or a verb");
        Fault::new(line, advice)
    })
}

/// Sentences of `paragraph` that are too long.
pub(super) fn long_sentences(line: usize, paragraph: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for sentence in sentences(paragraph) {
        let count = sentence.split_whitespace().count();
        if count > SENTENCE_WORDS_MAX {
            let start: Vec<&str> = sentence.split_whitespace().take(6).collect();
            let advice = format!(
                "a sentence of {count} words, \"{} ...\": split it ({SENTENCE_WORDS_MAX} at most)",
                start.join(" ")
            );
            faults.push(Fault::new(line, advice));
        }
    }
    faults
}

/// Parts that end in `.`, `!`, `?`, `:` or `;` before white space.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let (mut start, mut ended) = (0, false);
    for (at, char) in paragraph.char_indices() {
        if ended && char.is_whitespace() {
            sentences.push(&paragraph[start..at]);
            start = at;
        }
        ended = matches!(char, '.' | '!' | '?' | ':' | ';');
    }
    sentences.push(&paragraph[start..]);
    sentences
}

/// `text` with every code span (`` `…` ``) replaced by one word.
pub(super) fn without_code_spans(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part } else { "code" }).collect()
}

/// Whether a line begins an item of a list.
pub(super) fn is_list_item(line: &str) -> bool {
    let number = line.trim_start_matches(|char: char| char.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark))
        || (number.len() < line.len() && number.starts_with(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lines: &[&str]) -> Vec<(usize, String)> {
        let word = |fault: Fault| (fault.line, fault.advice.split('`').nth(1).unwrap_or_default().to_owned());
        vocabulary(7, lines).into_iter().map(word).collect()
    }

    #[test]
    fn a_listed_word_is_found_in_any_case() {
        assert_eq!(found(&["The client", "is Told."]), [(8, "told".to_owned())]);
        assert!(found(&["A stold foretold toldy."]).is_empty());
    }

    #[test]
    fn a_listed_phrase_is_found_across_lines() {
        assert_eq!(found(&["runs them at", "once"]), [(7, "at once".to_owned())]);
        assert!(found(&["looked at. Once", "sat down, put, down"]).is_empty());
    }

    #[test]
    fn a_finding_names_the_replacement() {
        let fault = vocabulary(1, &["nobody"]).remove(0);
        assert!(fault.advice.contains("no client"), "{}", fault.advice);
    }

    #[test]
    fn an_opening_pronoun_or_preposition_is_found() {
        for text in ["Who waits is woken.", "of the pool.", " For what may wait.", "It's closed."] {
            assert_eq!(opening(3, text).is_some(), text != "It's closed.", "{text}");
        }
        assert_eq!(opening(3, "Forwards a message."), None);
        assert_eq!(opening(3, "`for` loops."), None);
    }

    #[test]
    fn a_sentence_over_the_limit_is_found() {
        let long = "word ".repeat(SENTENCE_WORDS_MAX);
        assert!(long_sentences(1, &long).is_empty());
        assert_eq!(long_sentences(5, &format!("{long} more")).len(), 1);
        assert!(long_sentences(5, &format!("{}. {long}", long.trim_end())).is_empty());
    }

    #[test]
    fn code_spans_are_one_word_each() {
        assert_eq!(without_code_spans("a `b c` d"), "a code d");
    }
}
