//! Requests, and how one for text becomes a completions request.

use super::wire::{Fields, Value, malformed};
use super::{FINISH_REASON, STREAMING, TEXT_INPUT, TEXT_OUTPUT, VERSION};
use crate::openai::completions;
use crate::options::{Options, Parsed};
use dynamo_types::Error;
use serde_json::{Map, Value as Json};

/// Most inputs, outputs and dimensions of one request: more than there are names for.
const TENSORS_MAX: usize = 16;
/// Most parameters of one request: more than there are names for, with room for unknown ones.
const PARAMETERS_MAX: usize = 128;
/// The other name of [`STREAMING`], as Triton's servers of language models have it.
const STREAM: &str = "stream";
/// JSON with parameters, as Triton's servers of language models have it.
const SAMPLING_PARAMETERS: &str = "sampling_parameters";
const EXCLUDE_INPUT: &str = "exclude_input_in_output";
/// Asks for a last response that is marked; it always is.
const FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// Parameters that a text can stand for, because parameters are numbers, booleans and texts only: these are then JSON.
const STRUCTURED: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "logit_bias",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "priority",
    "nvext",
    "n",
    "echo",
    "response_format",
    "guided_json",
    "guided_choice",
    "structured_outputs",
    "best_of",
    "logprobs",
];
/// Completions fields that say something about more than one answer, or about things the outputs have no room for.
const SHAPELESS: &[&str] = &["logprobs", "best_of", "stream_options", "return_tokens_as_token_ids"];

/// A model by name, as metadata calls ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelName {
    pub name: String,
    pub version: String,
}

impl ModelName {
    /// # Errors
    /// 400 if it is not well-formed.
    pub fn parse(message: &[u8]) -> Result<Self, Error> {
        let mut model = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => model.name = value.text()?.to_owned(),
                (2, value) => model.version = value.text()?.to_owned(),
                _ => {}
            }
        }
        Ok(model)
    }

    /// # Errors
    /// 404 for a version that is none.
    pub fn check_version(&self) -> Result<(), Error> {
        check_version(&self.name, &self.version)
    }
}

fn check_version(name: &str, version: &str) -> Result<(), Error> {
    if version.is_empty() || version == VERSION {
        return Ok(());
    }
    let text = format!("The model `{}` has version {VERSION} only, found `{}`", short(name), short(version));
    Err(Error::not_found(text).with_param("model_version").with_code("model_not_found"))
}

/// The start of what a client chose, to be quoted.
fn short(text: &str) -> &str {
    const MOST_CHARS: usize = 100;
    text.char_indices().nth(MOST_CHARS).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// A validated request for text.
#[derive(Clone, Debug, PartialEq)]
pub struct InferRequest {
    pub completion: completions::Request,
    /// The client's own, given back with every response.
    pub id: String,
    /// Tensors came as raw bytes, so they go as such.
    pub raw: bool,
    pub wants_text: bool,
    pub wants_finish_reason: bool,
}

/// What is used of a `ModelInferRequest`.
#[derive(Default)]
struct Message<'a> {
    model_name: &'a str,
    model_version: &'a str,
    id: &'a str,
    parameters: Map<String, Json>,
    inputs: Vec<Tensor<'a>>,
    outputs: Vec<&'a str>,
    raw: Vec<&'a [u8]>,
}

#[derive(Default)]
struct Tensor<'a> {
    name: &'a str,
    datatype: &'a str,
    dimensions: usize,
    /// All dimensions are 1.
    is_single: bool,
    /// The first element, by the type it was given as, and how many there are.
    flag: Option<bool>,
    bytes: Option<&'a [u8]>,
    elements: usize,
    /// There are contents of whatever type.
    filled: bool,
}

/// The client's id of a request, for errors about it. Empty if there is none.
pub fn request_id(message: &[u8]) -> &str {
    let fields = Fields::of(message).map_while(Result::ok);
    fields
        .filter(|(number, _)| *number == 3)
        .last()
        .and_then(|(_, value)| value.text().ok())
        .unwrap_or_default()
}

