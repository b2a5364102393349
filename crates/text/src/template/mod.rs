//! Chat templates in the hub's Jinja dialect (R11, R12).
//!
//! The hub's reference is Python's Jinja2 with `trim_blocks` and `lstrip_blocks`, a few helper functions, and whatever
//! methods Python's own strings and dictionaries have.
//!
//! Not supported, and refused by their names: `varargs` and `kwargs` in macros, the filters `random`, `striptags` and
//! `urlize`, attributes in format strings (`'{0.x}'`), and templates that extend or include others.

mod clock;
mod filters;
mod format;
mod guards;
mod json;
mod macros;
mod messages;
mod methods;
mod size;
mod source;
mod text;
mod view;
mod weight;
mod wrap;

use dynamo_types::{ChatTemplate, Error, SpecialTokens};
use messages::Shape;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value as JinjaValue};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::LazyLock;

/// Work one rendering may do, whatever its input: one unit pays for an instruction or for [`BYTES_PER_FUEL`]. A conversation
/// of a thousand messages under a long template takes about a tenth of it.
const LEAST_FUEL: u64 = 1_000_000;
/// Bytes of text that a template makes for one unit of fuel: 64 MB for what every rendering may do.
const BYTES_PER_FUEL: u64 = 64;
/// Bytes of messages, tools and options from which on each further byte adds one unit: what a rendering can hold on to grows
/// with what it was given.
const LONG_INPUT_BYTES: usize = 128 << 10;
/// Most work. Ten thousand messages under a long template take about a million; a template that loops for ever is stopped
/// after some tenths of a second.
const MOST_FUEL: u64 = 5_000_000;
/// Longest prompt a template may write: above the largest accepted request body.
const MAX_RENDERED_BYTES: usize = 64 << 20;
/// Depth of macros calling macros. Published templates that walk JSON schemas stay far below; the stack of a server
/// thread holds several times as much.
const MAX_RECURSION: usize = 100;
/// The only template of an environment.
const NAME: &str = "chat template";

/// What a template is rendered from. `messages` may be anything that serialises to the OpenAI shape.
#[derive(Debug)]
pub struct RenderInput<'a, M = Value> {
    pub messages: &'a [M],
    /// The request's `tools` array.
    pub tools: Option<&'a Value>,
    pub add_generation_prompt: bool,
    /// The last message is the start of the answer: the prompt ends with its content. Takes precedence over
    /// `add_generation_prompt`.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: further variables.
    pub kwargs: &'a Map<String, Value>,
    /// What `strftime_now` calls now: Unix seconds, shown as UTC.
    pub now_unix_s: i64,
}

/// A compiled template. Rendering is `&self` and can go on in many threads at once.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    special: SpecialTokens,
    shape: Shape,
}

