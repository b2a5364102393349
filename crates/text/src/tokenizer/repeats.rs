//! Tokens of texts that come again: the system prompt and the earlier messages of a conversation.
//!
//! What stands between two special tokens is encoded by itself, whatever is around it, so its tokens can be remembered by
//! its bytes alone and are exactly those that encoding it again would give. A text is remembered when it comes the second
//! time: prompts that are all different cost one hash each and no memory.

use rustc_hash::{FxHashMap, FxHasher};
use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shorter texts are encoded faster than they are found.
const TEXT_MIN_BYTES: usize = 512;

/// What is remembered for one tokenizer, texts and ids together: some thousand messages of usual length.
const MEMORY_MAX_BYTES: usize = 8 << 20;

/// A single text may take this part of it.
const SHARE: usize = 8;

/// Fingerprints of texts that came once. Another text in the same place overwrites it.
const SEEN_SLOTS: usize = 4096;

#[derive(Debug)]
pub(super) struct Repeats {
    state: Mutex<State>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    cached_tokens: AtomicU64,
    uncached_tokens: AtomicU64,
}

/// Pieces of texts that were long enough to be remembered: how many were, and how many tokens they had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepeatCounts {
    pub hits: u64,
    pub misses: u64,
    pub cached_tokens: u64,
    pub uncached_tokens: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Empty until the first long text.
    seen: Vec<u64>,
    entries: FxHashMap<u64, Entry>,
    /// Oldest first.
    order: VecDeque<u64>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    known: Arc<Known>,
    /// Asked for since it was last looked at for removal.
    is_used: bool,
}

#[derive(Debug)]
struct Known {
    text: Box<str>,
    ids: Box<[u32]>,
}

impl Known {
    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ids)
    }
}

impl Default for Repeats {
    fn default() -> Self {
        Self::with_limit(MEMORY_MAX_BYTES)
    }
}

impl Repeats {
    fn with_limit(max_bytes: usize) -> Self {
        Self { state: Mutex::new(State { max_bytes, ..State::default() }), counts: Counts::default() }
    }

    /// Appends to `out` what `encode` would append for `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>, encode: impl FnOnce(&str, &mut Vec<u32>)) {
        if text.len() < TEXT_MIN_BYTES {
            return encode(text, out);
        }
        let key = fingerprint(text);
        let (found, comes_again) = self.state().find(key);
        // Two texts may have one fingerprint: only the bytes decide.
        if let Some(known) = found.filter(|known| *known.text == *text) {
            out.extend_from_slice(&known.ids);
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            self.counts.cached_tokens.fetch_add(known.ids.len() as u64, Ordering::Relaxed);
            return;
        }
        let start = out.len();
        encode(text, out);
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        self.counts.uncached_tokens.fetch_add((out.len() - start) as u64, Ordering::Relaxed);
        if comes_again {
            let ids = out.get(start..).unwrap_or_default();
            let known = Arc::new(Known { text: text.into(), ids: ids.into() });
            self.state().insert(key, known);
        }
    }

    /// What was counted since the last call.
    pub(super) fn take_counts(&self) -> RepeatCounts {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        RepeatCounts {
            hits: take(&self.counts.hits),
            misses: take(&self.counts.misses),
            cached_tokens: take(&self.counts.cached_tokens),
            uncached_tokens: take(&self.counts.uncached_tokens),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What is remembered under the fingerprint; else, whether it was seen before. From now on it was.
    fn find(&mut self, key: u64) -> (Option<Arc<Known>>, bool) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.is_used = true;
            return (Some(Arc::clone(&entry.known)), false);
        }
        if self.seen.is_empty() {
            self.seen = vec![0; SEEN_SLOTS];
        }
        let before = self.seen.get_mut(key as usize % SEEN_SLOTS).map(|slot| std::mem::replace(slot, key));
        (None, before == Some(key))
    }

    fn insert(&mut self, key: u64, known: Arc<Known>) {
        let bytes = known.bytes();
        // Another thread may have been faster.
        if bytes > self.max_bytes / SHARE || self.entries.contains_key(&key) {
            return;
        }
        while self.bytes + bytes > self.max_bytes {
            if !self.evict() {
                break;
            }
        }
        self.bytes += bytes;
        self.order.push_back(key);
        self.entries.insert(key, Entry { known, is_used: false });
    }

    /// Forgets the oldest text that was not asked for since the last round. False: there is none at all.
    fn evict(&mut self) -> bool {
        while let Some(key) = self.order.pop_front() {
            match self.entries.get_mut(&key) {
                Some(entry) if entry.is_used => {
                    entry.is_used = false;
                    self.order.push_back(key);
                }
                _ => {
                    let gone = self.entries.remove(&key);
                    self.bytes -= gone.map_or(0, |entry| entry.known.bytes());
                    return true;
                }
            }
        }
        false
    }
}

