//! MessagePack of any shape, borrowed from its bytes: what engines send differs by engine and age, so it is looked at before it
//! is believed.

/// Arrays within arrays; what engines send has four levels.
const MAX_DEPTH: usize = 16;

/// One value. Extension types are skipped and stand as `Nil`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool(bool),
    /// Both signs of 64 bits.
    Int(i128),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Array(Vec<Value<'a>>),
    Map(Vec<(Value<'a>, Value<'a>)>),
}

impl<'a> Value<'a> {
    pub(super) fn array(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        if let Self::Str(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    pub(super) fn unsigned(&self) -> Option<u64> {
        if let Self::Int(number) = self { u64::try_from(*number).ok() } else { None }
    }

    /// The value of this name in a map.
    pub(super) fn named(&self, name: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(key, _)| *key == Value::Str(name.as_bytes())).map(|(_, value)| value)
    }
}

/// The value that stands at the beginning of `bytes`; what follows it is ignored. None: it is cut off, nested too deeply, or
/// not MessagePack. Takes memory in proportion to `bytes`, whatever they claim.
pub(super) fn read(bytes: &[u8]) -> Option<Value<'_>> {
    Reader { rest: bytes }.value(MAX_DEPTH)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// A big-endian number of this many bytes, at most 8.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn signed(&mut self, bytes: usize) -> Option<Value<'a>> {
        let unused = 64 - 8 * bytes as u32;
        let number = (self.number(bytes)? << unused).cast_signed() >> unused;
        Some(Value::Int(i128::from(number)))
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.number(bytes)?).ok()
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        let [tag] = *self.take(1)? else { return None };
        Some(match tag {
            0x00..=0x7F => Value::Int(i128::from(tag)),
            0xE0..=0xFF => Value::Int(i128::from(tag.cast_signed())),
            0x80..=0x8F => self.map(usize::from(tag & 0x0F), depth)?,
            0x90..=0x9F => self.array(usize::from(tag & 0x0F), depth)?,
            0xA0..=0xBF => Value::Str(self.take(usize::from(tag & 0x1F))?),
            0xC0 => Value::Nil,
            0xC2 | 0xC3 => Value::Bool(tag == 0xC3),
            // Lengths and numbers of 1, 2, 4 and 8 bytes follow one another in the table of tags.
            0xC4..=0xC6 => {
                let length = self.length(1 << (tag - 0xC4))?;
                Value::Bin(self.take(length)?)
            }
            0xC7..=0xC9 => {
                let length = self.length(1 << (tag - 0xC7))?;
                self.take(length.checked_add(1)?)?;
                Value::Nil
            }
            0xCA => Value::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xCB => Value::Float(f64::from_bits(self.number(8)?)),
            0xCC..=0xCF => Value::Int(i128::from(self.number(1 << (tag - 0xCC))?)),
            0xD0..=0xD3 => self.signed(1 << (tag - 0xD0))?,
            0xD4..=0xD8 => {
                self.take((1 << (tag - 0xD4)) + 1)?;
                Value::Nil
            }
            0xD9..=0xDB => {
                let length = self.length(1 << (tag - 0xD9))?;
                Value::Str(self.take(length)?)
            }
            0xDC | 0xDD => {
                let length = self.length(2 << (tag - 0xDC))?;
                self.array(length, depth)?
            }
            0xDE | 0xDF => {
                let length = self.length(2 << (tag - 0xDE))?;
                self.map(length, depth)?
            }
            0xC1 => return None,
        })
    }

    fn array(&mut self, length: usize, depth: usize) -> Option<Value<'a>> {
        let depth = depth.checked_sub(1)?;
        // Each item has a byte at least.
        let mut items = Vec::with_capacity(length.min(self.rest.len()));
        for _ in 0..length {
            items.push(self.value(depth)?);
        }
        Some(Value::Array(items))
    }

    fn map(&mut self, length: usize, depth: usize) -> Option<Value<'a>> {
        let depth = depth.checked_sub(1)?;
        let mut entries = Vec::with_capacity(length.min(self.rest.len() / 2));
        for _ in 0..length {
            entries.push((self.value(depth)?, self.value(depth)?));
        }
        Some(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_value_is_read() {
        let wire = rmp_serde::to_vec(&(
            (0u8, 127u8, -1i8, -32i8, 200u8, -128i8, 70_000u32, -70_000i32),
            (u64::MAX, i64::MIN, 1.5f32, -2.25f64, true, false, (), "text"),
            ("x".repeat(40), "y".repeat(300), vec![7u32; 20]),
        ))
        .unwrap();
        let Some(Value::Array(parts)) = read(&wire) else { panic!("an array") };
        let ints = [0, 127, -1, -32, 200, -128, 70_000, -70_000].map(Value::Int);
        assert_eq!(parts[0], Value::Array(ints.to_vec()));
        let Value::Array(mixed) = &parts[1] else { panic!("an array") };
        assert_eq!(mixed[0].unsigned(), Some(u64::MAX));
        assert_eq!(mixed[1], Value::Int(i128::from(i64::MIN)));
        assert_eq!(mixed[2..4], [Value::Float(1.5), Value::Float(-2.25)]);
        assert_eq!(mixed[4..7], [Value::Bool(true), Value::Bool(false), Value::Nil]);
        assert_eq!(mixed[7].text(), Some("text"));
        let Value::Array(long) = &parts[2] else { panic!("an array") };
        assert_eq!((long[0].text().unwrap().len(), long[1].text().unwrap().len()), (40, 300));
        assert_eq!(long[2].array().unwrap().len(), 20);
        let map = [0x81, 0xA1, b'k', 0xC4, 2, 1, 2];
        assert_eq!(read(&map).unwrap().named("k"), Some(&Value::Bin(&[1, 2])));
        let extensions = [0x92, 0xD5, 9, 0, 0, 0xC7, 1, 9, 0];
        assert_eq!(read(&extensions), Some(Value::Array(vec![Value::Nil, Value::Nil])));
    }

    #[test]
    fn what_is_cut_off_or_too_deep_is_refused() {
        assert_eq!(read(&[0xDD, 0xFF, 0xFF, 0xFF, 0xFF]), None, "four billion items that are not there");
        assert_eq!(read(&[0xDB, 0xFF, 0xFF, 0xFF, 0xFF, b'x']), None);
        assert!(read(&[[0x91; MAX_DEPTH].as_slice(), &[0]].concat()).is_some());
        assert_eq!(read(&[[0x91; MAX_DEPTH + 1].as_slice(), &[0]].concat()), None);
        assert_eq!(read(&[0xC1]), None);
        assert_eq!(read(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }
    }
}
