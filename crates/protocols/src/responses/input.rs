//! The items of a request, read from the wire into the form that chat templates know.

use crate::conversation::Conversation;
use crate::json::{Kind, Reader, echo};
use crate::openai::common::unsupported;
use crate::openai::message::{Role, ToolCall};
use dynamo_types::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

/// The fields of an item, of whatever type it turns out to be.
#[derive(Default)]
struct Fields {
    kind: Option<String>,
    role: Option<Role>,
    content: Option<Vec<String>>,
    summary: Vec<String>,
    call: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Vec<String>>,
}

/// Reads `input` onto the end of `conversation`: a text of the user, or items. Returns their number.
pub(super) fn read(reader: &mut Reader<'_>, conversation: &mut Conversation) -> Result<usize> {
    const EXPECTED: &str = "a string or an array of items";
    match reader.peek()? {
        Kind::String => {
            conversation.say(Role::User, vec![reader.string()?.into_owned()]);
            Ok(1)
        }
        Kind::Array => {
            // Messages that follow each other are turns of their own; other items belong to one turn with what is
            // around them.
            let mut after_message = false;
            reader.array(EXPECTED, |reader, _| {
                let fields = Fields::read(reader)?;
                let is_message = matches!(fields.kind.as_deref(), None | Some("message"));
                fields.add_to(conversation, reader, after_message)?;
                after_message = is_message;
                Ok(())
            })
        }
        _ => Err(reader.wrong_type(EXPECTED)),
    }
}

impl Fields {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let mut fields = Self::default();
        reader.object("an item object", |reader, key| {
            match key {
                "type" => fields.kind = Some(reader.string()?.into_owned()),
                "role" => fields.role = Some(read_role(reader)?),
                "content" => fields.content = Some(read_texts(reader)?),
                "summary" => fields.summary = read_texts(reader)?,
                "call_id" => fields.call = Some(reader.string()?.into_owned()),
                "name" => fields.name = Some(reader.string()?.into_owned()),
                "arguments" => fields.arguments = Some(reader.string()?.into_owned()),
                "output" => fields.output = Some(read_texts(reader)?),
                // What SDKs send back with an earlier answer.
                "id" | "status" | "encrypted_content" | "phase" | "created_by" | "namespace" | "caller"
                | "async" => {
                    reader.raw()?;
                }
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        Ok(fields)
    }

    fn add_to(self, conversation: &mut Conversation, reader: &Reader<'_>, after_message: bool) -> Result<()> {
        let needs = |field: &str| crate::openai::common::missing(&format!("{}.{field}", reader.path()));
        match self.kind.as_deref() {
            None | Some("message") => {
                let role = self.role.ok_or_else(|| needs("role"))?;
                let texts = self.content.ok_or_else(|| needs("content"))?;
                if role == Role::Assistant {
                    if after_message {
                        conversation.new_turn();
                    }
                    conversation.assistant_text(&texts.concat());
                } else {
                    conversation.say(role, texts);
                }
            }
            Some("reasoning") => {
                // The reasoning itself says more than what sums it up.
                let texts = self.content.filter(|texts| !texts.is_empty()).unwrap_or(self.summary);
                conversation.reasoning(&texts.join("\n"));
            }
            Some("function_call") => {
                let name = self.name.filter(|name| !name.is_empty()).ok_or_else(|| needs("name"))?;
                let id = self.call.ok_or_else(|| needs("call_id"))?;
                let arguments = self.arguments.ok_or_else(|| needs("arguments"))?;
                conversation.call(ToolCall { id, name, arguments });
            }
            Some("function_call_output") => {
                let call = self.call.ok_or_else(|| needs("call_id"))?;
                conversation.tool_result(call, &self.output.ok_or_else(|| needs("output"))?);
            }
            Some("item_reference") => {
                let problem = "refers to a stored item, and nothing is stored: send the item itself";
                return Err(unsupported(&reader.path(), problem));
            }
            Some(other) => {
                let problem = format!("is an item of type `{}`, which is not implemented", echo(other));
                return Err(unsupported(&reader.path(), problem));
            }
        }
        Ok(())
    }
}

fn read_role(reader: &mut Reader<'_>) -> Result<Role> {
    Ok(match &*reader.string()? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        other => {
            return Err(reader.refuse(format_args!(
                "must be `user`, `assistant`, `system` or `developer`, got `{}`",
                echo(other)
            )));
        }
    })
}

/// A text or a list of parts with text.
fn read_texts(reader: &mut Reader<'_>) -> Result<Vec<String>> {
    const EXPECTED: &str = "a string or an array of content parts";
    let mut texts = Vec::new();
    match reader.peek()? {
        Kind::String => texts.push(reader.string()?.into_owned()),
        Kind::Array => {
            reader.array(EXPECTED, |reader, _| {
                texts.push(read_part(reader)?);
                Ok(())
            })?;
        }
        _ => return Err(reader.wrong_type(EXPECTED)),
    }
    Ok(texts)
}

fn read_part(reader: &mut Reader<'_>) -> Result<String> {
    let mut kind = None;
    let mut text = None;
    reader.object("a content part object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "text" | "refusal" => text = Some(reader.string()?.into_owned()),
            // What comes back with earlier answers, or belongs to a part that is refused below.
            "annotations" | "logprobs" | "image_url" | "file_id" | "file_data" | "file_url" | "filename"
            | "detail" | "input_audio" => _ = reader.raw()?,
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match kind.as_deref() {
        Some("input_text" | "output_text" | "text" | "refusal" | "summary_text" | "reasoning_text") => {
            text.ok_or_else(|| reader.refuse("needs `text`").with_code("missing_required_parameter"))
        }
        Some(other) => {
            let problem = format!("has the type `{}`, but this model takes only text parts", echo(other));
            Err(reader.refuse(problem).with_code("unsupported_content"))
        }
        None => Err(reader.refuse("needs a `type`")),
    }
}
