//! Request ids and seeds.

use dynamo_types::draw;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest `x-request-id` that is echoed; longer ones are replaced by our own.
const CLIENT_ID_MAX_BYTES: usize = 256;

/// Gives every request of this process its own id and seed. The operating system's randomness is asked once, for the
/// two keys; the rest is counting.
#[derive(Debug)]
pub(crate) struct Identities {
    high: u64,
    low: u64,
    count: AtomicU64,
}

impl Identities {
    pub(crate) fn new() -> Self {
        // The standard library seeds each hasher from the operating system.
        Self {
            high: RandomState::new().hash_one(0),
            low: RandomState::new().hash_one(1),
            count: AtomicU64::new(0),
        }
    }

    /// A fresh UUID (version 4 in form).
    pub(crate) fn uuid(&self) -> String {
        let position = self.count.fetch_add(1, Ordering::Relaxed);
        format_uuid(draw::bits(self.high, position), draw::bits(self.low, position))
    }

    /// A fresh sampling seed.
    pub(crate) fn seed(&self) -> u64 {
        draw::bits(self.low ^ self.high, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

fn format_uuid(high: u64, low: u64) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let high = (high & !0xF000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    let mut text = String::with_capacity(36);
    for (index, byte) in high.to_be_bytes().into_iter().chain(low.to_be_bytes()).enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text
}

/// Is this a UUID in its usual spelling?
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// May this `x-request-id` be echoed and logged?
pub(crate) fn is_presentable(id: &str) -> bool {
    !id.is_empty() && id.len() <= CLIENT_ID_MAX_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The seed of choice `index` of a request: the first has the client's own, so that `n = 1` and the first of many agree.
pub(crate) fn choice_seed(seed: u64, index: u32) -> u64 {
    if index == 0 { seed } else { draw::bits(seed, u64::from(index)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_well_formed_and_distinct() {
        let identities = Identities::new();
        let all: std::collections::BTreeSet<String> = (0..1000).map(|_| identities.uuid()).collect();
        assert_eq!(all.len(), 1000);
        for uuid in all {
            assert!(is_uuid(&uuid), "{uuid}");
            assert_eq!(&uuid[14..15], "4");
            assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"));
        }
    }

    #[test]
    fn odd_ids_are_refused() {
        assert!(is_presentable("abc-1"));
        for odd in ["", "a b", "a\r\nb", "é", &"x".repeat(257)] {
            assert!(!is_presentable(odd), "{odd:?}");
        }
        assert!(!is_uuid("chatcmpl-1"));
        assert!(!is_uuid("0123456789abcdef0123456789abcdef0123"));
    }

    #[test]
    fn the_first_choice_keeps_the_seed() {
        assert_eq!(choice_seed(7, 0), 7);
        assert_ne!(choice_seed(7, 1), choice_seed(7, 2));
    }
}
