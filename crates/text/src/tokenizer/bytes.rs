//! The flat table from token ids to bytes.

use dynamo_types::Error;
use serde_json::Value;

/// Largest token id accepted. The largest published vocabularies are near 300 thousand; a table is `id + 1` long, so
/// a broken file must not be able to ask for gigabytes.
const MAX_TOKEN_ID: u32 = 4_000_000;

/// Bytes of every token: one arena, one offset per id.
#[derive(Debug)]
pub(super) struct ByteTable {
    arena: Vec<u8>,
    /// `offsets[id]..offsets[id + 1]`.
    offsets: Vec<u32>,
    /// One bit per id.
    special: Vec<u64>,
    leading_spaces_stripped: usize,
    /// Bytes of the longest token.
    longest: usize,
}

impl ByteTable {
    pub(super) fn from_pieces(pieces: &[Vec<u8>]) -> Self {
        let mut table = Self::empty(256 + pieces.len());
        for byte in 0..=255u8 {
            table.append(|arena| arena.push(byte));
        }
        for piece in pieces {
            table.append(|arena| arena.extend_from_slice(piece));
        }
        table
    }

    fn empty(tokens: usize) -> Self {
        let mut offsets = Vec::with_capacity(tokens + 1);
        offsets.push(0);
        Self {
            arena: Vec::new(),
            offsets,
            special: vec![0; tokens.div_ceil(64)],
            leading_spaces_stripped: 0,
            longest: 0,
        }
    }

    /// The next id's bytes.
    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.arena.len();
        write(&mut self.arena);
        self.longest = self.longest.max(self.arena.len() - before);
        self.offsets.push(u32::try_from(self.arena.len()).unwrap_or(u32::MAX));
    }

    /// From a vocabulary, the tokens added to it (id, text, special) and the decoder that turns tokens into text.
    pub(super) fn from_vocabulary<'a>(
        vocabulary: impl Iterator<Item = (&'a str, u32)> + Clone,
        added: impl Iterator<Item = (u32, &'a str, bool)> + Clone,
        decoder: &Value,
    ) -> Result<Self, Error> {
        let steps = Steps::read(decoder)?;
        let ids = vocabulary.clone().map(|(_, id)| id).chain(added.clone().map(|(id, _, _)| id));
        let last = ids.max().unwrap_or(0);
        if last > MAX_TOKEN_ID {
            return Err(Error::internal(format!(
                "tokenizer.json: token id {last} is above the limit of {MAX_TOKEN_ID}"
            )));
        }
        // An added token is text, not an entry of the model's alphabet.
        let mut texts = vec![("", false); last as usize + 1];
        vocabulary.for_each(|(token, id)| texts[id as usize] = (token, false));
        added.clone().for_each(|(id, token, _)| texts[id as usize] = (token, true));
        let mut table = Self::empty(texts.len());
        table.leading_spaces_stripped = steps.leading_spaces_stripped;
        for (token, is_added) in texts {
            table.append(|arena| {
                if is_added {
                    arena.extend_from_slice(token.as_bytes());
                } else {
                    steps.append(token, arena);
                }
            });
        }
        for (id, _, _) in added.filter(|(_, _, special)| *special) {
            table.special[id as usize / 64] |= 1 << (id % 64);
        }
        Ok(table)
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline]
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let token = token as usize;
        match (self.offsets.get(token), self.offsets.get(token + 1)) {
            (Some(&start), Some(&end)) => &self.arena[start as usize..end as usize],
            _ => &[],
        }
    }

    #[inline]
    pub(super) fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn leading_spaces_stripped(&self) -> usize {
        self.leading_spaces_stripped
    }
}

/// The characters that stand for bytes in byte-level vocabularies (GPT-2): printable Latin-1 bytes are themselves, the
/// others follow from U+0100 on.
#[derive(Debug)]
pub(super) struct Alphabet {
    chars: [char; 256],
    /// Back, by code point.
    bytes: [Option<u8>; 0x150],
}

impl Alphabet {
    pub(super) fn new() -> Self {
        let mut alphabet = Self { chars: ['\0'; 256], bytes: [None; 0x150] };
        let mut next = 0x100u32;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if printable {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            alphabet.chars[byte as usize] = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            alphabet.bytes[code as usize] = Some(byte);
        }
        alphabet
    }

    /// By byte.
    pub(super) fn chars(&self) -> &[char; 256] {
        &self.chars
    }

    /// Appends what a token stands for; false, and nothing, if it has other characters.
    pub(super) fn append(&self, token: &str, bytes: &mut Vec<u8>) -> bool {
        let before = bytes.len();
        for char in token.chars() {
            match self.bytes.get(char as usize) {
                Some(&Some(byte)) => bytes.push(byte),
                _ => {
                    bytes.truncate(before);
                    return false;
                }
            }
        }
        true
    }
}

/// What a tokenizer's decoder does to a single token, and to the start of the text.
#[derive(Debug, Default)]
struct Steps {
    /// Set for byte-level vocabularies.
    byte_level: Option<Alphabet>,
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    leading_spaces_stripped: usize,
}

impl Steps {
    fn read(decoder: &Value) -> Result<Self, Error> {
        let mut steps = Self::default();
        steps.add(decoder)?;
        Ok(steps)
    }

    fn add(&mut self, decoder: &Value) -> Result<(), Error> {
        let text = |name: &str| decoder.get(name).and_then(Value::as_str);
        match text("type") {
            Some("Sequence") => {
                let list = decoder.get("decoders").and_then(Value::as_array);
                list.into_iter().flatten().try_for_each(|decoder| self.add(decoder))?;
            }
            Some("ByteLevel") => self.byte_level = Some(Alphabet::new()),
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Fuse") => {}
            Some("Replace") => {
                let pattern =
                    decoder.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str);
                let (Some(pattern), Some(content)) = (pattern, text("content")) else {
                    return Err(unsupported("a Replace with a regular expression"));
                };
                self.replace.push((pattern.to_owned(), content.to_owned()));
            }
            Some("Strip") => {
                let count = |name: &str| decoder.get(name).and_then(Value::as_u64).unwrap_or(0);
                if text("content") != Some(" ") || count("stop") != 0 {
                    return Err(unsupported("a Strip of other than leading spaces"));
                }
                self.leading_spaces_stripped = usize::try_from(count("start")).unwrap_or(0);
            }
            Some("Metaspace") => {
                let replacement = text("replacement").unwrap_or("\u{2581}");
                self.replace.push((replacement.to_owned(), " ".to_owned()));
                if text("prepend_scheme") != Some("never") {
                    self.leading_spaces_stripped = 1;
                }
            }
            Some(other) => return Err(unsupported(other)),
            None => return Err(unsupported("none at all")),
        }
        Ok(())
    }

    fn append(&self, token: &str, bytes: &mut Vec<u8>) {
        if let Some(alphabet) = &self.byte_level {
            if !alphabet.append(token, bytes) {
                bytes.extend_from_slice(token.as_bytes());
            }
            return;
        }
        if self.byte_fallback
            && let Some(hex) = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))
            && hex.len() == 2
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            bytes.push(byte);
            return;
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// The bytes that a token of a byte-level vocabulary stands for; none if it has other characters.
pub(super) fn byte_level_bytes(token: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(token.len());
    Alphabet::new().append(token, &mut bytes).then_some(bytes)
}

fn unsupported(what: &str) -> Error {
    Error::internal(format!(
        "tokenizer.json: the decoder has {what}; supported are ByteLevel, Metaspace and sequences of Replace, \
         ByteFallback, Fuse and Strip"
    ))
}
