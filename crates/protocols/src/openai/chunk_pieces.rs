//! Chunks of a chat answer that are not text for the user: reasoning and tool calls.

use super::{ChunkWriter, Extras};
use crate::escape::{self, escape};
use bytes::{BufMut, BytesMut};

impl ChunkWriter {
    /// Text of the model to itself, in `reasoning_content`.
    pub fn reasoning(&self, out: &mut BytesMut, choice: u32, text: &str, extras: Extras<'_>) {
        self.open_choice(out, choice);
        out.put_slice(b",\"delta\":{\"reasoning_content\":\"");
        escape(out, text);
        out.put_slice(b"\"}");
        self.close_choice(out, extras, None);
    }

    /// The beginning of tool call `call` of a choice. Calls count from 0.
    pub fn tool_start(
        &self,
        out: &mut BytesMut,
        choice: u32,
        call: u32,
        id: &str,
        name: &str,
        extras: Extras<'_>,
    ) {
        self.open_call(out, choice, call);
        out.put_slice(b",\"id\":");
        escape::string(out, id);
        out.put_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        escape::string(out, name);
        out.put_slice(b",\"arguments\":\"\"}}]}");
        self.close_choice(out, extras, None);
    }

    /// More of the JSON text of the arguments of tool call `call`.
    pub fn tool_arguments(
        &self,
        out: &mut BytesMut,
        choice: u32,
        call: u32,
        fragment: &str,
        extras: Extras<'_>,
    ) {
        self.open_call(out, choice, call);
        out.put_slice(b",\"function\":{\"arguments\":\"");
        escape(out, fragment);
        out.put_slice(b"\"}}]}");
        self.close_choice(out, extras, None);
    }

    fn open_call(&self, out: &mut BytesMut, choice: u32, call: u32) {
        self.open_choice(out, choice);
        out.put_slice(b",\"delta\":{\"tool_calls\":[{\"index\":");
        escape::number(out, u64::from(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Usage;
    use serde_json::{Value, json};

    fn written(write: impl Fn(&ChunkWriter, &mut BytesMut)) -> Value {
        let (writer, mut out) = (ChunkWriter::chat("chatcmpl-1", 7, "m"), BytesMut::new());
        write(&writer, &mut out);
        let text = std::str::from_utf8(&out).unwrap();
        let frame = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        assert!(!frame.contains('\n'));
        serde_json::from_str(frame).unwrap()
    }

    #[test]
    fn pieces_are_whole_chunks_in_the_shape_of_the_protocol() {
        let none = Extras::default();
        let chunk = written(|writer, out| writer.reasoning(out, 11, "a\"\nb", none));
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(
            chunk["choices"][0],
            json!({"index": 11, "delta": {"reasoning_content": "a\"\nb"}, "logprobs": null, "finish_reason": null})
        );
        let chunk = written(|writer, out| writer.tool_start(out, 0, 1, "call_x", "f\"", none));
        assert_eq!(
            chunk["choices"][0]["delta"],
            json!({"tool_calls": [{"index": 1, "id": "call_x", "type": "function",
                "function": {"name": "f\"", "arguments": ""}}]})
        );
        let extras = Extras { logprobs: Some(&[]), usage: Some(Usage::new(1, 2, 0)), ..Extras::default() };
        let chunk = written(|writer, out| writer.tool_arguments(out, 0, 1, "{\"p\":\n", extras));
        assert_eq!(
            chunk["choices"][0]["delta"],
            json!({"tool_calls": [{"index": 1, "function": {"arguments": "{\"p\":\n"}}]})
        );
        assert_eq!(chunk["usage"]["completion_tokens"], 2);
        assert_eq!(chunk["choices"][0]["logprobs"]["content"], json!([]));
    }
}