impl InferRequest {
    /// # Errors
    /// 400, 404 or 501 that name the input or parameter at fault.
    pub fn parse(message: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let Message { model_name, model_version, id, parameters, inputs, outputs, raw } =
            Message::read(message)?;
        check_version(model_name, model_version)?;
        if !raw.is_empty() && raw.len() != inputs.len() {
            let (raw, inputs) = (raw.len(), inputs.len());
            let text = format!(
                "`raw_input_contents` must have one entry for each of the {inputs} inputs, found {raw}"
            );
            return Err(Error::invalid(text).with_param("raw_input_contents"));
        }
        let mut body = Map::new();
        let mut prompt = None;
        for (index, tensor) in inputs.iter().enumerate() {
            let raw = raw.get(index).copied();
            match tensor.name {
                TEXT_INPUT if prompt.is_some() => return Err(tensor.fault("must be given once")),
                TEXT_INPUT => prompt = Some(tensor.text(raw)?),
                STREAMING | STREAM => _ = body.insert(STREAM.into(), tensor.flag(raw)?.into()),
                SAMPLING_PARAMETERS => {
                    let object = serde_json::from_str::<Map<String, Json>>(tensor.text(raw)?);
                    let object = object.map_err(|error| tensor.fault(&format!("must be a JSON object: {}", short(&error.to_string()))))?;
                    object.into_iter().try_for_each(|(name, value)| put(&mut body, name, value))?;
                }
                EXCLUDE_INPUT => _ = body.insert("echo".into(), (!tensor.flag(raw)?).into()),
                _ => return Err(tensor.fault(&format!(
                    "is no input of the model; inputs are {TEXT_INPUT}, {STREAMING}, {SAMPLING_PARAMETERS} and {EXCLUDE_INPUT}"
                ))),
            }
        }
        parameters.into_iter().try_for_each(|(name, value)| put(&mut body, name, value))?;
        let Some(prompt) = prompt else {
            return Err(Error::invalid(format!("the input `{TEXT_INPUT}` is missing")).with_param(TEXT_INPUT));
        };
        if prompt.is_empty() {
            return Err(
                Error::invalid(format!("the input `{TEXT_INPUT}` must not be empty")).with_param(TEXT_INPUT)
            );
        }
        body.insert("model".into(), model_name.into());
        body.insert("prompt".into(), prompt.into());
        let wants = |name| outputs.is_empty() || outputs.contains(&name);
        let (wants_text, wants_finish_reason) = (wants(TEXT_OUTPUT), wants(FINISH_REASON));
        let body = serde_json::to_vec(&body).map_err(|error| Error::internal(error.to_string()))?;
        let Parsed { request: completion, dropped } =
            completions::Request::parse(&body, options).map_err(renamed)?;
        if completion.common.n != 1 {
            let text = format!("`n` must be 1 here, got {}", completion.common.n);
            return Err(Error::invalid(text).with_param("n"));
        }
        let request =
            Self { completion, id: id.to_owned(), raw: !raw.is_empty(), wants_text, wants_finish_reason };
        Ok(Parsed { request, dropped })
    }
}

/// Errors name fields as the client knows them.
fn renamed(error: Error) -> Error {
    match error.param() {
        Some("model") => error.with_param("model_name"),
        Some("prompt") => error.with_param(TEXT_INPUT),
        _ => error,
    }
}

/// Adds a parameter to the body of the completions request.
fn put(body: &mut Map<String, Json>, name: String, value: Json) -> Result<(), Error> {
    let fault = |problem: &str| {
        Err(Error::invalid(format!("parameter `{}` {problem}", short(&name))).with_param(short(&name)))
    };
    match name.as_str() {
        FINAL_RESPONSE => return Ok(()),
        "model" => return fault("must be given as `model_name`"),
        "prompt" => return fault(&format!("must be given as input `{TEXT_INPUT}`")),
        shapeless if SHAPELESS.contains(&shapeless) => {
            return fault("is not supported here: it has no output");
        }
        _ => {}
    }
    let value = match &value {
        Json::String(text) if STRUCTURED.contains(&name.as_str()) => {
            serde_json::from_str(text).unwrap_or(value)
        }
        // One stop string, or a list of them as JSON.
        Json::String(text) if name == "stop" => match serde_json::from_str::<Vec<String>>(text) {
            Ok(list) => list.into(),
            Err(_) => value,
        },
        _ => value,
    };
    let name = if name == STREAMING { STREAM.to_owned() } else { name };
    body.insert(name, value);
    Ok(())
}

