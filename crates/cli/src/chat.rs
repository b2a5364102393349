//! `dynamo chat`: a conversation with a running server, from the terminal, as the answer is generated.

use crate::client::{DEFAULT_URL, Fault, SILENCE_LIMIT, Server, write_out};
use clap::Args;
use dynamo_protocols::sse;
use http_body_util::BodyExt;
use hyper::Method;
use serde::{Deserialize, Serialize};
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest message read from a pipe: beyond what any context here holds.
const MESSAGE_LIMIT_BYTES: u64 = 1 << 20;
/// Messages kept of a conversation; the oldest turn goes first. Far more than a context holds in practice.
const HISTORY_LIMIT: usize = 400;

/// Talk to a running server from the terminal
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// What to say; without it a conversation starts, or the message is read from a pipe
    message: Vec<String>,

    /// The server
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    url: String,

    /// Model to talk to [default: the first one the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Instruction that stands before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Longest answer [default: what the context leaves]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,

    /// 0 always takes the likeliest token [default: the server's]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
}

/// # Errors
/// One line for the user: what could not be done, and what to do about it.
pub(crate) async fn run(args: ChatArgs) -> Result<ExitCode, String> {
    let server = Server::parse(&args.url)?;
    let message = match args.message.join(" ") {
        said if !said.trim().is_empty() => Some(said),
        _ if io::stdin().is_terminal() => None,
        _ => Some(piped_message()?),
    };
    let model = match args.model {
        Some(model) => model,
        None => server.first_model().await?,
    };
    let mut conversation = Conversation {
        server,
        body: Body {
            model,
            messages: args.system.map(|text| Message::new("system", text)).into_iter().collect(),
            stream: true,
            max_tokens: args.max_tokens,
            temperature: args.temperature,
        },
    };
    match message {
        Some(message) => {
            conversation.turn(message).await?;
        }
        None => converse(&mut conversation).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn piped_message() -> Result<String, String> {
    let mut message = String::new();
    io::stdin()
        .take(MESSAGE_LIMIT_BYTES + 1)
        .read_to_string(&mut message)
        .map_err(|error| format!("cannot read the message from standard input: {error}"))?;
    if message.len() as u64 > MESSAGE_LIMIT_BYTES {
        return Err(format!("the message on standard input is longer than {MESSAGE_LIMIT_BYTES} bytes"));
    }
    if message.trim().is_empty() {
        return Err("nothing to say: give a message, pipe one in, or run `dynamo chat` in a terminal".into());
    }
    Ok(message)
}

/// Turns until the input ends, `/exit`, or Ctrl-C at the prompt.
async fn converse(conversation: &mut Conversation) -> Result<(), String> {
    let model = &conversation.body.model;
    write_out(&format!("Talking to {model}. Ctrl-C ends an answer, /clear starts over, /exit leaves.\n"))?;
    let mut lines = typed_lines();
    loop {
        write_out("\n> ")?;
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line else {
            return write_out("\n");
        };
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => return Ok(()),
            "/clear" => conversation.clear(),
            message => {
                if let Err(fault) = conversation.turn(message.to_owned()).await {
                    write_out(&format!("{fault}\n"))?;
                }
            }
        }
    }
}

/// Lines from the terminal. The thread that waits for them cannot be interrupted, so nothing waits for the thread: it
/// ends with the process.
fn typed_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

impl Message {
    fn new(role: &'static str, content: String) -> Self {
        Self { role, content }
    }
}

#[derive(Debug, Serialize)]
struct Body {
    model: String,
    messages: Vec<Message>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
}

struct Conversation {
    server: Server,
    body: Body,
}

impl Conversation {
    /// Back to the instruction, if there is one.
    fn clear(&mut self) {
        self.body.messages.retain(|message| message.role == "system");
    }

    /// Says `message`, prints the answer as it comes and remembers both. Ctrl-C ends the answer where it is. A turn
    /// that fails or says nothing is forgotten, so that the next one starts from what was agreed before.
    async fn turn(&mut self, message: String) -> Result<(), String> {
        self.body.messages.push(Message::new("user", message));
        let mut answer = Answer::default();
        let outcome = tokio::select! {
            outcome = self.answer(&mut answer) => outcome,
            _ = tokio::signal::ctrl_c() => Ok(()),
        };
        if outcome.is_err() || answer.text.is_empty() {
            self.body.messages.pop();
        } else {
            self.body.messages.push(Message::new("assistant", answer.text));
            self.forget_beyond(HISTORY_LIMIT);
        }
        outcome?;
        write_out(if answer.cut { "\n[the answer reached its length limit]\n" } else { "\n" })
    }

    fn forget_beyond(&mut self, limit: usize) {
        let messages = &mut self.body.messages;
        while messages.len() > limit {
            let oldest_turn = usize::from(messages[0].role == "system");
            messages.drain(oldest_turn..oldest_turn + 2);
        }
    }

    /// The answer to what was said, printed on the way and left in `answer` however this ends.
    async fn answer(&self, answer: &mut Answer) -> Result<(), String> {
        let server = &self.server;
        let body =
            serde_json::to_vec(&self.body).map_err(|error| format!("cannot write the request: {error}"))?;
        let mut reply = server.send(Method::POST, "/v1/chat/completions", body).await?;
        let mut reader = sse::Reader::default();
        while !answer.ended {
            let bytes = match timeout(SILENCE_LIMIT, reply.response.body_mut().frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => return Err(format!("the connection to {server} broke: {error}")),
                Ok(None) => {
                    return Err(format!("{server} closed the connection in the middle of the answer"));
                }
                Err(_) => return Err(server.silent()),
            };
            reader.push(&bytes).map_err(|error| format!("{server}: {error}"))?;
            while let Some(event) = reader.next_event() {
                write_out(answer.take(&event.data)?)?;
            }
        }
        Ok(())
    }
}

/// What came so far.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    /// `[DONE]` was seen.
    ended: bool,
    /// The length limit ended it.
    cut: bool,
}

