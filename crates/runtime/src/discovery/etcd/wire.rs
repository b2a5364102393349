//! The messages of etcd's v3 API that are used here, as protobuf. Field numbers are those of etcd's `rpc.proto`.

use std::fmt;

/// Bytes that are no message of etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a message of etcd's v3 API, found something else")
    }
}

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Numbers that are 0 are left out, as protobuf has it.
    pub(super) fn int(mut self, field: u32, value: i64) -> Self {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value.cast_unsigned());
        }
        self
    }

    pub(super) fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The value of a field.
enum Value<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn int(&self) -> Result<i64, Malformed> {
        match self {
            Self::Int(value) => Ok(value.cast_signed()),
            Self::Bytes(_) => Err(Malformed),
        }
    }

    fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(value) => Ok(value),
            Self::Int(_) => Err(Malformed),
        }
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(Malformed)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], Malformed> {
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = after;
    Ok(taken)
}

/// Calls `field` with each field's number and value.
fn read<'a>(
    mut rest: &'a [u8],
    mut field: impl FnMut(u64, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Value::Int(varint(&mut rest)?),
            1 => Value::Bytes(take(&mut rest, 8)?),
            2 => {
                let length = varint(&mut rest)?;
                Value::Bytes(take(&mut rest, length)?)
            }
            5 => Value::Bytes(take(&mut rest, 4)?),
            _ => return Err(Malformed),
        };
        field(tag >> 3, value)?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One entry of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// The revision of the store that wrote it.
    pub(super) revision: i64,
}

impl Pair {
    fn of(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut pair = Self::default();
        read(bytes, |field, value| {
            match field {
                1 => pair.key = text(value.bytes()?),
                3 => pair.revision = value.int()?,
                5 => pair.value = value.bytes()?.to_vec(),
                _ => {}
            }
            Ok(())
        })?;
        Ok(pair)
    }
}

/// The revision in a header.
fn revision(header: &[u8]) -> Result<i64, Malformed> {
    let mut revision = 0;
    read(header, |field, value| {
        if field == 3 {
            revision = value.int()?;
        }
        Ok(())
    })?;
    Ok(revision)
}

/// The first key after all that begin with `prefix`.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // All keys from there.
    vec![0]
}

pub(super) fn range_of(key: &str) -> Message {
    Message::new().bytes(1, key.as_bytes())
}

pub(super) fn range_below(prefix: &str) -> Message {
    range_between(prefix, prefix)
}

/// All keys from the first below one prefix to the last below another.
pub(super) fn range_between(first: &str, last: &str) -> Message {
    range_of(first).bytes(2, &prefix_end(last))
}

/// How many there are, without them.
pub(super) fn count_below(prefix: &str) -> Message {
    range_below(prefix).int(9, 1)
}

/// What a range found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pairs: Vec<Pair>,
    pub(super) count: i64,
}

