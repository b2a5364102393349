//! Scripts: what to say, when, and to whom.

use crate::card::FIRST_PIECE;
use dynamo_types::{Error as RequestError, FinishReason, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// One thing a script does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// One token that spells this text.
    Text(String),
    /// A token per text, each in a delta of its own.
    Pieces(Vec<String>),
    /// A token per byte string, each in a delta of its own: for characters cut in the middle.
    Bytes(Vec<Vec<u8>>),
    /// These very ids, in one delta.
    Tokens(Vec<u32>),
    /// Waits so many milliseconds.
    DelayMs(u64),
    /// Ends with a fault.
    Error(RequestError),
    /// Ends without a word, as a worker that died.
    Reset,
    /// Says nothing more and does not end, as a worker that hangs.
    Stall,
    /// Ends. A script that ends without one ends with `stop`.
    Finish(FinishReason),
}

/// Which requests a script answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The prompt, read as bytes, contains this text.
    pub contains: Option<String>,
    /// The prompt starts with these ids.
    pub starts_with: Vec<u32>,
}

/// What to say to one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    pub when: When,
    /// Answers this many requests, then no more; none: any number.
    pub times: Option<u32>,
    pub steps: Vec<Step>,
    /// End at `max_tokens` and at stop ids, as engines do. False: say it all.
    pub obey_limits: bool,
    /// Told with the first token.
    pub cached_tokens: u32,
}

impl Default for Script {
    fn default() -> Self {
        Self { when: When::default(), times: None, steps: Vec::new(), obey_limits: true, cached_tokens: 0 }
    }
}

impl Script {
    /// Does these steps for any request.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), ..Self::default() }
    }

    /// Says these pieces, one per token and delta, and stops.
    pub fn pieces<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new([Step::Pieces(pieces.into_iter().map(Into::into).collect())])
    }

    /// Answers one request only.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.times = Some(1);
        self
    }

    /// Answers requests whose prompt contains this text only.
    #[must_use]
    pub fn when_contains(mut self, text: &str) -> Self {
        self.when.contains = Some(text.into());
        self
    }

    pub(super) fn answers(&self, request: &Request) -> bool {
        self.times != Some(0)
            && request.tokens.starts_with(&self.when.starts_with)
            && self.when.contains.as_ref().is_none_or(|text| prompt_text(request).contains(text))
    }

    fn spelled(&self) -> impl Iterator<Item = &[u8]> {
        self.steps.iter().flat_map(|step| -> Vec<&[u8]> {
            match step {
                Step::Text(text) => vec![text.as_bytes()],
                Step::Pieces(pieces) => pieces.iter().map(String::as_bytes).collect(),
                Step::Bytes(pieces) => pieces.iter().map(Vec::as_slice).collect(),
                _ => Vec::new(),
            }
        })
    }
}

fn prompt_text(request: &Request) -> String {
    let bytes: Vec<u8> = request.tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Scripts of one engine; the first one that answers a request is followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Book {
    /// The served name.
    pub model: String,
    pub context_length: u32,
    pub block_size: u32,
    pub scripts: Vec<Script>,
    /// Pieces that later scripts will need: a card cannot grow once it is published.
    pub extra_pieces: Vec<String>,
    /// For the card.
    pub tool_parser: Option<String>,
    pub reasoning_parser: Option<String>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            model: "scripted".into(),
            context_length: 8192,
            block_size: 16,
            scripts: Vec::new(),
            extra_pieces: Vec::new(),
            tool_parser: None,
            reasoning_parser: None,
        }
    }
}

/// Why a script or a book was not taken. One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Read {
        file: String,
        reason: String,
    },
    Json {
        file: String,
        reason: String,
    },
    /// A piece that the published card does not know.
    Piece(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { file, reason } => write!(f, "cannot read script {file}: {reason}"),
            Self::Json { file, reason } => write!(f, "script {file}: {reason}"),
            Self::Piece(piece) => write!(f, "the model's card has no token for the piece {piece:?}"),
        }
    }
}

impl std::error::Error for Error {}

impl Book {
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self { scripts: scripts.into_iter().collect(), ..Self::default() }
    }

    /// Reads a book from a JSON file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::Read { file: file.clone(), reason: error.to_string() })?;
        serde_json::from_str(&text).map_err(|error| Error::Json { file, reason: error.to_string() })
    }

    /// What the card's tokenizer must spell beyond single bytes.
    pub(super) fn pieces(&self) -> Vec<Vec<u8>> {
        let spelled = self.scripts.iter().flat_map(Script::spelled);
        let extra = self.extra_pieces.iter().map(String::as_bytes);
        let pieces: BTreeSet<&[u8]> = spelled.chain(extra).filter(|piece| piece.len() != 1).collect();
        pieces.into_iter().map(<[u8]>::to_vec).collect()
    }
}

/// The token ids of pieces, as the card's tokenizer has them.
#[derive(Debug)]
pub(super) struct Speller(Vec<Vec<u8>>);

impl Speller {
    /// `pieces` as [`Book::pieces`] gives them.
    pub(super) fn new(pieces: Vec<Vec<u8>>) -> Self {
        Self(pieces)
    }

    pub(super) fn token(&self, piece: &[u8]) -> Option<u32> {
        match piece {
            [byte] => Some(u32::from(*byte)),
            _ => self
                .0
                .binary_search_by(|known| known.as_slice().cmp(piece))
                .ok()
                .map(|i| FIRST_PIECE + i as u32),
        }
    }

    /// The tokens of each delta that a step emits.
    pub(super) fn deltas(&self, step: &Step) -> Vec<Vec<u32>> {
        let one = |piece: &[u8]| self.token(piece).into_iter().collect();
        match step {
            Step::Text(text) => vec![one(text.as_bytes())],
            Step::Pieces(pieces) => pieces.iter().map(|piece| one(piece.as_bytes())).collect(),
            Step::Bytes(pieces) => pieces.iter().map(|piece| one(piece)).collect(),
            Step::Tokens(tokens) => vec![tokens.clone()],
            _ => Vec::new(),
        }
    }

    pub(super) fn check(&self, script: &Script) -> Result<(), Error> {
        match script.spelled().find(|piece| self.token(piece).is_none()) {
            Some(piece) => Err(Error::Piece(String::from_utf8_lossy(piece).into_owned())),
            None => Ok(()),
        }
    }
}
