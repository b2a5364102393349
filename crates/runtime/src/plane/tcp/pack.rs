//! MessagePack by hand, for what there is much of: lists of token ids. serde's general way calls some functions for each
//! number.

/// Numbers that are put together before they are appended.
const CHUNK: usize = 64;

/// The longest form of a small number.
const NUMBER_BYTES: usize = 5;

/// MessagePack that was not read yet. Every method takes one thing off the front; `None`: something else is there.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// How many are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    /// For another reader, which may take some too.
    pub(super) fn left_mut(&mut self) -> &mut &'a [u8] {
        &mut self.0
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        match self.byte()? {
            small @ 0..0x80 => Some(u64::from(small)),
            0xcc => self.byte().map(u64::from),
            0xcd => self.array().map(u16::from_be_bytes).map(u64::from),
            0xce => self.array().map(u32::from_be_bytes).map(u64::from),
            0xcf => self.array().map(u64::from_be_bytes),
            _ => None,
        }
    }

    pub(super) fn small_number(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    /// How many entries a list has that begins here.
    pub(super) fn list(&mut self) -> Option<usize> {
        match self.byte()? {
            short @ 0x90..0xa0 => Some(usize::from(short & 0x0f)),
            0xdc => self.array().map(u16::from_be_bytes).map(usize::from),
            0xdd => self.array().map(u32::from_be_bytes).map(|count| count as usize),
            _ => None,
        }
    }

    /// How many fields a map has that begins here.
    pub(super) fn map(&mut self) -> Option<usize> {
        match self.byte()? {
            short @ 0x80..0x90 => Some(usize::from(short & 0x0f)),
            0xde => self.array().map(u16::from_be_bytes).map(usize::from),
            0xdf => self.array().map(u32::from_be_bytes).map(|count| count as usize),
            _ => None,
        }
    }

    /// A short text.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let head @ 0xa0..0xc0 = self.byte()? else { return None };
        let (text, rest) = self.0.split_at_checked(usize::from(head & 0x1f))?;
        self.0 = rest;
        Some(text)
    }

    /// A list of small numbers.
    pub(super) fn tokens(&mut self) -> Option<Vec<u32>> {
        // Each takes a byte at least: what is announced is not allocated before it is there.
        let count = self.list().filter(|count| *count <= self.0.len())?;
        let mut tokens = vec![0; count];
        for token in &mut tokens {
            // The forms of small numbers, each with one look at what is left.
            (*token, self.0) = match self.0 {
                [number @ 0..0x80, rest @ ..] => (u32::from(*number), rest),
                [0xcd, a, b, rest @ ..] => (u32::from(u16::from_be_bytes([*a, *b])), rest),
                [0xce, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
                _ => {
                    let number = self.small_number()?;
                    (number, self.0)
                }
            };
        }
        Some(tokens)
    }

    /// Takes one value of any form, whatever is in it.
    pub(super) fn skip(&mut self) -> Option<()> {
        // Each turn takes a byte at least, so what is announced is no work before it is there.
        let mut values = 1u64;
        while values > 0 {
            let (bytes, inner) = self.head()?;
            self.0 = self.0.get(bytes..)?;
            values = values - 1 + inner;
        }
        Some(())
    }

    /// Takes the head of a value: how many bytes it has besides, and how many values.
    fn head(&mut self) -> Option<(usize, u64)> {
        let byte = self.byte()?;
        Some(match byte {
            0..0x80 | 0xc0 | 0xc2 | 0xc3 | 0xe0.. => (0, 0),
            0x80..0x90 => (0, 2 * u64::from(byte & 0x0f)),
            0x90..0xa0 => (0, u64::from(byte & 0x0f)),
            0xa0..0xc0 => (usize::from(byte & 0x1f), 0),
            0xc4 | 0xd9 => (usize::from(self.byte()?), 0),
            0xc5 | 0xda => (usize::from(u16::from_be_bytes(self.array()?)), 0),
            0xc6 | 0xdb => (u32::from_be_bytes(self.array()?) as usize, 0),
            // Extensions have a type besides.
            0xc7 => (usize::from(self.byte()?) + 1, 0),
            0xc8 => (usize::from(u16::from_be_bytes(self.array()?)) + 1, 0),
            0xc9 => ((u32::from_be_bytes(self.array()?) as usize).saturating_add(1), 0),
            0xcc | 0xd0 => (1, 0),
            0xcd | 0xd1 => (2, 0),
            0xca | 0xce | 0xd2 => (4, 0),
            0xcb | 0xcf | 0xd3 => (8, 0),
            0xd4..=0xd8 => ((1 << (byte - 0xd4)) + 1, 0),
            0xdc => (0, u64::from(u16::from_be_bytes(self.array()?))),
            0xdd => (0, u64::from(u32::from_be_bytes(self.array()?))),
            0xde => (0, 2 * u64::from(u16::from_be_bytes(self.array()?))),
            0xdf => (0, 2 * u64::from(u32::from_be_bytes(self.array()?))),
            0xc1 => return None,
        })
    }
}

