//! Protocol Buffers' wire format (version 3): fields in, fields out.

use bytes::{BufMut, BytesMut};
use dynamo_types::Error;

/// What a field holds. The types of the wire: what they mean is the message's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message, in order. Ends after the first fault.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|&number| number > 0)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            // Groups, which version 3 does not have.
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| malformed("a field is cut off or of no known type")))
    }
}

/// A message that is not what its schema says.
pub(crate) fn malformed(problem: &str) -> Error {
    Error::invalid(format!("the message is not well-formed: {problem}")).with_code("malformed_message")
}

impl<'a> Value<'a> {
    /// # Errors
    /// 400: the field is of another type.
    pub fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(malformed("expected bytes, found a number")),
        }
    }

    /// # Errors
    /// 400: the field is of another type, or no UTF-8.
    pub fn text(self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a text is not valid UTF-8"))
    }

    /// # Errors
    /// 400: the field is of another type.
    pub fn varint(self) -> Result<u64, Error> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(malformed("expected a number, found something else")),
        }
    }

    /// Calls `each` for every number of a repeated field, which comes packed or one by one.
    ///
    /// # Errors
    /// 400: the field is of another type; whatever `each` returns.
    pub fn varints(self, mut each: impl FnMut(u64) -> Result<(), Error>) -> Result<(), Error> {
        match self {
            Self::Varint(value) => each(value),
            Self::Bytes(packed) => {
                let mut numbers = Fields::of(packed);
                while !numbers.rest.is_empty() {
                    each(numbers.varint().ok_or_else(|| malformed("a number is cut off"))?)?;
                }
                Ok(())
            }
            _ => Err(malformed("expected numbers, found something else")),
        }
    }
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Writes a number, unless it is 0, which is what an absent one means.
pub fn number(out: &mut BytesMut, field: u32, value: u64) {
    if value != 0 {
        choice(out, field, value);
    }
}

/// Writes a number of a `oneof`, where 0 is not the same as absent.
pub fn choice(out: &mut BytesMut, field: u32, value: u64) {
    put_varint(out, u64::from(field) << 3);
    put_varint(out, value);
}

/// Writes a double of a `oneof`.
pub fn double(out: &mut BytesMut, field: u32, value: f64) {
    put_varint(out, u64::from(field) << 3 | 1);
    out.put_f64_le(value);
}

/// Writes a text, bytes or a message, also an empty one.
pub fn bytes(out: &mut BytesMut, field: u32, value: &[u8]) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, value.len() as u64);
    out.put_slice(value);
}

/// Writes a text, unless it is empty, which is what an absent one means.
pub fn text(out: &mut BytesMut, field: u32, value: &str) {
    if !value.is_empty() {
        bytes(out, field, value.as_bytes());
    }
}

/// Writes a message that `fill` writes the fields of.
pub fn message(out: &mut BytesMut, field: u32, fill: impl FnOnce(&mut BytesMut)) {
    let mut inner = BytesMut::new();
    fill(&mut inner);
    bytes(out, field, &inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_read_as_the_specification_writes_them() {
        // The examples of the format's own documentation: 150 in field 1, "testing" in field 2.
        let message = [0x08, 0x96, 0x01, 0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g'];
        let fields: Result<Vec<_>, _> = Fields::of(&message).collect();
        assert_eq!(fields.unwrap(), [(1, Value::Varint(150)), (2, Value::Bytes(b"testing"))]);
        // 3, 270 and 86942, packed.
        let mut numbers = Vec::new();
        let packed = Value::Bytes(&[0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]);
        packed
            .varints(|number| {
                numbers.push(number);
                Ok(())
            })
            .unwrap();
        assert_eq!(numbers, [3, 270, 86942]);
    }

    #[test]
    fn faults_end_a_message() {
        for bad in [&[0x08][..], &[0x00, 1], &[0x12, 5, b'a'], &[0x0b], &[0x09, 1, 2], &[0x08, 0xff, 0xff]] {
            let fields: Vec<_> = Fields::of(bad).collect();
            assert_eq!(fields.len(), 1, "{bad:?}");
            assert!(fields[0].is_err(), "{bad:?}");
        }
        let too_long = [&[0x08][..], &[0xff; 9], &[0x02]].concat();
        assert!(Fields::of(&too_long).any(|field| field.is_err()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(field in 1u32..1000, value in any::<u64>(), text in ".*", real in any::<f64>()) {
            let mut out = BytesMut::new();
            choice(&mut out, field, value);
            bytes(&mut out, field, text.as_bytes());
            double(&mut out, field, real);
            message(&mut out, field, |inner| number(inner, 1, value));
            let fields: Result<Vec<_>, _> = Fields::of(&out).collect();
            let fields = fields.unwrap();
            prop_assert_eq!(fields[0], (field, Value::Varint(value)));
            prop_assert_eq!(fields[1], (field, Value::Bytes(text.as_bytes())));
            prop_assert_eq!(fields[2], (field, Value::Fixed64(real.to_bits())));
            let inner: u64 = Fields::of(fields[3].1.bytes().unwrap()).map(|field| field.unwrap().1.varint().unwrap()).sum();
            prop_assert_eq!(inner, value);
        }
    }
}