impl Template {
    /// Compiles a template and finds out by trial what shape of messages it was written for.
    ///
    /// # Errors
    /// An internal error whose detail says where the template is broken: the model cannot chat, all else goes on.
    pub fn compile(template: &ChatTemplate, special: &SpecialTokens) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Error::internal(error.to_string()))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_fuel(Some(LEAST_FUEL));
        environment.set_unknown_method_callback(methods::method);
        filters::register(&mut environment);
        weight::register(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        let source = source::source(&template.source)
            .map_err(|error| Error::internal(format!("chat template: {error}")))?;
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| Error::internal(format!("chat template: {}", describe(&error))))?;
        let mut compiled = Self { environment, special: special.clone(), shape: Shape::default() };
        compiled.shape = Shape::find(|messages| compiled.render_values(&probe(messages), LEAST_FUEL).ok());
        Ok(compiled)
    }

    /// The prompt, byte for byte as the template gives it.
    ///
    /// # Errors
    /// Invalid, with the template's own words, when it calls `raise_exception`; invalid when the messages do not fit
    /// it or it takes too long. The parameter at fault is `messages`.
    pub fn render<M: Serialize>(&self, input: &RenderInput<'_, M>) -> Result<String, Error> {
        let mut messages = Vec::with_capacity(input.messages.len());
        for (index, message) in input.messages.iter().enumerate() {
            messages.push(self.shape.fit(jinja(message), index)?);
        }
        let last = input.continue_final_message.then(|| messages.last().cloned()).flatten();
        let values = Values {
            messages,
            tools: input.tools,
            add_generation_prompt: input.add_generation_prompt && !input.continue_final_message,
            kwargs: input.kwargs,
            now_unix_s: input.now_unix_s,
        };
        let fuel = values.fuel();
        let text = self.render_values(&values, fuel).map_err(|error| refusal(&error, fuel))?;
        if input.continue_final_message {
            return messages::cut_after_final(text, last.as_ref());
        }
        Ok(text)
    }

    fn render_values(&self, values: &Values<'_>, fuel: u64) -> Result<String, minijinja::Error> {
        let special = [("bos_token", &self.special.bos_text), ("eos_token", &self.special.eos_text)];
        let special = special
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), JinjaValue::from(text.as_deref()?))));
        let kwargs = values.kwargs.iter().map(|(name, value)| (name.clone(), jinja(value)));
        let now_unix_s = values.now_unix_s;
        let own = [
            ("messages", JinjaValue::from(values.messages.clone())),
            ("tools", values.tools.map_or(JinjaValue::from(()), jinja)),
            ("add_generation_prompt", JinjaValue::from(values.add_generation_prompt)),
            (
                "strftime_now",
                JinjaValue::from_function(move |format: &str| clock::strftime(format, now_unix_s)),
            ),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        // Later entries replace earlier ones: options may rename the special tokens, never the messages.
        let context: BTreeMap<String, JinjaValue> = special.chain(kwargs).chain(own).collect();
        let mut output = Bounded(Vec::new());
        // Its templates, filters and functions are shared.
        let more = (fuel > LEAST_FUEL).then(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel));
            environment
        });
        let environment = more.as_ref().unwrap_or(&self.environment);
        environment.get_template(NAME)?.render_captured_to(context, &mut output)?;
        String::from_utf8(output.0).map_err(|error| {
            minijinja::Error::new(ErrorKind::BadSerialization, "the output is not UTF-8").with_source(error)
        })
    }
}

/// What a rendering reads, in the shape the template wants.
struct Values<'a> {
    messages: Vec<JinjaValue>,
    tools: Option<&'a Value>,
    add_generation_prompt: bool,
    kwargs: &'a Map<String, Value>,
    now_unix_s: i64,
}

impl Values<'_> {
    /// What may be done with so much.
    fn fuel(&self) -> u64 {
        let most = LONG_INPUT_BYTES + (MOST_FUEL - LEAST_FUEL) as usize;
        let mut left = most;
        let mut values = self.tools.into_iter().chain(self.kwargs.values());
        let fits = self.messages.iter().all(|message| size::fits_value(message, &mut left))
            && values.all(|value| size::fits(value, &mut left));
        let bytes = if fits { most - left } else { most };
        LEAST_FUEL + bytes.saturating_sub(LONG_INPUT_BYTES) as u64
    }
}

fn probe(messages: &[Value]) -> Values<'static> {
    static NO_KWARGS: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    Values {
        messages: messages.iter().map(jinja).collect(),
        tools: None,
        add_generation_prompt: false,
        kwargs: &NO_KWARGS,
        now_unix_s: 0,
    }
}

/// A writer that refuses to grow without end.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            let message = format!("the prompt is longer than the limit of {MAX_RENDERED_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The words with which a template turned the messages down.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn raise_exception(message: &JinjaValue) -> Result<JinjaValue, minijinja::Error> {
    let message = text::text(message)?;
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refused(message)))
}

/// The fault as the client reads it.
fn refusal(error: &minijinja::Error, fuel: u64) -> Error {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Refused(message)) = cause.downcast_ref() {
            return Error::invalid(message.clone()).with_param("messages");
        }
        source = cause.source();
    }
    let message = match error.kind() {
        ErrorKind::OutOfFuel => {
            let megabytes = fuel * BYTES_PER_FUEL / 1_000_000;
            format!(
                "the model's chat template takes too long for these messages, or makes too much of them: its limit for so much \
                 is {fuel} steps, or {megabytes} MB of text"
            )
        }
        _ => format!("the chat template cannot render these messages: {}", describe(error)),
    };
    Error::invalid(message).with_param("messages")
}

/// One line: kind, detail, causes and line number.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

fn jinja(value: impl Serialize) -> JinjaValue {
    JinjaValue::from(Serde(value))
}

/// Is it a map, as messages and tool calls are?
fn is_map(value: &JinjaValue) -> bool {
    value.kind() == ValueKind::Map
}
