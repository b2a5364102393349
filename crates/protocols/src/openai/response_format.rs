//! What the answer must look like: `response_format` and vLLM's `guided_*` fields.

use super::common::{conflict, missing};
use crate::json::{Kind, Reader, echo};
use crate::limits;
use dynamo_types::{Error, Guide};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt::Display;

type Result<T, E = Error> = std::result::Result<T, E>;

/// The guides of a body, of which there may be one.
#[derive(Debug, Default)]
pub(crate) struct Guides(Vec<(&'static str, Guide)>);

impl Guides {
    /// Reads the value of `key`, if that is a field of ours.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>, key: &str) -> Result<bool> {
        let (field, guide) = match key {
            "response_format" => ("response_format", response_format(reader)?),
            "structured_outputs" => ("structured_outputs", structured_outputs(reader)?),
            "guided_json" => ("guided_json", Some(schema(reader)?)),
            "guided_regex" => ("guided_regex", Some(regex(reader)?)),
            "guided_grammar" => ("guided_grammar", Some(grammar(reader)?)),
            "guided_choice" => ("guided_choice", Some(choice(reader)?)),
            _ => return Ok(false),
        };
        self.set(field, guide);
        Ok(true)
    }

    /// What `field` asks for, in place of what it may have asked for before.
    pub(crate) fn set(&mut self, field: &'static str, guide: Option<Guide>) {
        self.0.retain(|(known, _)| *known != field);
        self.0.extend(guide.map(|guide| (field, guide)));
    }

    pub(crate) fn finish(self) -> Result<Option<Guide>> {
        let mut guides = self.0.into_iter();
        match (guides.next(), guides.next()) {
            (Some((first, _)), Some((second, _))) => {
                Err(conflict(second, format_args!("is not allowed together with `{first}`")))
            }
            (guide, _) => Ok(guide.map(|(field, guide)| guide.asked_in(field))),
        }
    }
}

fn response_format(reader: &mut Reader<'_>) -> Result<Option<Guide>> {
    let mut kind = None;
    let mut has_schema = false;
    let mut guide = None;
    reader.object("an object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "json_schema" => {
                has_schema = true;
                reader.object("an object", |reader, key| {
                    match key {
                        "schema" => guide = Some(schema(reader)?),
                        // Names are for the model's provider, and every schema is held to strictly.
                        "name" | "description" | "strict" => {
                            reader.raw()?;
                        }
                        _ => reader.unknown()?,
                    }
                    Ok(())
                })?;
            }
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match kind.as_deref() {
        None => Err(missing("response_format.type")),
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Guide::JsonObject)),
        Some("json_schema") if !has_schema => Err(missing("response_format.json_schema")),
        Some("json_schema") => guide.map(Some).ok_or_else(|| missing("response_format.json_schema.schema")),
        Some(other) => Err(conflict(
            "response_format.type",
            format_args!("must be `text`, `json_object` or `json_schema`, got `{}`", echo(other)),
        )),
    }
}

fn structured_outputs(reader: &mut Reader<'_>) -> Result<Option<Guide>> {
    let mut guides = Vec::new();
    reader.object("an object", |reader, key| {
        match key {
            "json" => guides.push(schema(reader)?),
            "json_object" => {
                if reader.boolean()? {
                    guides.push(Guide::JsonObject);
                }
            }
            "regex" => guides.push(regex(reader)?),
            "grammar" => guides.push(grammar(reader)?),
            "choice" => guides.push(choice(reader)?),
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match guides.len() {
        0 | 1 => Ok(guides.pop()),
        _ => Err(conflict("structured_outputs", "must ask for one thing only")),
    }
}

/// A format of the newer APIs, where the fields of `json_schema` stand beside its `type`. Returns the guide, and the format for
/// those who have to repeat it.
pub(crate) fn flat_format(reader: &mut Reader<'_>) -> Result<(Option<Guide>, Map<String, Value>)> {
    let place = reader.path();
    let (mut schema, mut format) = (None, Map::new());
    reader.object("an object", |reader, key| {
        match key {
            "type" => _ = format.insert(key.into(), reader.string()?.into_owned().into()),
            "schema" if reader.peek()? == Kind::Object => {
                let raw = reader.raw()?;
                check_schema(reader.path(), raw.len())?;
                schema = Some(Guide::JsonSchema(raw.into()));
                let value = serde_json::from_str(raw);
                format.insert(
                    key.into(),
                    value.map_err(|error| reader.refuse(format_args!("cannot be read: {error}")))?,
                );
            }
            "schema" => return Err(reader.wrong_type("an object")),
            // Names are for the model's provider, and every schema is held to strictly.
            "name" | "description" | "strict" => _ = format.insert(key.into(), reader.value()?),
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    let guide = match format.get("type").and_then(Value::as_str) {
        None => return Err(missing(&format!("{place}.type"))),
        Some("text") => None,
        Some("json_object") => Some(Guide::JsonObject),
        Some("json_schema") => Some(schema.ok_or_else(|| missing(&format!("{place}.schema")))?),
        Some(other) => {
            let problem = format!("must be `text`, `json_object` or `json_schema`, got `{}`", echo(other));
            return Err(conflict(&format!("{place}.type"), problem));
        }
    };
    Ok((guide, format))
}

/// A schema, or a text that has it.
fn schema(reader: &mut Reader<'_>) -> Result<Guide> {
    let text = match reader.peek()? {
        Kind::String => reader.string()?,
        Kind::Object => Cow::Borrowed(reader.raw()?),
        _ => return Err(reader.wrong_type("a JSON schema")),
    };
    check_schema(reader.path(), text.len())?;
    Ok(Guide::JsonSchema(text.into_owned().into()))
}

/// The text of a schema at `path` has so many bytes: may it?
pub(super) fn check_schema(path: impl Display, bytes: usize) -> Result<()> {
    limits::GUIDED_JSON.check_len(path, bytes)
}

fn regex(reader: &mut Reader<'_>) -> Result<Guide> {
    Ok(Guide::Regex(reader.text(&limits::GUIDED_REGEX)?.into()))
}

fn grammar(reader: &mut Reader<'_>) -> Result<Guide> {
    Ok(Guide::Lark(reader.text(&limits::GUIDED_GRAMMAR)?.into()))
}

fn choice(reader: &mut Reader<'_>) -> Result<Guide> {
    let (mut texts, path) = (Vec::new(), reader.path());
    reader.array("an array of strings", |reader, _| {
        texts.push(reader.text(&limits::GUIDED_CHOICE_TEXT)?);
        limits::GUIDED_CHOICE.check_len(&path, texts.len())
    })?;
    limits::GUIDED_CHOICE.check_len(&path, texts.len())?;
    Ok(Guide::Choice(texts))
}
