//! The messages of a pipe, and what may be sent and must come next: a byte stream over subjects that neither number
//! their messages nor hold back who sends too much.

use bytes::{Buf as _, Bytes};

/// Bytes that may be on their way in one direction of a pipe. A server cuts off a client that leaves 64 MiB unread, so this
/// times the workers of a fleet is what it may come to if a frontend does not run for a while.
pub(super) const WINDOW_BYTES: u64 = 512 << 10;

/// Kind and number.
pub(super) const HEAD_BYTES: usize = 9;

/// What a message is. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Says nothing: whether anybody listens is the server's to say.
    Probe = 0,
    /// Asks for a pipe; its number is the limit for the other side.
    Open = 1,
    /// Grants it; likewise.
    Accept = 2,
    /// Bytes; numbered from 0.
    Data = 3,
    /// Its number is how many bytes may be sent from the beginning on.
    Credit = 4,
    /// Nothing comes after it; numbered as data. Its body may say why.
    End = 5,
}

/// `u8 kind | u64 number, big-endian`.
pub(super) fn head(kind: Kind, number: u64) -> [u8; HEAD_BYTES] {
    let mut head = [kind as u8; HEAD_BYTES];
    if let Some(rest) = head.get_mut(1..) {
        rest.copy_from_slice(&number.to_be_bytes());
    }
    head
}

/// None: too short, or of a kind from the future.
pub(super) fn parse(mut payload: Bytes) -> Option<(Kind, u64, Bytes)> {
    const ALL: [Kind; 6] = [Kind::Probe, Kind::Open, Kind::Accept, Kind::Data, Kind::Credit, Kind::End];
    if payload.len() < HEAD_BYTES {
        return None;
    }
    let kind = payload.get_u8();
    let kind = ALL.into_iter().find(|known| *known as u8 == kind)?;
    let number = payload.get_u64();
    Some((kind, number, payload))
}

/// Numbers and limits of both directions.
#[derive(Debug)]
pub(super) struct Flow {
    /// The number that comes next.
    next: u64,
    received: u64,
    taken: u64,
    /// What the other side may send in all, as it was told.
    granted: u64,
    /// The number to be given next.
    number: u64,
    sent: u64,
    /// What may be sent in all.
    allowed: u64,
}

impl Flow {
    /// With what the first message of this side grants; the other side's is not known yet.
    pub(super) fn new() -> Self {
        Self { next: 0, received: 0, taken: 0, granted: WINDOW_BYTES, number: 0, sent: 0, allowed: 0 }
    }

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Data, or the end, has come.
    ///
    /// # Errors
    /// A message is missing, or came twice; or more came than was granted.
    pub(super) fn receive(&mut self, number: u64, bytes: usize) -> Result<(), String> {
        if number != self.next {
            return Err(format!("message {number} came where {} was due", self.next));
        }
        self.next += 1;
        self.received = self.received.saturating_add(bytes as u64);
        if self.received > self.granted {
            return Err(format!("{} bytes came where {} were granted", self.received, self.granted));
        }
        Ok(())
    }

    /// The reader took so much. Some: the new limit, to be told to the other side.
    pub(super) fn take(&mut self, bytes: usize) -> Option<u64> {
        self.taken += bytes as u64;
        let limit = self.taken + WINDOW_BYTES;
        if limit - self.granted < WINDOW_BYTES / 2 {
            return None;
        }
        self.granted = limit;
        Some(limit)
    }

    /// The other side allows so much in all.
    pub(super) fn allow(&mut self, limit: u64) {
        self.allowed = self.allowed.max(limit);
    }

    /// Bytes that may be sent now.
    pub(super) fn room(&self) -> usize {
        usize::try_from(self.allowed - self.sent).unwrap_or(usize::MAX)
    }

    /// The number of the message that takes so much of the room, or of the end.
    pub(super) fn send(&mut self, bytes: usize) -> u64 {
        let number = self.number;
        self.number += 1;
        self.sent += bytes as u64;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::draw;
    use std::collections::VecDeque;

    /// A reader that lags however it likes never lets more than the window wait, and never stops the writer for good.
    #[test]
    fn what_is_on_its_way_is_bounded_and_all_of_it_arrives() {
        for case in 0..100 {
            let (mut near, mut far) = (Flow::new(), Flow::new());
            near.allow(far.granted());
            let (mut on_its_way, mut credits) = (VecDeque::new(), VecDeque::new());
            let (mut left, mut taken) = (5 * WINDOW_BYTES as usize + draw::index(case, 0, 1000), 0);
            let whole = left;
            for step in 1.. {
                match draw::index(case, step, 3) {
                    0 => {
                        let bytes = near.room().min(left).min(1 + draw::index(case, step + 1, 200_000));
                        if bytes > 0 {
                            on_its_way.push_back((near.send(bytes), bytes));
                            left -= bytes;
                        }
                    }
                    1 => {
                        if let Some((number, bytes)) = on_its_way.pop_front() {
                            far.receive(number, bytes).unwrap();
                            taken += bytes;
                            credits.extend(far.take(bytes));
                        }
                    }
                    _ => credits.pop_front().into_iter().for_each(|limit| near.allow(limit)),
                }
                let waiting: usize = on_its_way.iter().map(|(_, bytes)| bytes).sum();
                assert!(waiting as u64 <= WINDOW_BYTES, "case {case}");
                if taken == whole {
                    break;
                }
                assert!(step < 100_000, "case {case} goes on: {left} of {whole} left");
            }
        }
    }

    #[test]
    fn gaps_repetitions_and_floods_are_faults() {
        let mut flow = Flow::new();
        flow.receive(0, 10).unwrap();
        assert!(flow.receive(2, 1).unwrap_err().contains("message 2 came where 1 was due"));
        assert!(flow.receive(0, 1).is_err());
        assert!(Flow::new().receive(0, WINDOW_BYTES as usize + 1).unwrap_err().contains("granted"));
        let mut flow = Flow::new();
        flow.allow(100);
        flow.allow(50);
        assert_eq!(flow.room(), 100, "an older limit takes nothing away");
    }

    #[test]
    fn heads_cross_unchanged_and_what_is_not_known_is_nothing() {
        let mut wire = head(Kind::Credit, 1 << 40).to_vec();
        wire.push(7);
        assert_eq!(parse(wire.into()), Some((Kind::Credit, 1 << 40, Bytes::from_static(&[7]))));
        assert_eq!(parse(Bytes::from_static(b"12345678")), None);
        assert_eq!(parse(Bytes::from_static(&[200; 20])), None);
    }
}