impl<'a> Message<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut read = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => read.model_name = value.text()?,
                (2, value) => read.model_version = value.text()?,
                (3, value) => read.id = value.text()?,
                (4, value) => {
                    if let Some((name, value)) = parameter(value.bytes()?)? {
                        read.parameters.insert(name.to_owned(), value);
                    }
                    few("parameters", read.parameters.len(), PARAMETERS_MAX)?;
                }
                (5, value) => {
                    read.inputs.push(Tensor::read(value.bytes()?)?);
                    few("inputs", read.inputs.len(), TENSORS_MAX)?;
                }
                (6, value) => {
                    read.outputs.push(output(value.bytes()?)?);
                    few("outputs", read.outputs.len(), TENSORS_MAX)?;
                }
                (7, value) => {
                    read.raw.push(value.bytes()?);
                    few("raw_input_contents", read.raw.len(), TENSORS_MAX)?;
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

fn few(field: &str, found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    Err(Error::invalid(format!("`{field}` must have at most {most} entries, got more")).with_param(field))
}

/// An entry of a map of parameters; none if it has no value.
fn parameter(entry: &[u8]) -> Result<Option<(&str, Json)>, Error> {
    let (mut name, mut value) = ("", None);
    for field in Fields::of(entry) {
        match field? {
            (1, key) => name = key.text()?,
            (2, choice) => {
                for field in Fields::of(choice.bytes()?) {
                    value = match field? {
                        (1, flag) => Some(Json::from(flag.varint()? != 0)),
                        (2, number) => Some(Json::from(number.varint()? as i64)),
                        (3, text) => Some(Json::from(text.text()?)),
                        // What JSON has no number for is null, and counts as absent.
                        (4, Value::Fixed64(bits)) => Some(Json::from(f64::from_bits(bits))),
                        (5, number) => Some(Json::from(number.varint()?)),
                        (4, _) => return Err(malformed("expected a double, found something else")),
                        _ => value,
                    };
                }
            }
            _ => {}
        }
    }
    match &value {
        Some(Json::Null) => {
            let name = short(name);
            Err(Error::invalid(format!("parameter `{name}` must be a finite number")).with_param(name))
        }
        _ => Ok(value.map(|value| (name, value))),
    }
}

/// The name of a requested output.
fn output(message: &[u8]) -> Result<&str, Error> {
    let mut name = "";
    for field in Fields::of(message) {
        if let (1, value) = field? {
            name = value.text()?;
        }
    }
    if name == TEXT_OUTPUT || name == FINISH_REASON {
        return Ok(name);
    }
    let name = short(name);
    let text = format!("output `{name}` is none of the model; outputs are {TEXT_OUTPUT} and {FINISH_REASON}");
    Err(Error::invalid(text).with_param("outputs"))
}

impl<'a> Tensor<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut tensor = Self { is_single: true, ..Self::default() };
        for field in Fields::of(message) {
            match field? {
                (1, value) => tensor.name = value.text()?,
                (2, value) => tensor.datatype = value.text()?,
                (3, value) => value.varints(|length| {
                    tensor.dimensions += 1;
                    tensor.is_single &= length == 1;
                    few("shape", tensor.dimensions, TENSORS_MAX)
                })?,
                (5, value) => tensor.contents(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(tensor)
    }

    fn contents(&mut self, message: &'a [u8]) -> Result<(), Error> {
        for field in Fields::of(message) {
            self.filled = true;
            match field? {
                (1, value) => value.varints(|flag| {
                    self.flag.get_or_insert(flag != 0);
                    self.elements += 1;
                    Ok(())
                })?,
                (8, value) => {
                    let element = value.bytes()?;
                    self.bytes.get_or_insert(element);
                    self.elements += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fault(&self, problem: &str) -> Error {
        let name = short(self.name);
        Error::invalid(format!("input `{name}` {problem}")).with_param(name)
    }

    /// Refuses all but one element of this type.
    fn check(&self, datatype: &str, raw: Option<&[u8]>) -> Result<(), Error> {
        if self.datatype != datatype {
            let found = short(self.datatype);
            return Err(self.fault(&format!("must be of datatype {datatype}, found `{found}`")));
        }
        if self.dimensions == 0 || !self.is_single {
            return Err(self.fault("must be of shape [1]"));
        }
        match raw {
            Some(_) if self.filled => {
                Err(self.fault("must not have contents of its own next to `raw_input_contents`"))
            }
            None if self.elements != 1 => {
                Err(self.fault(&format!("must have one element, found {}", self.elements)))
            }
            _ => Ok(()),
        }
    }

    fn text(&self, raw: Option<&'a [u8]>) -> Result<&'a str, Error> {
        self.check("BYTES", raw)?;
        let bytes = match raw {
            None => self.bytes,
            // Each element behind its length.
            Some(raw) => raw.split_first_chunk::<4>().and_then(|(length, element)| {
                (u32::from_le_bytes(*length) as usize == element.len()).then_some(element)
            }),
        };
        let problem = "must hold one element, in raw form behind its length in four bytes";
        let bytes = bytes.ok_or_else(|| self.fault(problem))?;
        std::str::from_utf8(bytes).map_err(|_| self.fault("must be valid UTF-8"))
    }

    fn flag(&self, raw: Option<&[u8]>) -> Result<bool, Error> {
        self.check("BOOL", raw)?;
        let flag = match raw {
            None => self.flag,
            Some([0]) => Some(false),
            Some([1]) => Some(true),
            Some(_) => None,
        };
        flag.ok_or_else(|| self.fault("must hold one boolean, in raw form a byte that is 0 or 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;
    use bytes::BytesMut;
    use dynamo_types::Class;

    enum Parameter<'a> {
        Flag(bool),
        Whole(i64),
        Text(&'a str),
        Real(f64),
    }

    /// A request with a prompt, parameters and inputs by hand: name, datatype, shape, contents as written by a closure.
    fn request(parameters: &[(&str, Parameter<'_>)], extra: impl FnOnce(&mut BytesMut)) -> BytesMut {
        let mut out = BytesMut::new();
        wire::text(&mut out, 1, "m");
        wire::text(&mut out, 3, "42");
        for (name, value) in parameters {
            wire::message(&mut out, 4, |entry| {
                wire::text(entry, 1, name);
                wire::message(entry, 2, |value_out| match value {
                    Parameter::Flag(flag) => wire::choice(value_out, 1, u64::from(*flag)),
                    Parameter::Whole(number) => wire::choice(value_out, 2, *number as u64),
                    Parameter::Text(text) => wire::bytes(value_out, 3, text.as_bytes()),
                    Parameter::Real(number) => wire::double(value_out, 4, *number),
                });
            });
        }
        extra(&mut out);
        out
    }

    fn input(
        out: &mut BytesMut,
        name: &str,
        datatype: &str,
        shape: &[u8],
        contents: impl FnOnce(&mut BytesMut),
    ) {
        wire::message(out, 5, |tensor| {
            wire::text(tensor, 1, name);
            wire::text(tensor, 2, datatype);
            wire::bytes(tensor, 3, shape);
            let mut inner = BytesMut::new();
            contents(&mut inner);
            if !inner.is_empty() {
                wire::bytes(tensor, 5, &inner);
            }
        });
    }

    fn prompt(out: &mut BytesMut) {
        input(out, "text_input", "BYTES", &[1], |contents| wire::bytes(contents, 8, b"hello"));
    }

    fn parse(message: &[u8]) -> Result<Parsed<InferRequest>, Error> {
        InferRequest::parse(message, &Options::default())
    }

    #[test]
    fn both_forms_of_contents_say_the_same() {
        let inline = request(&[], |out| {
            prompt(out);
            input(out, "streaming", "BOOL", &[1], |contents| wire::bytes(contents, 1, &[1]));
        });
        let raw = request(&[], |out| {
            input(out, "text_input", "BYTES", &[1, 1], |_| {});
            input(out, "stream", "BOOL", &[1], |_| {});
            wire::bytes(out, 7, b"\x05\0\0\0hello");
            wire::bytes(out, 7, &[1]);
        });
        let inline = parse(&inline).unwrap().request;
        let mut raw = parse(&raw).unwrap().request;
        assert!(raw.raw && !inline.raw);
        raw.raw = false;
        assert_eq!(inline, raw);
        assert_eq!(inline.completion.prompt, completions::Prompt::Texts(vec!["hello".into()]));
        assert!(inline.completion.common.stream);
        assert_eq!(inline.id, "42");
    }

    #[test]
    fn parameters_are_checked_by_the_completions_table() {
        use Parameter::{Flag, Real, Text, Whole};
        let good = request(
            &[
                ("max_tokens", Whole(7)),
                ("temperature", Real(0.5)),
                ("top_p", Text("0.25")),
                ("seed", Whole(-1)),
                ("stop", Text("[\"a\", \"b\"]")),
                ("ignore_eos", Flag(true)),
                ("odd", Whole(1)),
                ("triton_enable_empty_final_response", Flag(true)),
            ],
            prompt,
        );
        let Parsed { request: good, dropped } = parse(&good).unwrap();
        let common = good.completion.common;
        assert_eq!((common.max_tokens, common.temperature, common.top_p), (Some(7), 0.5, 0.25));
        assert_eq!(
            (common.stop, common.ignore_eos, dropped),
            (vec!["a".to_owned(), "b".into()], true, vec!["odd".to_owned()])
        );
        for (name, value) in [
            ("temperature", Real(9.0)),
            ("temperature", Text("hot")),
            ("max_tokens", Whole(-1)),
            ("n", Whole(2)),
            ("top_p", Flag(true)),
            ("logprobs", Whole(1)),
            ("model", Text("x")),
            ("prompt", Text("x")),
            ("min_p", Real(f64::NAN)),
        ] {
            let error = parse(&request(&[(name, value)], prompt)).unwrap_err();
            assert_eq!((error.class(), error.param()), (Class::Invalid, Some(name)), "{error}");
        }
        let json = request(&[], |out| {
            prompt(out);
            input(out, "sampling_parameters", "BYTES", &[1], |contents| {
                wire::bytes(contents, 8, br#"{"temperature": "0.1", "max_tokens": 3}"#);
            });
        });
        let common = parse(&json).unwrap().request.completion.common;
        assert_eq!((common.temperature, common.max_tokens), (0.1, Some(3)));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        type Extra = fn(&mut BytesMut);
        let cases: [(&str, Extra); 9] = [
            ("text_input", |_| {}),
            ("text_input", |out| input(out, "text_input", "INT32", &[1], |_| {})),
            ("text_input", |out| input(out, "text_input", "BYTES", &[2], |c| wire::bytes(c, 8, b"a"))),
            ("text_input", |out| input(out, "text_input", "BYTES", &[1], |c| wire::bytes(c, 8, b"\xff"))),
            ("text_input", |out| input(out, "text_input", "BYTES", &[1], |c| wire::bytes(c, 8, b""))),
            ("text_input", |out| {
                input(out, "text_input", "BYTES", &[1], |_| {});
                wire::bytes(out, 7, b"\x06\0\0\0hello");
            }),
            ("raw_input_contents", |out| {
                prompt(out);
                wire::bytes(out, 7, b"");
                wire::bytes(out, 7, b"");
            }),
            ("image", |out| {
                prompt(out);
                input(out, "image", "BYTES", &[1], |_| {});
            }),
            ("outputs", |out| {
                prompt(out);
                wire::message(out, 6, |output| wire::text(output, 1, "scores"));
            }),
        ];
        for (name, extra) in cases {
            let error = parse(&request(&[], extra)).unwrap_err();
            assert_eq!((error.class(), error.param()), (Class::Invalid, Some(name)), "{error}");
        }
        let versioned = request(&[], |out| {
            prompt(out);
            wire::text(out, 2, "2");
        });
        assert_eq!(parse(&versioned).unwrap_err().class(), Class::NotFound);
        let crowded = request(&[], |out| (0..100_000).for_each(|_| wire::bytes(out, 5, b"")));
        assert_eq!(parse(&crowded).unwrap_err().param(), Some("inputs"));
    }
}
