//! What a client has read of a stream, and whether it is what it should be.

use serde_json::Value;
use std::time::Duration;

/// How reading ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing came yet, or not the end.
    Open,
    /// `[DONE]`, and nothing after it.
    Done,
    /// The client closed the connection.
    Left,
    /// Another status than 200, with the body.
    Refused(u16, String),
    /// The connection broke, or the stream ended without an end.
    Broken(String),
    /// It did not end within this time.
    Overdue(Duration),
}

/// A stream as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// A status came.
    pub(crate) has_begun: bool,
    pub(crate) texts: Vec<String>,
    pub(crate) finishes: Vec<Option<String>>,
    /// Tokens of prompt and answer.
    pub(crate) usage: Option<(u64, u64)>,
    pub(crate) error: Option<Value>,
    /// What no stream may contain.
    pub(crate) faults: Vec<String>,
    /// Events with text.
    pub(crate) pieces: usize,
    pub(crate) longest_gap: Duration,
    pub(crate) end: End,
    line: Vec<u8>,
    is_done: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            has_begun: false,
            texts: Vec::new(),
            finishes: Vec::new(),
            usage: None,
            error: None,
            faults: Vec::new(),
            pieces: 0,
            longest_gap: Duration::ZERO,
            end: End::Open,
            line: Vec::new(),
            is_done: false,
        }
    }
}

impl Answer {
    /// More bytes of the event stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            match String::from_utf8(line) {
                Ok(line) => self.take(&line),
                Err(_) => self.faults.push("a line that is no UTF-8".into()),
            }
        }
    }

    /// The body ended.
    pub(crate) fn finish(&mut self) -> End {
        if self.is_done && self.line.is_empty() { End::Done } else { End::Broken("no [DONE]".into()) }
    }

    fn take(&mut self, line: &str) {
        let Some(data) = line.strip_prefix("data: ") else {
            if !(line.is_empty() || line.starts_with(':')) {
                self.faults.push(format!("a line that is no event: {line}"));
            }
            return;
        };
        if self.is_done {
            self.faults.push(format!("after [DONE]: {data}"));
        } else if data == "[DONE]" {
            self.is_done = true;
        } else {
            match serde_json::from_str::<Value>(data) {
                Ok(event) => self.event(&event),
                Err(error) => self.faults.push(format!("{error}: {data}")),
            }
        }
    }

    fn event(&mut self, event: &Value) {
        if self.error.is_some() {
            self.faults.push(format!("after the error: {event}"));
        }
        if let Some(usage) = event.get("usage").filter(|usage| !usage.is_null()) {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            self.usage = Some((count("prompt_tokens"), count("completion_tokens")));
        }
        for choice in event.get("choices").and_then(Value::as_array).into_iter().flatten() {
            self.choice(choice);
        }
        if let Some(error) = event.get("error") {
            self.error = Some(error.clone());
        }
    }

    fn choice(&mut self, choice: &Value) {
        let index = choice.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let Some(index) = index.filter(|index| *index < 16) else {
            self.faults.push(format!("a choice without an index: {choice}"));
            return;
        };
        if self.texts.len() <= index {
            self.texts.resize(index + 1, String::new());
            self.finishes.resize(index + 1, None);
        }
        let text = choice.pointer("/delta/content").or_else(|| choice.get("text")).and_then(Value::as_str);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.pieces += 1;
            self.texts[index].push_str(text);
            if self.finishes[index].is_some() {
                self.faults.push(format!("text after the end of choice {index}"));
            }
        }
        if let Some(finish) = choice.get("finish_reason").and_then(Value::as_str)
            && self.finishes[index].replace(finish.to_owned()).is_some()
        {
            self.faults.push(format!("choice {index} ends twice"));
        }
    }
}

/// What is known of the circumstances of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// By the rules it does not move to another worker once it has begun.
    pub(crate) may_end: bool,
    /// Its frontend was killed meanwhile.
    pub(crate) frontend_killed: bool,
}

/// What an answer turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The undisturbed answer.
    Same,
    /// The client left; what it read is how the undisturbed answer begins. The same for the others.
    Left,
    /// Its frontend died.
    Lost,
    /// It ended with an error, which the rules allow for it.
    Ended,
    Fault(String),
}

/// `expected`: the undisturbed answer.
pub(crate) fn judge(expected: &Answer, found: &Answer, circumstances: Circumstances) -> Verdict {
    if let Some(fault) = found.faults.first() {
        return Verdict::Fault(format!("not a stream: {fault}"));
    }
    for (index, text) in found.texts.iter().enumerate() {
        let wanted = expected.texts.get(index).map_or("", String::as_str);
        if !wanted.starts_with(text.as_str()) {
            return Verdict::Fault(format!("choice {index}: {}", difference(wanted, text)));
        }
    }
    match &found.end {
        End::Left => Verdict::Left,
        End::Overdue(limit) => Verdict::Fault(format!("HANGS: no end after {} s", limit.as_secs())),
        End::Done => match &found.error {
            None => same(expected, found),
            Some(error) if !is_structured(error) => {
                Verdict::Fault(format!("an error without a form: {error}"))
            }
            Some(_) if circumstances.may_end => Verdict::Ended,
            Some(error) => Verdict::Fault(format!("ends with an error: {error}")),
        },
        _ if circumstances.frontend_killed => Verdict::Lost,
        End::Refused(status, body) => Verdict::Fault(format!("refused: {status} {body}")),
        End::Broken(how) => Verdict::Fault(format!("breaks off: {how}")),
        End::Open => Verdict::Fault("was not read".into()),
    }
}

