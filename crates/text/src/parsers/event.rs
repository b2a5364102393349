//! What a parser tells: pieces of a message that merge.

use dynamo_types::FinishReason;

/// One piece of a parsed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Text for the user.
    Content(String),
    /// Text of the model to itself.
    Reasoning(String),
    /// A call begins. Indexes count from 0 without gaps; ids differ within an answer.
    ToolCallStart { index: usize, id: String, name: String },
    /// More of the JSON text of the arguments of call `index`.
    ToolArguments { index: usize, fragment: String },
    /// The arguments of call `index` are whole and valid JSON. A call without this event was cut off or broken.
    ToolCallEnd { index: usize },
}

/// Where a parser writes. Events of different kinds are ordered only as far as the wire needs it: content before a
/// call comes before its start, and a call ends before the next one starts.
pub trait Sink {
    fn content(&mut self, text: &str);
    fn reasoning(&mut self, text: &str);
    fn call_start(&mut self, index: usize, id: &str, name: &str);
    fn call_arguments(&mut self, index: usize, fragment: &str);
    fn call_end(&mut self, index: usize);

    /// Whether content written so far ends inside a tool call, where a reasoning marker is only text.
    fn is_inside_call(&self) -> bool {
        false
    }
}

/// A list of events in which neighbours of one kind are merged. Appending lists is associative and the empty list is
/// neutral, so any cutting of a stream folds to the same [`Message`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events(Vec<Event>);

impl Events {
    pub fn as_slice(&self) -> &[Event] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes the events out, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.0.drain(..)
    }

    /// Appends `event`, merging it with the last one where they continue each other. Empty text is nothing.
    pub fn push(&mut self, event: Event) {
        match event {
            Event::Content(text) => self.content(&text),
            Event::Reasoning(text) => self.reasoning(&text),
            Event::ToolArguments { index, fragment } => self.call_arguments(index, &fragment),
            other => self.0.push(other),
        }
    }
}

impl Sink for Events {
    fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Content(last)) => last.push_str(text),
            _ => self.0.push(Event::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(Event::Reasoning(text.to_owned())),
        }
    }

    fn call_start(&mut self, index: usize, id: &str, name: &str) {
        self.0.push(Event::ToolCallStart { index, id: id.to_owned(), name: name.to_owned() });
    }

    fn call_arguments(&mut self, index: usize, fragment: &str) {
        match self.0.last_mut() {
            _ if fragment.is_empty() => {}
            Some(Event::ToolArguments { index: last, fragment: text }) if *last == index => {
                text.push_str(fragment);
            }
            _ => self.0.push(Event::ToolArguments { index, fragment: fragment.to_owned() }),
        }
    }

    fn call_end(&mut self, index: usize) {
        self.0.push(Event::ToolCallEnd { index });
    }
}

/// A tool call of a folded message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text; only a beginning of it when the call is not complete.
    pub arguments: String,
    /// The call was neither cut off nor broken.
    pub is_complete: bool,
}

/// A whole answer: the fold of its events (R13). A unary answer is nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub content: String,
    pub reasoning: String,
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// Adds one event. Pieces of calls that never started are ignored.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Content(text) => self.content.push_str(text),
            Event::Reasoning(text) => self.reasoning.push_str(text),
            Event::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(ToolCall { id: id.clone(), name: name.clone(), ..ToolCall::default() });
            }
            Event::ToolArguments { index, fragment } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments.push_str(fragment);
                }
            }
            Event::ToolCallEnd { index } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.is_complete = true;
                }
            }
        }
    }

    /// The finish reason to tell for the engine's own `reason`: a stop after a complete call is `tool_calls`; a length
    /// stays a length (R15).
    pub fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        if reason == FinishReason::Stop && self.tool_calls.iter().any(|call| call.is_complete) {
            FinishReason::ToolCalls
        } else {
            reason
        }
    }
}

impl FromIterator<Event> for Message {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut message = Self::default();
        for event in events {
            message.apply(&event);
        }
        message
    }
}
