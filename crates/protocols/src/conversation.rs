//! Puts together the messages that chat templates see from the finer pieces of other APIs.

use crate::openai::message::{Content, Message, Part, Role, ToolCall};

/// Messages so far, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
}

/// One text stays a text; several stay apart, as templates and [`Content::text`] know how to join them.
pub(crate) fn content(mut texts: Vec<String>) -> Content {
    match texts.len() {
        0 => Content::Text(String::new()),
        1 => Content::Text(texts.swap_remove(0)),
        _ => Content::Parts(texts.into_iter().map(|text| Part::Text { text }).collect()),
    }
}

impl Conversation {
    pub(crate) fn say(&mut self, role: Role, texts: Vec<String>) {
        let mut message = Message::new(role, "");
        message.content = Some(content(texts));
        self.messages.push(message);
    }

    /// The result of an earlier call.
    pub(crate) fn tool_result(&mut self, call: String, texts: &[String]) {
        let mut message = Message::new(Role::Tool, texts.join("\n"));
        message.tool_call_id = Some(call);
        self.messages.push(message);
    }

    /// The assistant's turn: the last message if it is the assistant's, else a new one.
    pub(crate) fn turn(&mut self) -> &mut Message {
        if self.messages.last().is_none_or(|last| last.role != Role::Assistant) {
            self.new_turn();
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    pub(crate) fn new_turn(&mut self) {
        let mut message = Message::new(Role::Assistant, "");
        message.content = None;
        self.messages.push(message);
    }

    /// Adds to what the assistant said. Without a separator: its blocks are cut from one text, and the history has to
    /// read as it was generated (R18).
    pub(crate) fn assistant_text(&mut self, text: &str) {
        let message = self.turn();
        match &mut message.content {
            Some(Content::Text(said)) => said.push_str(text),
            _ => message.content = Some(Content::Text(text.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            self.turn().reasoning_content.get_or_insert_default().push_str(text);
        }
    }

    pub(crate) fn call(&mut self, call: ToolCall) {
        self.turn().tool_calls.push(call);
    }

    /// Does the last message wait to be continued by the answer?
    pub(crate) fn is_prefilled(&self) -> bool {
        self.messages.last().is_some_and(|last| {
            last.role == Role::Assistant
                && last.tool_calls.is_empty()
                && last.content.as_ref().is_some_and(|content| !content.text().is_empty())
        })
    }
}
