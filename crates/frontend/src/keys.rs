//! Who may ask: keys out of a file that may change while we run.
//!
//! Keys are never logged and never shown; nothing here can be printed.

use dynamo_runtime::follow::{self, Change, LOOK_EVERY, Verdict};
use dynamo_runtime::sync::{read, write};
use dynamo_types::{Class, Error};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// What a 401 says about how to do better (RFC 6750).
pub(crate) const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"dynamo\"");

/// Far above [`KEYS_MAX`] keys of usual length: a larger file is some other file.
const FILE_MAX_BYTES: u64 = 256 * 1024;
/// Every request is compared with all of them.
const KEYS_MAX: usize = 1000;
/// Shorter ones can be guessed.
const KEY_MIN_BYTES: usize = 16;
const KEY_MAX_BYTES: usize = 512;

type KeySet = Vec<Box<[u8]>>;

/// The keys in force.
pub(crate) struct Keys {
    path: PathBuf,
    valid: RwLock<KeySet>,
}

impl Keys {
    /// # Errors
    /// One line: the file cannot be read, has no key, or has a line that is none.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let valid = load(path)?;
        Ok(Self { path: path.to_owned(), valid: RwLock::new(valid) })
    }

    /// # Errors
    /// 401 without a key, or with one that is not in the file.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Error> {
        let problem = match presented(headers) {
            None => "An API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            Some(key) if is_among(&read(&self.valid), key) => return Ok(()),
            Some(_) => "The API key is not valid",
        };
        Err(Error::client(Class::Unauthorized, problem).with_code("invalid_api_key"))
    }

    /// Reads the file again and again, until dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut change = Change::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let keys = Arc::clone(&self);
            let Ok(found) = tokio::task::spawn_blocking(move || load(&keys.path)).await else { continue };
            // Not in the `match`: the lock would be held for all of it.
            let verdict = change.seen(found, &read(&self.valid));
            match verdict {
                Verdict::Nothing => {}
                Verdict::Take(keys) => {
                    tracing::info!(keys = keys.len(), "the API keys have changed");
                    *write(&self.valid) = keys;
                }
                Verdict::Complain(reason) => {
                    tracing::warn!("the API keys stay as they were: {reason}");
                }
            }
        }
    }
}

fn load(path: &Path) -> Result<KeySet, String> {
    let text = follow::content(path, FILE_MAX_BYTES)?;
    parse(&text).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// One key a line; empty lines and those that begin with `#` are left out.
fn parse(text: &[u8]) -> Result<KeySet, String> {
    let mut keys = KeySet::new();
    for (line, number) in text.split(|&byte| byte == b'\n').zip(1..) {
        let key = line.trim_ascii();
        if key.is_empty() || key.starts_with(b"#") {
            continue;
        }
        // The line is not quoted: it may be a key with a slip in it.
        if !(KEY_MIN_BYTES..=KEY_MAX_BYTES).contains(&key.len()) {
            return Err(format!(
                "line {number}: a key has {KEY_MIN_BYTES} to {KEY_MAX_BYTES} characters, found {}",
                key.len()
            ));
        }
        if !key.iter().all(u8::is_ascii_graphic) {
            return Err(format!("line {number}: a key has visible ASCII characters only"));
        }
        keys.push(key.into());
    }
    match keys.len() {
        0 => Err("no key in it; every request would be refused".into()),
        1..=KEYS_MAX => Ok(keys),
        found => Err(format!("at most {KEYS_MAX} keys, found {found}")),
    }
}

/// As OpenAI's clients send it, or as Anthropic's do.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

/// Compares with every key, whichever fits.
fn is_among(keys: &KeySet, presented: &[u8]) -> bool {
    keys.iter().fold(false, |found, key| found | is_same(key, presented))
}

/// Takes the same time wherever the two differ, so that a key cannot be found out byte by byte; only its length shows.
fn is_same(key: &[u8], presented: &[u8]) -> bool {
    let mut difference = key.len() ^ presented.len();
    for (index, byte) in key.iter().enumerate() {
        let other = presented.get(index).copied().unwrap_or(0);
        difference = black_box(difference | usize::from(byte ^ other));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "sk-0123456789abcdef";
    const TWO: &str = "sk-fedcba9876543210";

    fn set(keys: &[&str]) -> KeySet {
        keys.iter().map(|key| key.as_bytes().into()).collect()
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn files_are_read_and_slips_are_named_but_not_quoted() {
        let text = format!("# people\n\n  {ONE}  \r\n{TWO}\n#{ONE}\n");
        assert_eq!(parse(text.as_bytes()).unwrap(), set(&[ONE, TWO]));
        for (text, part) in [
            ("", "no key"),
            ("# nothing\n", "no key"),
            ("short\n", "line 1: a key has 16 to 512 characters, found 5"),
            ("# x\nsk-0123456789abcdef with a note\n", "line 2: a key has visible"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains("0123456789"), "{error}");
        }
        assert!(parse("x".repeat(513).as_bytes()).is_err());
        assert!(parse(format!("{ONE}\n").repeat(KEYS_MAX).as_bytes()).is_ok());
        assert!(parse(format!("{ONE}\n").repeat(KEYS_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn only_whole_keys_fit() {
        let keys = set(&[ONE, TWO]);
        for good in [ONE, TWO] {
            assert!(is_among(&keys, good.as_bytes()));
        }
        let near = [&ONE[1..], &ONE[..ONE.len() - 1], &format!("{ONE}0"), "", "sk-0123456789abcdeF"];
        for bad in near {
            assert!(!is_among(&keys, bad.as_bytes()), "{bad}");
        }
        assert!(!is_among(&keys, &[0; 19]));
        assert!(!is_among(&KeySet::new(), b""));
    }

    #[test]
    fn keys_come_in_two_headers() {
        for value in [format!("Bearer {ONE}"), format!("bearer  {ONE} "), format!("BEARER {ONE}")] {
            assert_eq!(presented(&headers("authorization", &value)), Some(ONE.as_bytes()), "{value}");
        }
        for value in [ONE.to_owned(), format!("Basic {ONE}"), format!("Bearer{ONE}"), "Bearer".into()] {
            assert_eq!(presented(&headers("authorization", &value)), None, "{value}");
        }
        assert_eq!(presented(&headers("x-api-key", ONE)), Some(ONE.as_bytes()));
    }

    #[test]
    fn a_change_is_taken_when_it_has_settled_and_a_bad_file_changes_nothing() {
        let (old, new) = (set(&[ONE]), set(&[TWO]));
        let mut change = Change::default();
        let mut verdict = |found: Result<KeySet, String>| match change.seen(found, &old) {
            Verdict::Nothing => "nothing".to_owned(),
            Verdict::Take(keys) => {
                assert_eq!(keys, new);
                "take".to_owned()
            }
            Verdict::Complain(reason) => reason,
        };
        let bad = || Err("gone".to_owned());
        assert_eq!(verdict(Ok(old.clone())), "nothing");
        assert_eq!(verdict(Ok(old.clone())), "nothing");
        assert_eq!(verdict(Ok(new.clone())), "nothing", "seen once");
        assert_eq!(verdict(Ok(old.clone())), "nothing", "it was half of something");
        assert_eq!(verdict(Ok(new.clone())), "nothing");
        assert_eq!(verdict(Ok(new.clone())), "take");
        assert_eq!(verdict(bad()), "nothing");
        assert_eq!(verdict(bad()), "gone");
        assert_eq!(verdict(bad()), "nothing", "said once");
    }
}
