//! Everything that can become of an answer between a frontend and three workers that break off, die, fall silent or go on,
//! while its client may leave, walked through in every order. What happens after a fault, and what the next worker is
//! asked, are the functions that `course` calls.

use super::{Outcome, Rules, continuation};
use dynamo_explore::{Counterexample, Explored, Model, explore};
use dynamo_types::{Error, FinishReason, OutputOptions, Request, Stopping};

const WORKERS: usize = 3;
const PROMPT: [u32; 2] = [7, 8];
const FIRST_TOKEN: u32 = 100;
/// Far above what is found.
const LIMIT: usize = 2_000_000;

/// The answer's token at a position, as an engine has it that draws by seed and position.
fn token(position: u32) -> u32 {
    FIRST_TOKEN + position
}

/// A rule that is not ours, to see that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// The next worker begins again.
    ForgetsTheAnswer,
    /// What was generated stands as the client's prompt.
    CountsNothing,
    /// An answer that lacks only its end moves.
    MissesTheEnd,
    /// A stream that was left is read on.
    ReadsOn,
    /// Who failed it is asked again and again.
    AsksForEver,
}

struct Migration {
    max_tokens: u32,
    /// Where the model would end by itself.
    eos_at: Option<u32>,
    limit: u32,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Reads,
    Left,
    Ended(FinishReason),
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    Token(u32),
    Finish(FinishReason),
}

/// What a worker does for the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    /// As it was asked.
    tokens: Vec<u32>,
    resumed: u32,
    max_tokens: u32,
    said: u32,
    finished: bool,
    /// Said and not read.
    wire: Vec<Item>,
    /// The worker has not noticed yet that nobody reads it.
    left: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    client: Client,
    /// What the client has read.
    told: Vec<u32>,
    generated: Vec<u32>,
    failed: Vec<usize>,
    serving: Option<usize>,
    dead: [bool; WORKERS],
    runs: [Option<Run>; WORKERS],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize),
    NobodyIsLeft,
    Say(usize),
    /// So many items arrive together.
    Read(usize, usize),
    /// The connection breaks, and what is on it is lost.
    Break(usize),
    Die(usize),
    /// The frontend gives up a worker that says nothing.
    GiveUp(usize),
    Notice(usize),
    Leave,
}

impl Migration {
    fn request(&self) -> Request {
        Request {
            id: "r".into(),
            model: "m".into(),
            tokens: PROMPT.into(),
            resumed: 0,
            task: Default::default(),
            sampling: Default::default(),
            stopping: Stopping { max_tokens: self.max_tokens, ..Stopping::default() },
            guide: None,
            thinking: None,
            output: OutputOptions::default(),
            routing: Default::default(),
            trace: None,
        }
    }

    fn eos(&self) -> Vec<u32> {
        self.eos_at.map(token).into_iter().collect()
    }

    /// The undisturbed answer.
    fn expected(&self) -> (Vec<u32>, FinishReason) {
        match self.eos_at.filter(|at| *at < self.max_tokens) {
            Some(at) => ((0..=at).map(token).collect(), FinishReason::Stop),
            None => ((0..self.max_tokens).map(token).collect(), FinishReason::Length),
        }
    }

