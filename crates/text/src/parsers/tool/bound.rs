//! How families write calls whose arguments are plain JSON, for engines that hold an answer to them.

/// The text around the arguments of a call. A block is `opener open call (between call)* close`, a call is
/// `head NAME neck {...} tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// Begins a block. Everything else that begins calls of the family is in [`super::openers`], too.
    pub opener: &'static str,
    pub open: &'static str,
    pub head: &'static str,
    pub neck: &'static str,
    pub tail: &'static str,
    /// None: one call in each block.
    pub between: Option<&'static str>,
    pub close: &'static str,
}

/// `{"name": NAME, "arguments": {...}}`.
const OBJECT: CallForm = CallForm {
    opener: "<tool_call>",
    open: "",
    head: "{\"name\": \"",
    neck: "\", \"arguments\": ",
    tail: "}",
    between: None,
    close: "</tool_call>",
};

const LIST: CallForm = CallForm { open: "[", between: Some(", "), ..OBJECT };

static FORMS: &[(&[&str], CallForm)] = &[
    (&["hermes", "qwen25"], OBJECT),
    (&["nemotron_deci"], CallForm { opener: "<TOOLCALL>", close: "]</TOOLCALL>", ..LIST }),
    (&["jamba"], CallForm { opener: "<tool_calls>", close: "]</tool_calls>", ..LIST }),
    (&["mistral"], CallForm { opener: "[TOOL_CALLS]", close: "]", ..LIST }),
    (&["phi4"], CallForm { opener: "functools[", open: "", close: "]", ..LIST }),
    (
        &["deepseek_v3_1"],
        CallForm {
            opener: "<｜tool▁calls▁begin｜>",
            open: "",
            head: "<｜tool▁call▁begin｜>",
            neck: "<｜tool▁sep｜>",
            tail: "<｜tool▁call▁end｜>",
            between: Some(""),
            close: "<｜tool▁calls▁end｜>",
        },
    ),
];

/// The form of the family `name`, if its arguments are JSON that stands alone.
pub fn call_form(name: &str) -> Option<CallForm> {
    FORMS.iter().find(|(names, _)| names.contains(&name)).map(|(_, form)| *form)
}

#[cfg(test)]
mod tests {
    use super::super::super::{Events, Message, Options, Splitter};
    use super::*;
    use dynamo_types::FinishReason;

    /// What an engine is held to is what the parser reads.
    #[test]
    fn every_form_is_read_as_calls_by_its_family() {
        for (names, form) in FORMS {
            let call = |name: &str| format!("{}{name}{}{{\"a\": [1]}}{}", form.head, form.neck, form.tail);
            let between = form.between.map(|between| format!("{between}{}", call("g")));
            let text = format!(
                "So: {}{}{}{}{}",
                form.opener,
                form.open,
                call("f"),
                between.clone().unwrap_or_default(),
                form.close
            );
            for name in *names {
                assert!(super::super::openers(name).contains(&form.opener), "{name}");
                let mut splitter = Splitter::new(None, Some(name), &Options::default()).unwrap_or_default();
                let mut events = Events::default();
                splitter.push(&text, &mut events);
                let finish = splitter.finish(FinishReason::Stop, &mut events);
                let message: Message = events.drain().collect();
                let read: Vec<_> =
                    message.tool_calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
                let both = [("f", "{\"a\": [1]}"), ("g", "{\"a\": [1]}")];
                assert_eq!(read, both[..if between.is_some() { 2 } else { 1 }], "{name}: {text}");
                assert_eq!((message.content.trim(), finish), ("So:", FinishReason::ToolCalls), "{name}");
            }
        }
    }
}
