//! The streams that follow scripts.

use super::script::{Book, Error as ScriptError, Script, Speller, Step};
use super::{Call, EMBEDDING_SIZE, End, MAX_STREAMS};
use crate::engine::refuse;
use dynamo_types::{Delta, DeltaSink, Error, FinishReason, Load, OutputOptions, Request, Task, TokenLogprob};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How often streams look whether their reader left.
const CANCEL_POLL_US: u64 = 50_000;
/// Calls and ends kept for inspection; older ones are forgotten.
const MAX_LOG: usize = 10_000;

/// What happened.
#[derive(Default)]
pub(super) struct Log {
    calls: VecDeque<Call>,
    ends: VecDeque<End>,
}

impl Log {
    pub(super) fn call(&mut self, call: Call) {
        push_bounded(&mut self.calls, call);
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    pub(super) fn ends(&self) -> Vec<End> {
        self.ends.iter().cloned().collect()
    }
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() >= MAX_LOG {
        list.pop_front();
    }
    list.push_back(item);
}

/// All streams of one engine.
pub(super) struct State {
    scripts: VecDeque<Script>,
    speller: Speller,
    streams: BTreeMap<u64, Stream>,
    next_stream: u64,
    pub(super) log: Log,
}

struct Stream {
    request: Arc<Request>,
    sink: Box<dyn DeltaSink>,
    /// What is still to be done, in small steps.
    todo: VecDeque<Action>,
    obey_limits: bool,
    /// When to go on; none: never.
    due_us: Option<u64>,
    emitted: u32,
    cached_tokens: u32,
    begun: bool,
}

enum Action {
    Emit(Vec<u32>),
    Delay(u64),
    Error(Error),
    Reset,
    Stall,
    Finish(FinishReason),
}

/// May the stream go on?
enum Turn {
    Next,
    Wait,
    Over,
}

impl State {
    pub(super) fn new(book: Book) -> Self {
        let speller = Speller::new(book.pieces());
        Self {
            scripts: book.scripts.into(),
            speller,
            streams: BTreeMap::new(),
            next_stream: 0,
            log: Log::default(),
        }
    }

    pub(super) fn push(&mut self, script: Script) -> Result<(), ScriptError> {
        self.speller.check(&script)?;
        self.scripts.push_front(script);
        Ok(())
    }

    pub(super) fn open(
        &mut self,
        request: Arc<Request>,
        sink: Box<dyn DeltaSink>,
        now_us: u64,
    ) -> Result<(), Error> {
        if self.streams.len() >= MAX_STREAMS {
            let error = Error::overloaded(format!("the engine has {MAX_STREAMS} open streams, its limit"));
            return refuse(sink, error);
        }
        let Some(script) = self.scripts.iter_mut().find(|script| script.answers(&request)) else {
            return refuse(sink, Error::engine("no script answers this request"));
        };
        script.times = script.times.map(|times| times - 1);
        let stream = Stream {
            todo: actions(script, &self.speller, request.resumed as usize),
            obey_limits: script.obey_limits,
            cached_tokens: script.cached_tokens,
            request,
            sink,
            due_us: Some(now_us),
            emitted: 0,
            begun: false,
        };
        self.scripts.retain(|script| script.times != Some(0));
        self.streams.insert(self.next_stream, stream);
        self.next_stream += 1;
        Ok(())
    }

    pub(super) fn run(&mut self, now_us: u64) -> Option<u64> {
        let ends = &mut self.log.ends;
        let mut next: Option<u64> = None;
        self.streams.retain(|_, stream| {
            let cancelled = stream.sink.is_cancelled();
            let over = cancelled || stream.run(now_us);
            if over {
                let (request, tokens) = (stream.request.id.clone(), stream.emitted);
                push_bounded(ends, End { at_us: now_us, request, cancelled, tokens });
            } else {
                let due = stream.due_us.unwrap_or(u64::MAX).min(now_us + CANCEL_POLL_US);
                next = Some(next.map_or(due, |next| next.min(due)));
            }
            !over
        });
        next
    }