    fn untried<'a>(&self, state: &'a State) -> impl Iterator<Item = usize> + use<'a> {
        (0..WORKERS).filter(|worker| !state.failed.contains(worker))
    }

    fn distinct(&self, state: &State) -> u32 {
        (WORKERS - self.untried(state).count()) as u32
    }

    fn ask(&self, state: &mut State, worker: usize) -> Result<(), String> {
        if state.dead[worker] {
            self.fault(state, worker, &Error::disconnected("x"));
            return Ok(());
        }
        let request = self.request();
        let mut asked = match self.wrong {
            Some(Wrong::ForgetsTheAnswer) => request,
            _ => continuation(&request, &state.generated, false),
        };
        if self.wrong == Some(Wrong::CountsNothing) {
            asked.resumed = 0;
        }
        if asked.stopping.max_tokens == 0 {
            return Err("a worker is asked for nothing".into());
        }
        let (tokens, resumed) = (asked.tokens.to_vec(), asked.resumed);
        let max_tokens = asked.stopping.max_tokens;
        let run =
            Run { tokens, resumed, max_tokens, said: 0, finished: false, wire: Vec::new(), left: false };
        if state.runs[worker].replace(run).is_some_and(|run| !run.left) {
            return Err("a worker is asked twice".into());
        }
        state.serving = Some(worker);
        Ok(())
    }

    /// As `Course::leave`.
    fn fault(&self, state: &mut State, worker: usize, error: &Error) {
        self.let_go(state);
        state.failed.push(worker);
        let rules = Rules { limit: self.limit, max_seq_len: None };
        let failed = match self.wrong {
            Some(Wrong::AsksForEver) => self.distinct(state),
            _ => state.failed.len() as u32,
        };
        let eos = if self.wrong == Some(Wrong::MissesTheEnd) { Vec::new() } else { self.eos() };
        match rules.after(&self.request(), &state.generated, &eos, failed, error) {
            Outcome::Ended(finish) => state.client = Client::Ended(finish),
            Outcome::TooLong | Outcome::Fails => state.client = Client::Failed,
            Outcome::Moves => {}
        }
    }

    /// The stream is dropped; its worker hears of it later.
    fn let_go(&self, state: &mut State) {
        if let Some(run) = state.serving.take().and_then(|worker| state.runs[worker].as_mut()) {
            run.left = true;
            if self.wrong != Some(Wrong::ReadsOn) {
                run.wire.clear();
            }
        }
    }

    fn say(&self, run: &mut Run) {
        let position = run.resumed + run.said;
        run.said += 1;
        run.wire.push(Item::Token(token(position)));
        let stops = self.eos_at == Some(position);
        if stops || run.said >= run.max_tokens {
            run.finished = true;
            run.wire.push(Item::Finish(if stops { FinishReason::Stop } else { FinishReason::Length }));
        }
    }

    fn read(&self, state: &mut State, worker: usize, count: usize) -> Result<(), String> {
        let Some(run) = &mut state.runs[worker] else { return Ok(()) };
        let items: Vec<Item> = run.wire.drain(..count).collect();
        for item in items {
            match item {
                Item::Token(token) => {
                    if state.client != Client::Reads {
                        return Err("a token after the end".into());
                    }
                    state.generated.push(token);
                    state.told.push(token);
                }
                Item::Finish(finish) => {
                    state.client = Client::Ended(finish);
                    self.let_go(state);
                }
            }
        }
        Ok(())
    }
}