fn fingerprint(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    // An empty place in `seen` is 0.
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for an encoder: one id per byte.
    fn bytes(text: &str, out: &mut Vec<u32>) {
        out.extend(text.bytes().map(u32::from));
    }

    fn encode(repeats: &Repeats, text: &str) -> (Vec<u32>, bool) {
        let (mut out, mut encoded) = (vec![7], false);
        repeats.encode(text, &mut out, |text, out| {
            encoded = true;
            bytes(text, out);
        });
        (out, encoded)
    }

    #[test]
    fn a_text_that_comes_again_is_encoded_twice_and_then_no_more() {
        let repeats = Repeats::default();
        let text = "ab".repeat(TEXT_MIN_BYTES);
        let mut expected = vec![7];
        bytes(&text, &mut expected);
        let seen: Vec<_> = (0..4).map(|_| encode(&repeats, &text)).collect();
        assert!(seen.iter().all(|(ids, _)| *ids == expected));
        assert_eq!(seen.iter().map(|(_, encoded)| *encoded).collect::<Vec<_>>(), [true, true, false, false]);
        let short = &text[..TEXT_MIN_BYTES - 1];
        assert!((0..4).all(|_| encode(&repeats, short).1), "short texts are not kept");
        let tokens = text.len() as u64;
        let expected =
            RepeatCounts { hits: 2, misses: 2, cached_tokens: 2 * tokens, uncached_tokens: 2 * tokens };
        assert_eq!(repeats.take_counts(), expected);
        assert_eq!(repeats.take_counts(), RepeatCounts::default());
    }

    #[test]
    fn another_text_of_the_same_fingerprint_keeps_its_own_tokens() {
        let repeats = Repeats::default();
        let (text, other) = ("a".repeat(TEXT_MIN_BYTES), "b".repeat(TEXT_MIN_BYTES));
        let known = Known { text: other.as_str().into(), ids: [1, 2].into() };
        repeats.state().insert(fingerprint(&text), Arc::new(known));
        let mut expected = vec![7];
        bytes(&text, &mut expected);
        assert_eq!(encode(&repeats, &text), (expected, true));
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_stays() {
        let limit = 200 * TEXT_MIN_BYTES;
        let repeats = Repeats::with_limit(limit);
        let hot = "h".repeat(TEXT_MIN_BYTES);
        for number in 0..500 {
            encode(&repeats, &hot);
            let text = format!("{number:04}").repeat(TEXT_MIN_BYTES / 4);
            encode(&repeats, &text);
            encode(&repeats, &text);
            let state = repeats.state();
            assert!(state.bytes <= limit);
            assert_eq!(state.order.len(), state.entries.len());
            assert_eq!(state.bytes, state.entries.values().map(|entry| entry.known.bytes()).sum::<usize>());
        }
        assert!(!encode(&repeats, &hot).1);
        let huge = "x".repeat(limit);
        assert!((0..4).all(|_| encode(&repeats, &huge).1), "one text does not drive out all others");
    }
}
