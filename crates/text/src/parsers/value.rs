//! An argument written as plain text becomes a JSON value, while it arrives.

use super::json::{Scan, Scanner, escape};
use super::schema::Kind;

/// A word with whitespace around it is held up to this size.
const MAX_WORD_BYTES: usize = 64;

#[derive(Clone, Debug)]
enum State {
    /// What came could still be JSON; nothing was written.
    Guess {
        raw: String,
        json: String,
        /// `None` once it cannot be JSON.
        scanner: Option<Scanner>,
    },
    /// A string whose opening quote was written.
    Text,
}

/// Writes one value. Strings flow as they come; what may be a number, a word, a list or an object is held until it
/// cannot be one any more or the value ends.
#[derive(Clone, Debug)]
pub(crate) struct ValueWriter {
    kind: Kind,
    state: State,
    /// Whether one newline at each end is framing.
    trims: bool,
    is_first: bool,
    held_newline: bool,
}

impl ValueWriter {
    pub(crate) fn new(kind: Kind, trims: bool) -> Self {
        let state = State::Guess { raw: String::new(), json: String::new(), scanner: Some(Scanner::new()) };
        Self { kind, state, trims, is_first: true, held_newline: false }
    }

    pub(crate) fn push(&mut self, mut text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if !self.trims {
            return self.write(text, out);
        }
        if std::mem::take(&mut self.is_first) {
            text = text.strip_prefix('\n').unwrap_or(text);
            if text.is_empty() {
                return;
            }
        }
        if std::mem::take(&mut self.held_newline) {
            self.write("\n", out);
        }
        if let Some(without) = text.strip_suffix('\n') {
            self.held_newline = true;
            text = without;
        }
        self.write(text, out);
    }

    fn write(&mut self, text: &str, out: &mut String) {
        let State::Guess { raw, json, scanner } = &mut self.state else { return escape(text, out) };
        let could_be_json = match self.kind {
            Kind::Text => false,
            Kind::TextOrNull => {
                raw.push_str(text);
                raw.len() <= MAX_WORD_BYTES && "null".starts_with(raw.trim_ascii())
            }
            Kind::Json | Kind::Any => {
                let was_blank = json.is_empty();
                raw.push_str(text);
                let goes_on = match scanner.as_mut().map(|scanner| scanner.scan(text, json)) {
                    Some(Scan::More) => true,
                    Some(Scan::Done(len)) => text.get(len..).unwrap_or_default().trim_ascii().is_empty(),
                    Some(Scan::Bad(_)) | None => false,
                };
                // Without a schema a quoted word is a word with quotes.
                let is_quoted = self.kind == Kind::Any && was_blank && json.starts_with('"');
                if !goes_on || is_quoted {
                    *scanner = None;
                }
                scanner.is_some() || (self.kind == Kind::Json && python_word_begins(raw))
            }
        };
        if self.kind == Kind::Text {
            raw.push_str(text);
        }
        if !could_be_json {
            out.push('"');
            escape(raw, out);
            self.state = State::Text;
        }
    }

    /// Writes what is missing.
    pub(crate) fn finish(self, out: &mut String) {
        match &self.state {
            State::Text => out.push('"'),
            State::Guess { raw, json, scanner } => {
                let word = raw.trim_ascii();
                let python = if self.kind == Kind::Json { python_word(word) } else { None };
                let is_null = self.kind == Kind::TextOrNull && word == "null";
                if let Some(literal) = python.or(is_null.then_some("null")) {
                    out.push_str(literal);
                } else if matches!(self.kind, Kind::Json | Kind::Any)
                    && scanner.as_ref().is_some_and(Scanner::is_whole)
                {
                    out.push_str(json.trim_ascii());
                } else {
                    out.push('"');
                    escape(raw, out);
                    out.push('"');
                }
            }
        }
    }
}

const PYTHON_WORDS: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("None", "null")];

fn python_word(text: &str) -> Option<&'static str> {
    PYTHON_WORDS.iter().find(|(python, _)| *python == text).map(|(_, json)| *json)
}

fn python_word_begins(raw: &str) -> bool {
    let word = raw.trim_ascii();
    raw.len() <= MAX_WORD_BYTES && PYTHON_WORDS.iter().any(|(python, _)| python.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(kind: Kind, trims: bool, pieces: &[&str]) -> String {
        let mut writer = ValueWriter::new(kind, trims);
        let mut out = String::new();
        for piece in pieces {
            writer.push(piece, &mut out);
        }
        writer.finish(&mut out);
        out
    }

    #[test]
    fn values_take_the_type_of_their_schema() {
        for (kind, text, want) in [
            (Kind::Text, "42", "\"42\""),
            (Kind::Any, "42", "42"),
            (Kind::Any, "42nd", "\"42nd\""),
            (Kind::Any, "\"a\"", "\"\\\"a\\\"\""),
            (Kind::Any, "null", "null"),
            (Kind::Any, "True", "\"True\""),
            (Kind::Any, "", "\"\""),
            (Kind::Json, "True", "true"),
            (Kind::Json, "\"a\"", "\"a\""),
            (Kind::Json, " [1, 2] ", "[1, 2]"),
            (Kind::Json, "[1, 2", "\"[1, 2\""),
            (Kind::Json, "007", "\"007\""),
            (Kind::TextOrNull, "null", "null"),
            (Kind::TextOrNull, "nullable", "\"nullable\""),
            (Kind::TextOrNull, "nul", "\"nul\""),
        ] {
            assert_eq!(write(kind, false, &[text]), want, "{kind:?} {text}");
        }
        assert_eq!(write(Kind::Text, true, &["\n", "a\n", "\n"]), "\"a\\n\"");
        assert_eq!(write(Kind::Json, true, &["\n5\n"]), "5");
        let mut out = String::new();
        ValueWriter::new(Kind::Any, false).push("hello", &mut out);
        assert_eq!(out, "\"hello", "strings flow");
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "[ \\n\"\\[\\]{}0-9a-eTrun,:\\\\é]{0,16}",
            cuts in proptest::collection::vec(0usize..17, 0..4),
            kind in 0usize..4,
            trims: bool,
        ) {
            let kind = [Kind::Text, Kind::TextOrNull, Kind::Json, Kind::Any][kind];
            let mut cuts: Vec<_> = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let whole = write(kind, trims, &[&text]);
            prop_assert_eq!(&write(kind, trims, &pieces), &whole);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&whole).is_ok(), "{}", whole);
        }
    }
}