impl Model for Migration {
    type State = State;
    type Key = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            client: Client::Reads,
            told: Vec::new(),
            generated: Vec::new(),
            failed: Vec::new(),
            serving: None,
            dead: [false; WORKERS],
            runs: Default::default(),
        }
    }

    fn key(&self, state: &State) -> State {
        state.clone()
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for (worker, run) in state.runs.iter().enumerate() {
            if !state.dead[worker] {
                steps.push(Step::Die(worker));
            }
            let Some(run) = run else { continue };
            if run.left {
                steps.push(Step::Notice(worker));
            }
            if !run.finished && !state.dead[worker] {
                steps.push(Step::Say(worker));
            }
            if !run.left || self.wrong == Some(Wrong::ReadsOn) {
                steps.extend((1..=run.wire.len()).map(|count| Step::Read(worker, count)));
            }
            if state.serving == Some(worker) {
                steps.extend([Step::Break(worker), Step::GiveUp(worker)]);
            }
        }
        if state.client == Client::Reads {
            steps.push(Step::Leave);
            if state.serving.is_none() {
                steps.extend(self.untried(state).map(Step::Ask));
                // One that failed it and was heard of since is asked again.
                if self.untried(state).next().is_none() {
                    steps.push(Step::NobodyIsLeft);
                    let alive = (0..WORKERS).filter(|worker| !state.dead[*worker]);
                    steps.extend(alive.map(Step::Ask));
                }
            }
        }
        steps
    }

    fn take(&self, state: &State, step: Step) -> Result<State, String> {
        let mut next = state.clone();
        match step {
            Step::Ask(worker) => self.ask(&mut next, worker)?,
            Step::NobodyIsLeft => next.client = Client::Failed,
            Step::Say(worker) => {
                if let Some(run) = &mut next.runs[worker] {
                    self.say(run);
                }
            }
            Step::Read(worker, count) => self.read(&mut next, worker, count)?,
            Step::Break(worker) => self.fault(&mut next, worker, &Error::disconnected("x")),
            Step::GiveUp(worker) => self.fault(&mut next, worker, &Error::timeout("x")),
            Step::Die(worker) => {
                next.dead[worker] = true;
                if next.serving == Some(worker) {
                    self.fault(&mut next, worker, &Error::disconnected("x"));
                }
                next.runs[worker] = None;
            }
            Step::Notice(worker) => next.runs[worker] = None,
            Step::Leave => {
                next.client = Client::Left;
                self.let_go(&mut next);
            }
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let (expected, reason) = self.expected();
        if !expected.starts_with(&state.told) {
            return Err(format!("the client reads {:?}, not {expected:?}", state.told));
        }
        for run in state.runs.iter().flatten() {
            let (prompt, answer) = run.tokens.split_at(run.tokens.len() - run.resumed as usize);
            if prompt != PROMPT || !expected.starts_with(answer) {
                return Err(format!(
                    "a worker is asked to go on after {:?}, {} resumed",
                    run.tokens, run.resumed
                ));
            }
        }
        match state.client {
            Client::Ended(finish) if state.told != expected || finish != reason => {
                Err(format!("ends by {finish:?} after {:?}", state.told))
            }
            _ if state.failed.len() > self.limit as usize + 1 => {
                Err(format!("asked {} workers", state.failed.len()))
            }
            Client::Failed
                if state.failed.len() <= self.limit as usize && self.untried(state).next().is_some() =>
            {
                Err(format!("fails although {:?} only have", state.failed))
            }
            _ => Ok(()),
        }
    }

    /// Everything has an end, and nobody works for nobody.
    fn is_settled(&self, state: &State) -> bool {
        state.client != Client::Reads && state.runs.iter().all(Option::is_none)
    }
}

fn run(
    max_tokens: u32,
    eos_at: Option<u32>,
    limit: u32,
    wrong: Option<Wrong>,
) -> Result<Explored, Box<Counterexample>> {
    explore(&Migration { max_tokens, eos_at, limit, wrong }, LIMIT)
}

#[test]
fn no_token_is_lost_or_doubled_and_every_answer_ends_in_every_order() {
    for (max_tokens, eos_at) in [(1, None), (2, None), (3, Some(1)), (3, Some(0))] {
        for limit in [0, 1, 3] {
            match run(max_tokens, eos_at, limit, None) {
                Ok(explored) => assert!(explored.states > 100 && explored.settled > 10, "{explored:?}"),
                Err(found) => panic!("{max_tokens} tokens, end at {eos_at:?}, limit {limit}: {found}"),
            }
        }
    }
}

#[test]
fn wrong_rules_are_found() {
    for (wrong, eos_at, says) in [
        (Wrong::ForgetsTheAnswer, None, "the client reads [100, 100]"),
        (Wrong::CountsNothing, None, "0 resumed"),
        (Wrong::MissesTheEnd, Some(1), "the client reads [100, 101, 102]"),
        (Wrong::ReadsOn, None, "after the end"),
        (Wrong::AsksForEver, None, "asked 5 workers"),
    ] {
        let found = run(3, eos_at, 3, Some(wrong)).unwrap_err();
        assert!(found.fault.contains(says), "{wrong:?}: {found}");
    }
}
