//! The part of a cut-off JSON text that is whole.

use serde_json::Value;

/// The value that is left of `text`, which ends too early, when what is unfinished at its end is taken away: strings,
/// keys without a value and words; brackets are closed. None if `text` is not the beginning of a JSON value.
///
/// This is how the official SDKs read the arguments of a call that a limit has cut off, so that a client that folds a
/// stream has what a whole answer says.
pub(crate) fn whole_part(text: &str) -> Option<Value> {
    let all = Scan::of(text);
    let close = |text: &str, scan: &Scan| {
        let mut closed = text.to_owned();
        closed.extend(scan.open.iter().rev().map(|level| if level.is_object { '}' } else { ']' }));
        serde_json::from_str(&closed).ok()
    };
    // A number at the end may be whole.
    if all.in_word
        && let Some(value) = close(text, &all)
    {
        return Some(value);
    }
    let whole = &text[..all.cut];
    close(whole, &Scan::of(whole))
}

struct Level {
    is_object: bool,
    wants_key: bool,
}

#[derive(Default)]
struct Scan {
    open: Vec<Level>,
    in_string: bool,
    after_backslash: bool,
    in_word: bool,
    /// Up to here all is whole but for brackets.
    cut: usize,
}

impl Scan {
    fn of(text: &str) -> Self {
        let mut scan = Self::default();
        text.bytes().enumerate().for_each(|(at, byte)| scan.step(at, byte));
        scan
    }

    fn step(&mut self, at: usize, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.after_backslash => self.after_backslash = false,
                b'\\' => self.after_backslash = true,
                b'"' => {
                    self.in_string = false;
                    if self.open.last().is_none_or(|level| !level.wants_key) {
                        self.cut = at + 1;
                    }
                }
                _ => {}
            }
            return;
        }
        let is_word = matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'-' | b'.');
        if self.in_word && !is_word {
            self.cut = at;
        }
        self.in_word = is_word;
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                let is_object = byte == b'{';
                self.open.push(Level { is_object, wants_key: is_object });
                self.cut = at + 1;
            }
            b'}' | b']' => {
                self.open.pop();
                self.cut = at + 1;
            }
            b',' | b':' => {
                if let Some(level) = self.open.last_mut() {
                    level.wants_key = level.is_object && byte == b',';
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_is_whole_is_kept() {
        // As the `jiter` parser of the official SDKs reads them in its partial mode.
        for (text, expected) in [
            (r#"{"a": 12"#, json!({"a": 12})),
            (r#"{"a": 12,"#, json!({"a": 12})),
            (r#"{"a": "x", "b": tru"#, json!({"a": "x"})),
            (r#"{"a": "x", "b": "y"#, json!({"a": "x"})),
            (r#"{"a": [1, 2"#, json!({"a": [1, 2]})),
            (r#"{"a": [1, {"b"#, json!({"a": [1, {}]})),
            (r#"{"a": [1, {"b": 3"#, json!({"a": [1, {"b": 3}]})),
            (r#"{"a": {"#, json!({"a": {}})),
            ("{", json!({})),
            (r#"{"a": -"#, json!({})),
            (r#"{"a": 1."#, json!({})),
            ("[1", json!([1])),
            (r#"{"a":true"#, json!({"a": true})),
            (r#"{"a":1e"#, json!({})),
            (r#"{"a\"}": "\"#, json!({})),
        ] {
            assert_eq!(whole_part(text), Some(expected), "{text}");
        }
        for text in ["", "x", "]", r#"{"a": 1 "b""#] {
            assert_eq!(whole_part(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_beginning_of_an_object_has_a_whole_part(
            key in any::<String>(), text in any::<String>(), number in any::<i32>(), cut in any::<prop::sample::Index>(),
        ) {
            let whole = json!({key: [text, number, {"a": null}], "b": {"{": "]"}});
            let json = whole.to_string();
            let at = (0..=cut.index(json.len())).rev().find(|&at| json.is_char_boundary(at)).unwrap();
            if at > 0 {
                let part = whole_part(&json[..at]);
                prop_assert!(part.is_some_and(|part| part.is_object()));
            }
            prop_assert_eq!(whole_part(&json), Some(whole));
        }

        #[test]
        fn nothing_panics(text in any::<String>(), json in "[\\[\\]{}\",:\\\\a1 -]{0,24}") {
            whole_part(&text);
            whole_part(&json);
        }
    }
}
