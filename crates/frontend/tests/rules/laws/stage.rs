//! Models whose workers say what the case at hand wants to hear.

use super::cases::Draws;
use crate::client::Reply;
use crate::harness::{Ending, Harness, Worker, ask, card, config, read};
use crate::said::{Said, message_of, response_of, said};
use dynamo_frontend::Config;
use dynamo_types::{ChatTemplate, Delta, ModelCard, Request, TokenLogprob};
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// The routes that generate.
pub(crate) const GENERATE: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];

/// What every worker says next.
#[derive(Clone, Debug)]
struct Script {
    /// The bytes of the answer, and where they are cut into deltas.
    bytes: Vec<u8>,
    cuts: Vec<usize>,
    ending: Ending,
}

pub(crate) struct Stage {
    pub(crate) harness: Harness,
    script: Arc<Mutex<Script>>,
    pub(crate) workers: Vec<Worker>,
}

/// A card without pieces: a token for each byte.
pub(crate) fn model(name: &str) -> ModelCard {
    card(name, &[])
}

impl Stage {
    /// The model `m`.
    pub(crate) async fn new() -> Self {
        Self::with(config(), vec![model("m")]).await
    }

    pub(crate) async fn with(config: Config, models: Vec<ModelCard>) -> Self {
        let harness = Harness::with(config, dynamo_router::Config::default()).await;
        let script = Script { bytes: vec![], cuts: vec![], ending: Ending::Hang };
        let mut stage = Self { harness, script: Arc::new(Mutex::new(script)), workers: vec![] };
        for model in models {
            stage.add(model).await;
        }
        stage
    }

    /// One more model.
    pub(crate) async fn add(&mut self, model: ModelCard) {
        let script = Arc::clone(&self.script);
        let behaviour = Arc::new(move |request: &Request| {
            let script = script.lock().unwrap().clone();
            let starts = [0].into_iter().chain(script.cuts.iter().copied());
            let deltas = starts.zip(&script.cuts).map(|(from, &to)| delta(&script.bytes[from..to], request));
            Ok((deltas.collect(), script.ending))
        });
        let id = self.workers.len() as u64 + 1;
        self.workers.push(self.harness.worker(id, model, behaviour).await);
    }

    /// The next answers are these bytes, cut anew.
    pub(crate) fn say(&self, draws: &mut Draws, bytes: impl AsRef<[u8]>, ending: Ending) {
        let bytes = bytes.as_ref().to_vec();
        let cuts = draws.cuts(bytes.len());
        *self.script.lock().unwrap() = Script { bytes, cuts, ending };
    }

    /// The next answers are these words, a delta for each, and then nothing ever.
    pub(crate) fn say_words(&self, text: &str) {
        let cuts = text.match_indices(' ').map(|(at, _)| at + 1).chain([text.len()]).collect();
        *self.script.lock().unwrap() = Script { bytes: text.into(), cuts, ending: Ending::Hang };
    }

    pub(crate) async fn ask(&self, route: &str, stream: bool, fields: Value) -> Reply {
        self.harness.post(route, &ask(route, stream, "x", fields)).await
    }

    /// What the engines have been asked so far.
    pub(crate) fn requests(&self) -> usize {
        self.workers.iter().map(|worker| worker.requests().len()).sum()
    }
}

fn delta(bytes: &[u8], request: &Request) -> Delta {
    let tokens: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte)).collect();
    let logprob = |&token: &u32| TokenLogprob { token, logprob: -0.5, top: vec![] };
    let logprobs =
        if request.output.logprobs.is_some() { tokens.iter().map(logprob).collect() } else { vec![] };
    Delta { tokens, logprobs, ..Delta::default() }
}

/// What the client of any generating route makes of the answer.
pub(crate) fn answer(route: &str, reply: &Reply) -> Said {
    if route != "/v1/completions" {
        return said(route, reply);
    }
    let (content, finish) = read(reply, 0);
    Said { content, finish: finish.unwrap_or_default(), ..Said::default() }
}

/// The usage that an answer tells: prompt and answer. A stream of OpenAI's older APIs has to be asked for it.
pub(crate) fn usage(route: &str, reply: &Reply) -> (u64, u64) {
    let is_stream = reply.header("content-type") == Some("text/event-stream");
    let whole = match (route, is_stream) {
        (_, false) => reply.json(),
        ("/v1/messages", true) => message_of(reply),
        ("/v1/responses", true) => response_of(reply),
        (_, true) => reply.chunks().pop().unwrap(),
    };
    let number = |name: &str| whole["usage"][name].as_u64();
    let [prompt, answer] = if route == "/v1/messages" || route == "/v1/responses" {
        ["input_tokens", "output_tokens"]
    } else {
        ["prompt_tokens", "completion_tokens"]
    };
    (number(prompt).unwrap(), number(answer).unwrap())
}

pub(crate) fn template(source: &str) -> Option<ChatTemplate> {
    Some(ChatTemplate { source: source.into() })
}