fn same(expected: &Answer, found: &Answer) -> Verdict {
    if found.texts != expected.texts {
        let lost = |index: usize| {
            found.texts.get(index).map(String::len) != expected.texts.get(index).map(String::len)
        };
        let index = (0..expected.texts.len()).find(|index| lost(*index)).unwrap_or_default();
        let text = found.texts.get(index).map_or("", String::as_str);
        return Verdict::Fault(format!("LOST: choice {index}: {}", difference(&expected.texts[index], text)));
    }
    if found.finishes != expected.finishes {
        return Verdict::Fault(format!("ends with {:?}, expected {:?}", found.finishes, expected.finishes));
    }
    if found.usage != expected.usage {
        return Verdict::Fault(format!("counts {:?} tokens, expected {:?}", found.usage, expected.usage));
    }
    Verdict::Same
}

fn is_structured(error: &Value) -> bool {
    let is_text = |name: &str| error.get(name).is_some_and(Value::is_string);
    is_text("message") && is_text("type")
}

/// Where two texts part, and how each goes on.
fn difference(wanted: &str, found: &str) -> String {
    let shared = wanted.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let rest = |text: &str| text.chars().skip(shared).take(40).collect::<String>();
    format!("after {shared} characters {:?}, expected {:?}", rest(found), rest(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"one \"}]}\n\n: quiet\n\n\
        data: {\"choices\":[{\"index\":0,\"text\":\"two\"}]}\n\n\
        data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"m\",\"type\":\"t\"}}\n\n";

    fn read(stream: &str) -> Answer {
        let mut answer = Answer { has_begun: true, ..Answer::default() };
        answer.push(stream.as_bytes());
        answer.end = answer.finish();
        answer
    }

    fn verdict(stream: &str) -> Verdict {
        judge(&read(STREAM), &read(stream), Circumstances::default())
    }

    fn is_fault(stream: &str, says: &str) {
        let found = verdict(stream);
        assert!(matches!(&found, Verdict::Fault(fault) if fault.contains(says)), "{says}: {found:?}");
    }

    #[test]
    fn only_the_same_is_the_same() {
        assert_eq!(read(STREAM).texts, ["one two"]);
        assert_eq!(verdict(STREAM), Verdict::Same);
        is_fault(&STREAM.replace("two", "tw"), "LOST");
        is_fault(&STREAM.replace("two", "two two"), "after 7 characters \" two\"");
        is_fault(&STREAM.replace("two", "three"), "expected \"wo\"");
        is_fault(&STREAM.replace("\"stop\"", "\"length\""), "ends with");
        is_fault(&STREAM.replace("_tokens\":2", "_tokens\":3"), "counts");
        is_fault(&STREAM.replace("data: [DONE]\n\n", ""), "breaks off");
        is_fault(&format!("{STREAM}data: {{}}\n\n"), "after [DONE]");
        is_fault(&STREAM.replace(": quiet", "quiet"), "no event");
        let twice = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]";
        is_fault(&STREAM.replace("data: [DONE]", twice), "ends twice");
    }

    #[test]
    fn an_error_is_the_end_where_the_rules_allow_it_and_has_a_form() {
        let ended = STREAM.split("data: {\"choices\":[{\"index\":0,\"text\":\"two").next().unwrap();
        let ended = format!("{ended}{ERROR}data: [DONE]\n\n");
        let judged = |stream: &str, may_end| {
            judge(&read(STREAM), &read(stream), Circumstances { may_end, ..Circumstances::default() })
        };
        assert_eq!(judged(&ended, true), Verdict::Ended);
        is_fault(&ended, "ends with an error");
        for formless in [ended.replace("\"t\"", "1"), ended.replace("data: [DONE]\n\n", "")] {
            assert!(matches!(judged(&formless, true), Verdict::Fault(_)), "{formless}");
        }
        let wrong = ended.replace("one ", "two ");
        assert!(matches!(judged(&wrong, true), Verdict::Fault(_)), "the error hides nothing");
    }

    #[test]
    fn a_killed_frontend_excuses_a_cut_and_nothing_else() {
        let judged = |stream: &str, end: End| {
            let circumstances = Circumstances { frontend_killed: true, ..Circumstances::default() };
            judge(&read(STREAM), &Answer { end, ..read(stream) }, circumstances)
        };
        let cut = &STREAM[..STREAM.len() / 2];
        assert_eq!(judged(cut, End::Broken("reset".into())), Verdict::Lost);
        let wrong = cut.replace("one", "two");
        assert!(matches!(judged(&wrong, End::Broken("reset".into())), Verdict::Fault(_)));
        let hangs = judged(cut, End::Overdue(Duration::from_secs(1)));
        assert!(matches!(&hangs, Verdict::Fault(fault) if fault.contains("HANGS")), "{hangs:?}");
        assert_eq!(judged(cut, End::Left), Verdict::Left);
    }
}
