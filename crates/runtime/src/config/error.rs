//! Why a configuration was not taken. Each is one line.

use super::{Origin, tree};
use serde_json::Value;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The file cannot be read.
    Read { file: String, reason: String },
    /// The file is not TOML.
    Syntax { file: String, line: usize, reason: String },
    /// No such key.
    Unknown { key: String, origin: Origin, nearest: Option<String> },
    /// The value does not fit the key.
    Value { key: String, origin: Origin, expected: String, found: String },
    /// A mistake in the program: the declared keys and the struct do not agree.
    Schema(String),
}

/// What is shown of a value; the rest of a long one helps nobody.
const SHOWN_CHARS: usize = 60;

impl Error {
    /// From what serde says about a value that does not fit.
    pub(super) fn value(key: &str, origin: &Origin, found: &Value, reason: &str) -> Self {
        let expected = match reason.rsplit_once("expected ") {
            Some((_, expected)) => in_words(expected),
            None => reason.to_owned(),
        };
        let mut shown = tree::toml_text(found);
        if let Some((end, _)) = shown.char_indices().nth(SHOWN_CHARS) {
            shown.truncate(end);
            shown.push_str("...");
        }
        Self::Value { key: key.into(), origin: origin.clone(), expected, found: shown }
    }
}

/// serde speaks of Rust types; users do not.
fn in_words(expected: &str) -> String {
    let whole = |low: i128, high: i128| format!("a whole number from {low} to {high}");
    match expected {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".into(),
        "i8" => whole(i8::MIN.into(), i8::MAX.into()),
        "i16" => whole(i16::MIN.into(), i16::MAX.into()),
        "i32" => whole(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        other => match other.strip_prefix("a nonzero ") {
            Some(kind) => format!("{}, not 0", in_words(kind)),
            None => other.into(),
        },
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { file, reason } => write!(f, "cannot read configuration file {file}: {reason}"),
            Self::Syntax { file, line, reason } => {
                write!(f, "configuration file {file}, line {line}: {reason}")
            }
            Self::Unknown { key, origin, nearest } => {
                write!(f, "unknown key {key:?} ({origin})")?;
                match nearest {
                    Some(nearest) => write!(f, ", the nearest known one is {nearest:?}"),
                    None => Ok(()),
                }
            }
            Self::Value { key, origin, expected, found } => {
                write!(f, "{key} ({origin}): expected {expected}, found {found}")
            }
            Self::Schema(reason) => write!(f, "configuration schema: {reason}"),
        }
    }
}

impl std::error::Error for Error {}
