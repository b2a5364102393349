//! `response_format`: checked, and refused unless it asks for plain text.

use super::common::{conflict, missing, unsupported};
use crate::json::{Kind, Reader, echo};
use dynamo_types::Error;

pub(crate) fn read(reader: &mut Reader<'_>) -> Result<(), Error> {
    let mut kind = None;
    let mut has_schema = false;
    reader.object("an object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "json_schema" => {
                if reader.peek()? != Kind::Object {
                    return Err(reader.wrong_type("an object"));
                }
                reader.raw()?;
                has_schema = true;
            }
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match kind.as_deref() {
        None => Err(missing("response_format.type")),
        Some("text") => Ok(()),
        Some("json_schema") if !has_schema => Err(missing("response_format.json_schema")),
        Some("json_object" | "json_schema") => {
            Err(unsupported("response_format", "is only implemented for type `text`"))
        }
        Some(other) => Err(conflict(
            "response_format.type",
            format_args!("must be `text`, `json_object` or `json_schema`, got `{}`", echo(other)),
        )),
    }
}