/// The parts of a chunk that a terminal shows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Chunk {
    choices: Vec<Choice>,
    error: Option<Fault>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Piece,
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Piece {
    content: Option<String>,
}

impl Answer {
    /// Takes one event and returns the text it added.
    fn take(&mut self, data: &str) -> Result<&str, String> {
        let before = self.text.len();
        if data == "[DONE]" {
            self.ended = true;
            return Ok("");
        }
        let chunk: Chunk =
            serde_json::from_str(data).map_err(|error| format!("the server sent no chunk: {error}"))?;
        if let Some(fault) = chunk.error {
            return Err(fault.message);
        }
        for choice in chunk.choices {
            self.text.push_str(choice.delta.content.as_deref().unwrap_or_default());
            self.cut |= choice.finish_reason.as_deref() == Some("length");
        }
        Ok(self.text.get(before..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_the_answer() {
        let mut answer = Answer::default();
        assert_eq!(answer.take(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#), Ok(""));
        assert_eq!(answer.take(r#"{"choices":[{"delta":{"content":"Pa"}}]}"#), Ok("Pa"));
        assert_eq!(
            answer.take(r#"{"choices":[{"delta":{"content":"ris"},"finish_reason":"length"}]}"#),
            Ok("ris")
        );
        assert_eq!(answer.take(r#"{"choices":[],"usage":{"total_tokens":3}}"#), Ok(""));
        assert_eq!(answer.take("[DONE]"), Ok(""));
        assert_eq!((answer.text.as_str(), answer.ended, answer.cut), ("Paris", true, true));
    }

    #[test]
    fn an_error_frame_is_shown_in_the_servers_words() {
        let mut answer = Answer::default();
        let frame = r#"{"error":{"message":"worker lost","type":"x","param":null,"code":null}}"#;
        assert_eq!(answer.take(frame).unwrap_err(), "worker lost");
        assert!(Answer::default().take("not json").is_err());
    }
}
