//! Responses.

use super::wire::{bytes, choice, message, number, text};
use super::{FINISH_REASON, STREAMING, TEXT_INPUT, TEXT_OUTPUT, VERSION};
use bytes::{BufMut, BytesMut};

/// Says that a response is the last one to its request, as Triton does.
const FINAL: &str = "triton_final_response";
/// Kind of server.
const PLATFORM: &str = "dynamo";
/// Triton's names of data types, by number.
const TYPE_BOOL: u64 = 1;
const TYPE_STRING: u64 = 13;
/// Any length.
const ANY: u64 = -1i64 as u64;

/// What all responses to one request have in common.
#[derive(Clone, Debug)]
pub struct Answered {
    pub model: String,
    /// The client's own.
    pub id: String,
    pub raw: bool,
    pub wants_text: bool,
    pub wants_finish_reason: bool,
    /// Responses are of the streamed call.
    pub streamed: bool,
}

/// A part of an answer, or all of it.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub text: &'a str,
    /// Empty until the last piece.
    pub finish_reason: &'a str,
    pub is_final: bool,
    /// Tokens of prompt and answer, with the last piece.
    pub usage: Option<(u32, u32)>,
}

impl Answered {
    /// Writes a `ModelInferResponse`, inside a `ModelStreamInferResponse` if that is the call.
    pub fn write(&self, piece: &Piece<'_>, out: &mut BytesMut) {
        if self.streamed {
            message(out, 2, |out| self.response(piece, out));
        } else {
            self.response(piece, out);
        }
    }

    fn response(&self, piece: &Piece<'_>, out: &mut BytesMut) {
        text(out, 1, &self.model);
        text(out, 2, VERSION);
        text(out, 3, &self.id);
        if self.streamed {
            parameter(out, FINAL, |value| choice(value, 1, u64::from(piece.is_final)));
        }
        if let Some((prompt, completion)) = piece.usage {
            parameter(out, "prompt_tokens", |value| choice(value, 2, u64::from(prompt)));
            parameter(out, "completion_tokens", |value| choice(value, 2, u64::from(completion)));
        }
        let outputs = [
            (TEXT_OUTPUT, piece.text, self.wants_text),
            (FINISH_REASON, piece.finish_reason, self.wants_finish_reason),
        ];
        let outputs = outputs.into_iter().filter(|(_, _, wanted)| *wanted);
        for (name, content, _) in outputs.clone() {
            message(out, 5, |tensor| {
                text(tensor, 1, name);
                text(tensor, 2, "BYTES");
                bytes(tensor, 3, &[1]);
                if !self.raw {
                    message(tensor, 5, |contents| bytes(contents, 8, content.as_bytes()));
                }
            });
        }
        if self.raw {
            for (_, content, _) in outputs {
                let mut element = BytesMut::with_capacity(4 + content.len());
                element.put_u32_le(u32::try_from(content.len()).unwrap_or(u32::MAX));
                element.put_slice(content.as_bytes());
                bytes(out, 6, &element);
            }
        }
    }
}

fn parameter(out: &mut BytesMut, name: &str, value: impl FnOnce(&mut BytesMut)) {
    message(out, 4, |entry| {
        text(entry, 1, name);
        message(entry, 2, value);
    });
}

/// Writes a `ModelStreamInferResponse` that tells of a fault; the stream goes on.
pub fn write_error(id: &str, problem: &str, out: &mut BytesMut) {
    // An error is one that has a text.
    text(out, 1, if problem.is_empty() { "unknown error" } else { problem });
    message(out, 2, |response| {
        text(response, 3, id);
        parameter(response, FINAL, |value| choice(value, 1, 1));
    });
}

/// Writes `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse`.
pub fn verdict(yes: bool, out: &mut BytesMut) {
    number(out, 1, u64::from(yes));
}

/// Writes a `ServerMetadataResponse`.
pub fn server_metadata(version: &str, out: &mut BytesMut) {
    text(out, 1, PLATFORM);
    text(out, 2, version);
    for extension in ["model_configuration", "parameters"] {
        text(out, 3, extension);
    }
}

/// Writes a `ModelMetadataResponse` for a model of text.
pub fn model_metadata(model: &str, out: &mut BytesMut) {
    text(out, 1, model);
    text(out, 2, VERSION);
    text(out, 3, PLATFORM);
    let tensor = |out: &mut BytesMut, field, name, datatype| {
        message(out, field, |tensor| {
            text(tensor, 1, name);
            text(tensor, 2, datatype);
            bytes(tensor, 3, &[1]);
        });
    };
    tensor(out, 4, TEXT_INPUT, "BYTES");
    tensor(out, 4, STREAMING, "BOOL");
    tensor(out, 5, TEXT_OUTPUT, "BYTES");
    tensor(out, 5, FINISH_REASON, "BYTES");
}

/// Writes a `ModelConfigResponse` for a model of text: the part of Triton's configuration that tells a client how to ask.
pub fn model_config(model: &str, out: &mut BytesMut) {
    message(out, 1, |config| {
        text(config, 1, model);
        text(config, 2, PLATFORM);
        // name, type, dimensions and whether it may be left out; max_batch_size stays 0: no batch dimension.
        for (name, kind, optional) in [(TEXT_INPUT, TYPE_STRING, 0), (STREAMING, TYPE_BOOL, 1)] {
            message(config, 5, |input| {
                text(input, 1, name);
                number(input, 2, kind);
                number(input, 4, 1);
                number(input, 8, optional);
            });
        }
        for name in [TEXT_OUTPUT, FINISH_REASON] {
            message(config, 6, |output| {
                text(output, 1, name);
                number(output, 2, TYPE_STRING);
                number(output, 3, ANY);
            });
        }
        text(config, 17, PLATFORM);
        // A request may have several responses, or none at once.
        message(config, 19, |policy| number(policy, 1, 1));
    });
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Fields, Value};
    use super::*;

    fn answered(raw: bool, streamed: bool) -> Answered {
        let (model, id) = ("m".into(), "7".into());
        Answered { model, id, raw, wants_text: true, wants_finish_reason: true, streamed }
    }

    fn of(out: &BytesMut) -> Vec<(u32, Vec<u8>)> {
        Fields::of(out)
            .map(|field| field.map(|(number, value)| (number, value.bytes().unwrap().to_vec())).unwrap())
            .collect()
    }

    #[test]
    fn tensors_go_in_the_form_they_came() {
        let piece = Piece { text: "é", finish_reason: "", is_final: false, usage: None };
        let mut out = BytesMut::new();
        answered(true, false).write(&piece, &mut out);
        let raw: Vec<_> = of(&out).into_iter().filter(|(number, _)| *number == 6).collect();
        assert_eq!(raw, [(6, b"\x02\0\0\0\xc3\xa9".to_vec()), (6, vec![0; 4])]);
        let mut out = BytesMut::new();
        answered(false, false).write(&piece, &mut out);
        let fields = of(&out);
        assert!(fields.iter().all(|(number, _)| *number != 6));
        let tensor = &fields.iter().find(|(number, _)| *number == 5).unwrap().1;
        let contents = Fields::of(tensor).map(Result::unwrap).find(|(number, _)| *number == 5).unwrap().1;
        let element = Fields::of(contents.bytes().unwrap()).next().unwrap().unwrap();
        assert_eq!(element, (8, Value::Bytes("é".as_bytes())));
    }

    #[test]
    fn errors_always_have_a_text() {
        for problem in ["no", ""] {
            let mut out = BytesMut::new();
            write_error("7", problem, &mut out);
            assert_eq!(of(&out)[0].0, 1);
        }
    }
}