    pub(super) fn load(&self) -> Load {
        Load { running: self.streams.len() as u32, ..Load::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }
}

/// A script in small steps, without the first `resumed` tokens and what came before them.
fn actions(script: &Script, speller: &Speller, resumed: usize) -> VecDeque<Action> {
    let mut actions = VecDeque::new();
    let mut skip = resumed;
    for step in &script.steps {
        match step {
            Step::DelayMs(ms) if skip == 0 => actions.push_back(Action::Delay(ms * 1000)),
            Step::Error(error) if skip == 0 => actions.push_back(Action::Error(error.clone())),
            Step::Reset if skip == 0 => actions.push_back(Action::Reset),
            Step::Stall if skip == 0 => actions.push_back(Action::Stall),
            Step::Finish(reason) => actions.push_back(Action::Finish(*reason)),
            step => {
                for mut tokens in speller.deltas(step) {
                    let skipped = skip.min(tokens.len());
                    skip -= skipped;
                    tokens.drain(..skipped);
                    if !tokens.is_empty() {
                        actions.push_back(Action::Emit(tokens));
                    }
                }
            }
        }
    }
    actions.push_back(Action::Finish(FinishReason::Stop));
    actions
}

impl Stream {
    /// Does what is due. True: the stream is over.
    fn run(&mut self, now_us: u64) -> bool {
        while self.due_us.is_some_and(|due| due <= now_us) {
            match self.turn() {
                Turn::Next => {}
                Turn::Wait => self.due_us = None,
                Turn::Over => return true,
            }
        }
        false
    }

    fn turn(&mut self) -> Turn {
        match self.todo.pop_front() {
            // A vector has no pieces: what the script says of time and faults counts, its words do not.
            Some(Action::Emit(_)) if self.request.task == Task::Embed => return Turn::Next,
            Some(Action::Emit(tokens)) => return self.emit(tokens),
            Some(Action::Delay(delay_us)) => {
                self.due_us = self.due_us.map(|due| due.saturating_add(delay_us));
                return Turn::Next;
            }
            Some(Action::Stall) => return Turn::Wait,
            Some(Action::Error(error)) => self.sink.fail(error),
            Some(Action::Reset) | None => {}
            Some(Action::Finish(reason)) => {
                let embedding = (self.request.task == Task::Embed)
                    .then(|| dynamo_mocker::embedding(&self.request.tokens, EMBEDDING_SIZE));
                let mut delta = Delta { embedding, finish: Some(reason), ..Delta::default() };
                self.begin(&mut delta);
                self.sink.push(delta);
            }
        }
        Turn::Over
    }

    fn emit(&mut self, mut tokens: Vec<u32>) -> Turn {
        let stopping = &self.request.stopping;
        let mut finish = None;
        if self.obey_limits {
            let left = stopping.max_tokens.saturating_sub(self.emitted) as usize;
            if tokens.len() >= left {
                tokens.truncate(left);
                finish = Some(FinishReason::Length);
            }
            let answered = self.request.resumed + self.emitted;
            let stop = tokens.iter().zip(answered + 1..).position(|(token, count)| {
                stopping.stop_token_ids.contains(token) && count > stopping.min_tokens
            });
            if let Some(stop) = stop {
                tokens.truncate(stop + 1);
                finish = Some(FinishReason::Stop);
            }
        }
        self.emitted += tokens.len() as u32;
        let output = &self.request.output;
        let logprobs = match output.logprobs {
            Some(alternatives) => tokens.iter().map(|&token| logprob(token, alternatives)).collect(),
            None => Vec::new(),
        };
        let mut delta = Delta { tokens, logprobs, finish, ..Delta::default() };
        self.begin(&mut delta);
        self.sink.push(delta);
        if finish.is_some() { Turn::Over } else { Turn::Next }
    }

    /// The first delta says what is known of the prompt.
    fn begin(&mut self, delta: &mut Delta) {
        if !std::mem::replace(&mut self.begun, true) {
            delta.cached_tokens = Some(self.cached_tokens);
            delta.prompt_logprobs = prompt_logprobs(&self.request, &self.request.output);
        }
    }
}

/// Made up, but the same each time: the token is likeliest, then the ids after it.
fn logprob(token: u32, alternatives: u32) -> TokenLogprob {
    let top = (0..alternatives).map(|i| (token.wrapping_add(i), -0.25 - i as f32)).collect();
    TokenLogprob { token, logprob: -0.25, top }
}

fn prompt_logprobs(request: &Request, output: &OutputOptions) -> Vec<TokenLogprob> {
    let Some(alternatives) = output.prompt_logprobs else { return Vec::new() };
    let prompt = &request.tokens[..request.prompt_len()];
    let mut all: Vec<_> = prompt.iter().map(|&token| logprob(token, alternatives)).collect();
    if let Some(first) = all.first_mut() {
        *first = TokenLogprob { token: first.token, ..TokenLogprob::default() };
    }
    all
}
