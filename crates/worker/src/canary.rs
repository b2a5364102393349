//! The canary: an engine that nobody asked anything for a while is asked for one token. One that does not answer is marked
//! in discovery, so that nobody is sent to it, until it does.

use crate::engine::Engine;
use crate::metrics::Series;
use dynamo_runtime::discovery::Registration;
use dynamo_runtime::mailbox::{self, Receiver};
use dynamo_types::{Class, Delta, Error, Request, Result, Sampling, Stopping, Task};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// When an engine is asked, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time without a sign of life after which it is asked.
    pub wait: Duration,
    /// Time for the answer. An engine that works on something else meanwhile has it from then on anew.
    pub timeout: Duration,
}

impl Default for Options {
    /// As users of the reference system know them (behaviour.md 3.7).
    fn default() -> Self {
        Self { wait: Duration::from_secs(10), timeout: Duration::from_secs(3) }
    }
}

/// What was last seen of an engine, in milliseconds since its worker began.
#[derive(Debug)]
pub(crate) struct Pulse {
    born: Instant,
    worked_ms: AtomicU64,
    answered_ms: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { born: Instant::now(), worked_ms: AtomicU64::new(0), answered_ms: AtomicU64::new(0) }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A step computed something.
    pub(crate) fn worked(&self) {
        self.worked_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// A request got its whole answer.
    pub(crate) fn answered(&self) {
        self.answered_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn signs(&self) -> Signs {
        Signs {
            worked_ms: self.worked_ms.load(Ordering::Relaxed),
            answered_ms: self.answered_ms.load(Ordering::Relaxed),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    worked_ms: u64,
    answered_ms: u64,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing before this moment.
    Wait { until_ms: u64 },
    /// Ask the engine; then tell with [`Check::answered`].
    Ask,
    /// The engine is to be marked as not ready, for this reason.
    Fault(String),
    /// The mark is to be taken away.
    Recovered,
}

/// The rules, over a clock of the caller's.
#[derive(Debug)]
struct Check {
    wait_ms: u64,
    timeout_ms: u64,
    /// Since when it is being asked.
    asking: Option<u64>,
    /// How the last question ended, and when.
    last_ms: u64,
    last: Option<String>,
    /// Somebody was told of it.
    is_marked: bool,
}

impl Check {
    fn new(options: &Options) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        Self {
            wait_ms: ms(options.wait),
            timeout_ms: ms(options.timeout),
            asking: None,
            last_ms: 0,
            last: None,
            is_marked: false,
        }
    }

    fn next(&mut self, now_ms: u64, signs: Signs) -> Next {
        // Whatever was asked before, an answer to anybody says that it is well.
        if signs.answered_ms > self.last_ms.max(self.asking.unwrap_or(0)) {
            self.last_ms = signs.answered_ms;
            self.last = None;
        }
        match (&self.last, self.is_marked) {
            (Some(reason), false) => {
                self.is_marked = true;
                return Next::Fault(reason.clone());
            }
            (None, true) => {
                self.is_marked = false;
                return Next::Recovered;
            }
            _ => {}
        }
        let Some(asked_ms) = self.asking else {
            let quiet_since = self.last_ms.max(signs.worked_ms);
            let due = quiet_since.saturating_add(self.wait_ms);
            return if now_ms >= due { self.ask(now_ms) } else { Next::Wait { until_ms: due } };
        };
        let overdue = asked_ms.max(signs.worked_ms).saturating_add(self.timeout_ms);
        if now_ms < overdue {
            return Next::Wait { until_ms: overdue };
        }
        if self.last.is_none() {
            let reason = format!("no answer to a health check within {} ms", self.timeout_ms);
            self.last = Some(reason.clone());
            self.is_marked = true;
            return Next::Fault(reason);
        }
        // It has been said. A late answer counts, and an engine that lost the question is asked another one.
        let again = overdue.saturating_add(self.wait_ms);
        if now_ms >= again { self.ask(now_ms) } else { Next::Wait { until_ms: again } }
    }

    fn ask(&mut self, now_ms: u64) -> Next {
        self.asking = Some(now_ms);
        Next::Ask
    }

    /// The question was answered, or refused. A full engine is busy, not ill.
    fn answered(&mut self, now_ms: u64, outcome: &Result<()>) {
        self.asking = None;
        self.last_ms = now_ms;
        match outcome {
            Ok(()) => self.last = None,
            Err(error) if error.class() == Class::Overloaded => {}
            Err(error) => self.last = Some(format!("a health check failed: {}", error.message())),
        }
    }
}

/// Watches over a worker until dropped, or until there is nobody to watch over.
pub(crate) async fn watch(
    engine: Weak<dyn Engine>,
    pulse: Arc<Pulse>,
    registration: Weak<Registration>,
    series: Weak<Series>,
    options: Options,
) {
    let mut check = Check::new(&options);
    let mut question: Option<Receiver> = None;
    loop {
        match check.next(pulse.now_ms(), pulse.signs()) {
            Next::Ask => {
                // Not held while waiting: the worker ends its engine by letting go of it.
                let (Some(engine), Some(series)) = (engine.upgrade(), series.upgrade()) else { return };
                series.health_checks.inc();
                match ask(&*engine) {
                    Ok(receiver) => question = Some(receiver),
                    Err(error) => check.answered(pulse.now_ms(), &Err(error)),
                }
            }
            Next::Fault(reason) => {
                let (Some(registration), Some(series)) = (registration.upgrade(), series.upgrade()) else {
                    return;
                };
                tracing::warn!(%reason, "the worker is not ready");
                series.health_checks_failed.inc();
                registration.set_fault(Some(&reason));
            }
            Next::Recovered => {
                let Some(registration) = registration.upgrade() else { return };
                tracing::info!("the worker is ready again");
                registration.set_fault(None);
            }
            Next::Wait { until_ms } => {
                let rest = Duration::from_millis(until_ms.saturating_sub(pulse.now_ms()));
                // While it is marked, an answer to somebody else is looked for more often.
                let rest = if check.is_marked { rest.min(options.timeout) } else { rest };
                if let Ok(outcome) = tokio::time::timeout(rest, answer(&mut question)).await {
                    question = None;
                    check.answered(pulse.now_ms(), &outcome);
                }
            }
        }
    }
}

/// The smallest request there is, past everything that counts requests.
fn ask(engine: &dyn Engine) -> Result<Receiver> {
    let card = engine.card();
    let token = card.special.bos.unwrap_or(0).min(card.vocab_size.saturating_sub(1));
    let request = Request {
        id: "health-check".into(),
        model: Arc::clone(&card.name),
        tokens: [token].into(),
        resumed: 0,
        task: card.tasks.first().copied().unwrap_or(Task::Generate),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stopping: Stopping { max_tokens: 1, ..Stopping::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    };
    let (sender, receiver) = mailbox::channel();
    engine.submit(Arc::new(request), Box::new(sender))?;
    Ok(receiver)
}

/// Completes when the question has an answer; never if nothing was asked.
async fn answer(question: &mut Option<Receiver>) -> Result<()> {
    let Some(receiver) = question else { return std::future::pending().await };
    loop {
        match receiver.recv().await {
            Some(Ok(delta)) if says_something(&delta) => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(Error::disconnected("the engine broke off")),
        }
    }
}

fn says_something(delta: &Delta) -> bool {
    delta.finish.is_some() || !delta.tokens.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        Check::new(&Options { wait: Duration::from_secs(10), timeout: Duration::from_secs(3) })
    }

    fn wait(until_ms: u64) -> Next {
        Next::Wait { until_ms }
    }

    #[test]
    fn only_a_quiet_engine_is_asked() {
        let mut check = check();
        let signs = |worked_ms, answered_ms| Signs { worked_ms, answered_ms };
        assert_eq!(check.next(0, signs(0, 0)), wait(10_000));
        assert_eq!(check.next(10_000, signs(4_000, 0)), wait(14_000));
        assert_eq!(check.next(14_000, signs(4_000, 6_000)), wait(16_000));
        assert_eq!(check.next(16_000, signs(4_000, 6_000)), Next::Ask);
        assert_eq!(check.next(16_001, signs(4_000, 6_000)), wait(19_000));
        check.answered(16_010, &Ok(()));
        assert_eq!(check.next(16_010, signs(16_005, 6_000)), wait(26_010));
    }

    #[test]
    fn one_that_does_not_answer_is_marked_once_and_its_late_answer_counts() {
        let mut check = check();
        let none = Signs::default();
        assert_eq!(check.next(10_000, none), Next::Ask);
        assert!(matches!(check.next(13_000, none), Next::Fault(reason) if reason.contains("3000 ms")));
        assert_eq!(check.next(13_001, none), wait(23_000));
        assert_eq!(check.next(23_000, none), Next::Ask, "the question may have been lost");
        assert_eq!(check.next(26_000, none), wait(36_000), "it is not marked twice");
        check.answered(30_000, &Ok(()));
        assert_eq!(check.next(30_000, none), Next::Recovered);
        assert_eq!(check.next(30_000, none), wait(40_000));
    }

    #[test]
    fn an_engine_that_works_on_something_else_has_time() {
        let mut check = check();
        assert_eq!(check.next(10_000, Signs::default()), Next::Ask);
        let busy = Signs { worked_ms: 12_500, answered_ms: 0 };
        assert_eq!(check.next(13_000, busy), wait(15_500));
        assert!(matches!(check.next(15_500, busy), Next::Fault(_)));
        let other = Signs { worked_ms: 15_600, answered_ms: 15_600 };
        assert_eq!(check.next(15_700, other), Next::Recovered, "somebody else's answer is one too");
    }

    #[test]
    fn a_fault_marks_and_a_full_engine_does_not() {
        let mut check = check();
        assert_eq!(check.next(10_000, Signs::default()), Next::Ask);
        check.answered(10_001, &Err(Error::overloaded("full")));
        assert_eq!(check.next(10_001, Signs::default()), wait(20_001));
        assert_eq!(check.next(20_001, Signs::default()), Next::Ask);
        check.answered(20_002, &Err(Error::engine("out of memory")));
        assert!(
            matches!(check.next(20_002, Signs::default()), Next::Fault(reason) if reason.contains("out of memory"))
        );
        assert_eq!(check.next(20_002, Signs::default()), wait(30_002));
        assert_eq!(check.next(30_002, Signs::default()), Next::Ask, "it is asked again");
        check.answered(30_003, &Err(Error::overloaded("full")));
        assert_eq!(check.next(30_003, Signs::default()), wait(40_003), "full is no recovery either");
    }
}