impl Found {
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut found = Self::default();
        read(bytes, |field, value| {
            match field {
                2 => found.pairs.push(Pair::of(value.bytes()?)?),
                4 => found.count = value.int()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(found)
    }
}

pub(super) fn put(key: &str, value: &[u8], lease: i64) -> Message {
    Message::new().bytes(1, key.as_bytes()).bytes(2, value).int(3, lease)
}

/// What is compared in a transaction.
pub(super) enum If<'a> {
    IsAbsent(&'a str),
    BelongsTo(&'a str, i64),
}

/// Steps that are done together or not at all.
#[derive(Clone, Debug, Default)]
pub(super) struct Transaction(Message);

impl Transaction {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn only(self, condition: &If<'_>) -> Self {
        // The result compared for is equality, which is 0.
        let compare = match condition {
            If::IsAbsent(key) => Message::new().int(2, 1).bytes(3, key.as_bytes()),
            If::BelongsTo(key, lease) => Message::new().int(2, 4).bytes(3, key.as_bytes()).int(8, *lease),
        };
        Self(self.0.message(1, &compare))
    }

    fn step(self, operation: u32, message: &Message) -> Self {
        Self(self.0.message(2, &Message::new().message(operation, message)))
    }

    pub(super) fn range(self, range: &Message) -> Self {
        self.step(1, range)
    }

    pub(super) fn put(self, key: &str, value: &[u8], lease: i64) -> Self {
        self.step(2, &put(key, value, lease))
    }

    pub(super) fn delete(self, key: &str) -> Self {
        self.step(3, &range_of(key))
    }

    pub(super) fn message(&self) -> &Message {
        &self.0
    }
}

/// What a transaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) revision: i64,
    /// What its ranges found, in their order.
    pub(super) found: Vec<Found>,
}

impl Done {
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut done = Self::default();
        read(bytes, |field, value| {
            match field {
                1 => done.revision = revision(value.bytes()?)?,
                3 => read(value.bytes()?, |operation, value| {
                    if operation == 1 {
                        done.found.push(Found::of(value.bytes()?)?);
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(done)
    }
}

/// Tells of every change in `range` after `revision`.
pub(super) fn watch(range: Message, revision: i64) -> Message {
    Message::new().message(1, &range.int(3, revision + 1))
}

/// What a watch says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) revision: i64,
    /// The watch is over, for this reason.
    pub(super) canceled: Option<String>,
    /// Not 0: what was asked for is not kept any more.
    pub(super) compacted: i64,
    /// Whether an entry was written (else removed), and the entry.
    pub(super) events: Vec<(bool, Pair)>,
}

impl Changes {
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut changes = Self::default();
        let (mut canceled, mut reason) = (false, String::new());
        read(bytes, |field, value| {
            match field {
                1 => changes.revision = revision(value.bytes()?)?,
                4 => canceled = value.int()? != 0,
                5 => changes.compacted = value.int()?,
                6 => reason = text(value.bytes()?),
                11 => changes.events.push(event(value.bytes()?)?),
                _ => {}
            }
            Ok(())
        })?;
        changes.canceled = canceled.then_some(reason);
        Ok(changes)
    }
}

fn event(bytes: &[u8]) -> Result<(bool, Pair), Malformed> {
    let (mut is_put, mut pair) = (true, Pair::default());
    read(bytes, |field, value| {
        match field {
            1 => is_put = value.int()? == 0,
            2 => pair = Pair::of(value.bytes()?)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((is_put, pair))
}

/// `id` 0: the store chooses one.
pub(super) fn grant(ttl_s: i64, id: i64) -> Message {
    Message::new().int(1, ttl_s).int(2, id)
}

pub(super) fn lease(id: i64) -> Message {
    Message::new().int(1, id)
}

/// A lease as the store has it; no time left says that it has none of that id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) id: i64,
    pub(super) ttl_s: i64,
}

impl Granted {
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut granted = Self::default();
        read(bytes, |field, value| {
            match field {
                2 => granted.id = value.int()?,
                3 => granted.ttl_s = value.int()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(granted)
    }
}

pub(super) fn authenticate(user: &str, password: &str) -> Message {
    Message::new().bytes(1, user.as_bytes()).bytes(2, password.as_bytes())
}

pub(super) fn token(bytes: &[u8]) -> Result<String, Malformed> {
    let mut token = String::new();
    read(bytes, |field, value| {
        if field == 2 {
            token = text(value.bytes()?);
        }
        Ok(())
    })?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_put_is_written_as_protobuf_says() {
        let written = put("k", b"v", 300);
        assert_eq!(written.as_bytes(), [0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 0xac, 0x02]);
    }

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        assert_eq!(prefix_end("v1/"), b"v10");
        assert_eq!(prefix_end("a"), b"b");
    }

    #[test]
    fn what_a_watch_says_is_read() {
        let pair = Message::new().bytes(1, b"key").int(3, 7).bytes(5, b"value");
        let put = Message::new().message(2, &pair);
        let removed = Message::new().int(1, 1).message(2, &pair);
        let header = Message::new().int(1, -1).int(3, 9);
        let said = Message::new().message(1, &header).int(4, 1).int(5, 3).bytes(6, b"why");
        let said = said.message(11, &put).message(11, &removed);
        let pair = Pair { key: "key".into(), value: b"value".to_vec(), revision: 7 };
        let expected = Changes {
            revision: 9,
            canceled: Some("why".into()),
            compacted: 3,
            events: vec![(true, pair.clone()), (false, pair)],
        };
        assert_eq!(Changes::of(said.as_bytes()), Ok(expected));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Changes::of(&bytes), Done::of(&bytes), Found::of(&bytes), Granted::of(&bytes), token(&bytes));
        }

        #[test]
        fn numbers_come_back(ttl_s in any::<i64>(), id in any::<i64>()) {
            let written = Message::new().int(2, id).int(3, ttl_s);
            prop_assert_eq!(Granted::of(written.as_bytes()), Ok(Granted { id, ttl_s }));
            prop_assert!(ttl_s == 0 || Granted::of(&written.as_bytes()[..written.as_bytes().len() - 1]).is_err());
        }
    }
}