/// Appends a list of token ids, each in its shortest form.
pub(super) fn put_tokens(out: &mut Vec<u8>, tokens: &[u32]) {
    match tokens.len() {
        count @ 0..16 => out.push(0x90 | count as u8),
        count @ 16..0x1_0000 => {
            out.push(0xdc);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        count => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
    for chunk in tokens.chunks(CHUNK) {
        let mut bytes = [0; CHUNK * NUMBER_BYTES];
        let mut len = 0;
        for &token in chunk {
            let (form, width) = number(token);
            if let Some(place) = bytes.get_mut(len..len + NUMBER_BYTES) {
                // The next number writes over what this one does not need.
                place.copy_from_slice(&form);
            }
            len += width;
        }
        out.extend_from_slice(bytes.get(..len).unwrap_or_default());
    }
}

/// The shortest form of a number, and its length.
fn number(number: u32) -> ([u8; NUMBER_BYTES], usize) {
    let [a, b, c, d] = number.to_be_bytes();
    match number {
        0..0x80 => ([d, 0, 0, 0, 0], 1),
        0x80..0x100 => ([0xcc, d, 0, 0, 0], 2),
        0x100..0x1_0000 => ([0xcd, c, d, 0, 0], 3),
        _ => ([0xce, a, b, c, d], 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-zé]{0,70}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 60, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::vec(("[a-z]{1,40}", inner), 0..20)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn tokens_are_written_as_serde_writes_them(
            tokens in prop::collection::vec(prop_oneof![0u32..300, 60_000u32..70_000, any::<u32>()], 0..300)
        ) {
            let mut bytes = Vec::new();
            put_tokens(&mut bytes, &tokens);
            prop_assert_eq!(&bytes, &rmp_serde::to_vec(&tokens).unwrap());
            prop_assert_eq!(Bytes::new(&bytes).tokens(), Some(tokens));
        }

        #[test]
        fn any_value_is_skipped_to_its_end_and_not_beyond(value in value(), at in any::<usize>()) {
            let mut bytes = rmp_serde::to_vec(&value).unwrap();
            let length = bytes.len();
            prop_assert!(Bytes::new(&bytes[..at % length]).skip().is_none());
            bytes.push(0xc3);
            let mut cursor = Bytes::new(&bytes);
            prop_assert!(cursor.skip().is_some());
            prop_assert_eq!(cursor.left(), 1);
        }

        #[test]
        fn nothing_is_too_odd_to_be_skipped(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            let mut cursor = Bytes::new(&bytes);
            while cursor.skip().is_some() {}
        }
    }

    #[test]
    fn long_lists_have_longer_heads() {
        for count in [15u32, 16, 65_535, 65_536] {
            let tokens: Vec<u32> = (0..count).collect();
            let mut bytes = Vec::new();
            put_tokens(&mut bytes, &tokens);
            assert_eq!(bytes, rmp_serde::to_vec(&tokens).unwrap());
            assert_eq!(Bytes::new(&bytes).tokens(), Some(tokens));
        }
        let many = rmp_serde::to_vec(&json!({"a": vec![1; 70_000], "b": vec![0.5; 20]})).unwrap();
        let mut cursor = Bytes::new(&many);
        assert!(cursor.skip().is_some() && cursor.left() == 0);
        let extension = [0xc7, 3, 9, 1, 2, 3, 0xd6, 9, 1, 2, 3, 4];
        let mut cursor = Bytes::new(&extension);
        assert!(cursor.skip().and_then(|()| cursor.skip()).is_some() && cursor.left() == 0);
    }
}
