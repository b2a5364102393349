//! The campaign: the answers as they should be, then the same questions while things break, then the books.

use crate::answer::{Answer, Circumstances, End, Verdict, judge};
use crate::board::Board;
use crate::cases::{Case, Visit, cases, visits};
use crate::client::{Manner, ask, get};
use crate::ledger::{unbalanced, unserved};
use crate::log::{Law, Log};
use crate::member::{Member, Store};
use crate::network::{Kind, Link};
use crate::options::Options;
use crate::schedule::{self, Fleet, Group, Step};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// A stream that has not ended by then hangs: the longest takes some seconds, the longest trouble some more, and each move
/// some again; all of it many times as long on a machine that does a lot else.
const STREAM_LIMIT: Duration = Duration::from_secs(240);

/// For the fleet to be found, and for the books to balance.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

const PAGE_LIMIT: Duration = Duration::from_secs(20);

/// Clients at once; more would only wait for the processors.
const CLIENTS_AT_ONCE: usize = 160;

/// Of them those that ask a real model. What is asked for faster than it is answered would only measure the machine.
const OF_A_MODEL_AT_ONCE: usize = 6;

/// Frontends a client tries that are about to end, before it is told so.
const DOORS_TRIED: usize = 200;
const NEXT_DOOR: Duration = Duration::from_millis(100);

const TELL_EVERY: Duration = Duration::from_secs(30);

/// What the clients have seen.
#[derive(Debug, Default)]
struct Tally {
    verdicts: BTreeMap<&'static str, usize>,
    redirected: usize,
    gaps: Vec<Duration>,
}

/// Runs it. What is wrong is in the log afterwards.
///
/// # Errors
/// One line: it cannot be run.
pub(crate) async fn run(options: &Options, network: Kind, log: Log) -> Result<Arc<Board>, String> {
    let fleet = options.fleet();
    let board = Arc::new(Board::new(log, (0..fleet.members()).map(|member| fleet.group(member))));
    let mut members = all(members(options, network, &board).await?, async |mut member| {
        member.start().await;
        member
    })
    .await;
    let campaign = Arc::new(Campaign {
        cases: cases(options.seed, fleet.mock_workers > 0, fleet.model_workers > 0),
        frontends: fleet.frontends,
        workers: fleet.workers(),
        board: Arc::clone(&board),
    });
    campaign.settle(Books::Unwritten).await;
    let expected = Arc::new(campaign.reference().await?);
    board.log.tell(&format!("{} undisturbed answers", expected.len()));
    members = campaign.disturb(options, &fleet, members, &expected).await;
    campaign.settle(Books::Unwritten).await;
    campaign.afterwards(&expected).await;
    campaign.settle(Books::Balanced).await;
    finish(members, &fleet).await;
    read_logs(&board.log, options);
    Ok(board)
}

/// None of them started.
async fn members(options: &Options, network: Kind, board: &Arc<Board>) -> Result<Vec<Member>, String> {
    let fleet = options.fleet();
    let mut stores = Vec::new();
    let mut store = Store::Folder(board.log.folder().join("store"));
    for number in fleet.frontends + fleet.workers()..fleet.members() {
        let link = Link::to_store().await?;
        store = Store::Etcd(link.outer());
        stores.push(Member::store(number, options, link, board));
    }
    let mut members = Vec::new();
    for number in 0..fleet.frontends + fleet.workers() {
        members.push(Member::new(number, options, network, &store, board).await?);
    }
    members.extend(stores);
    Ok(members)
}

/// Does the same with all members at once, and keeps their order.
async fn all<F>(members: Vec<Member>, what: impl Fn(Member) -> F) -> Vec<Member>
where
    F: Future<Output = Member> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (number, member) in members.into_iter().enumerate() {
        let done = what(member);
        tasks.spawn(async move { (number, done.await) });
    }
    let mut done = tasks.join_all().await;
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, member)| member).collect()
}

/// What is expected of the frontends' books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Books {
    /// Nothing: some series come with a frontend's first request.
    Unwritten,
    Balanced,
}

struct Campaign {
    cases: Vec<Case>,
    frontends: usize,
    workers: usize,
    board: Arc<Board>,
}

impl Campaign {
    /// Until all frontends find all workers, and hold nothing.
    async fn settle(&self, books: Books) {
        let begun = Instant::now();
        loop {
            let (mut lost, mut held) = (Vec::new(), Vec::new());
            for frontend in 0..self.frontends {
                match self.pages(frontend).await {
                    Ok((metrics, status)) => {
                        let name = |fault| format!("frontend-{frontend}: {fault}");
                        lost.extend(unserved(&metrics, &status, self.workers).into_iter().map(name));
                        if books == Books::Balanced {
                            held.extend(unbalanced(&metrics, &status).into_iter().map(name));
                        }
                    }
                    Err(fault) => lost.push(fault),
                }
            }
            if lost.is_empty() && held.is_empty() {
                let time = begun.elapsed().as_secs_f64();
                self.board.log.tell(&format!("all is well {time:.1} s later ({books:?})"));
                return;
            }
            if begun.elapsed() > SETTLE_LIMIT {
                lost.into_iter().for_each(|fault| self.board.log.fault(Law::Found, fault));
                held.into_iter().for_each(|fault| self.board.log.fault(Law::Ledger, fault));
                return;
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    async fn pages(&self, frontend: usize) -> Result<(String, Value), String> {
        let life = self.board.door(frontend).ok_or_else(|| format!("frontend-{frontend} does not run"))?;
        let metrics = get(life.address, "/metrics", PAGE_LIMIT).await?;
        let status = get(life.address, "/status.json", PAGE_LIMIT).await?;
        Ok((metrics, whole(&status).ok_or_else(|| format!("not JSON: {status}"))?))
    }

    /// Every case, undisturbed.
    async fn reference(self: &Arc<Self>) -> Result<Vec<Answer>, String> {
        let answers = self.ask_all().await;
        for (case, answer) in self.cases.iter().zip(&answers) {
            let verdict = judge(answer, answer, Circumstances::default());
            if verdict != Verdict::Same || answer.texts.iter().any(String::is_empty) {
                return Err(format!("undisturbed, {} {} is {verdict:?}: {answer:?}", case.path, case.body));
            }
        }
        Ok(answers)
    }

    async fn ask_all(self: &Arc<Self>) -> Vec<Answer> {
        const AT_ONCE: usize = 6;
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        for number in 0..self.cases.len() {
            let (campaign, permits) = (Arc::clone(self), Arc::clone(&permits));
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                let case = &campaign.cases[number];
                let Some(life) = campaign.board.door(number % campaign.frontends) else {
                    return (number, Answer::default());
                };
                (number, ask(life.address, case.path, &case.body, Manner::Plain, STREAM_LIMIT).await)
            });
        }
        let mut answers = tasks.join_all().await;
        answers.sort_by_key(|(number, _)| *number);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Clients and troubles.
    async fn disturb(
        self: &Arc<Self>,
        options: &Options,
        fleet: &Fleet,
        members: Vec<Member>,
        expected: &Arc<Vec<Answer>>,
    ) -> Vec<Member> {
        let duration = options.duration();
        let begun = Instant::now();
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let steps = if options.calm { Vec::new() } else { schedule::plan(options.seed, fleet, duration_ms) };
        self.board.log.tell(&format!("{} steps, {} streams", steps.len(), options.streams));
        let living = all(members, |member| {
            let steps: Vec<Step> =
                steps.iter().filter(|step| step.member == member.number()).copied().collect();
            member.live(steps, begun)
        });
        let visits = visits(options.seed, &self.cases, self.frontends, options.streams, duration);
        let (mut members, tally) = tokio::join!(living, self.receive(visits, begun, expected));
        members.iter_mut().for_each(Member::check);
        self.tell(&tally);
        members
    }

    async fn receive(
        self: &Arc<Self>,
        visits: Vec<Visit>,
        begun: Instant,
        expected: &Arc<Vec<Answer>>,
    ) -> Tally {
        let permits = Arc::new(Semaphore::new(CLIENTS_AT_ONCE));
        let of_a_model = Arc::new(Semaphore::new(OF_A_MODEL_AT_ONCE));
        let mut tasks = JoinSet::new();
        let mut tally = Tally::default();
        let mut told = Instant::now();
        for (number, visit) in visits.into_iter().enumerate() {
            sleep_until(begun + visit.at).await;
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let (campaign, expected) = (Arc::clone(self), Arc::clone(expected));
            let waits =
                (self.cases[visit.case].group == Group::ModelWorkers).then(|| Arc::clone(&of_a_model));
            tasks.spawn(async move {
                let _turn = match &waits {
                    Some(turns) => turns.acquire().await.ok(),
                    None => None,
                };
                let seen = campaign.visit(number, &visit, &expected).await;
                drop(permit);
                seen
            });
            while let Some(Ok(seen)) = tasks.try_join_next() {
                tally.add(&seen);
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                self.board.log.tell(&format!("{} running, {:?}", tasks.len(), tally.verdicts));
            }
        }
        tasks.join_all().await.into_iter().for_each(|seen| tally.add(&seen));
        tally
    }

    async fn visit(&self, number: usize, visit: &Visit, expected: &[Answer]) -> Seen {
        let case = &self.cases[visit.case];
        let mut redirected = 0;
        loop {
            let door = (0..self.frontends)
                .find_map(|turn| self.board.door((visit.frontend + redirected + turn) % self.frontends));
            if let Some(life) = door {
                let answer = ask(life.address, case.path, &case.body, visit.manner, STREAM_LIMIT).await;
                let killed = life.killed.load(Ordering::Acquire);
                let is_going = killed || life.leaving.load(Ordering::Acquire);
                let is_overdue = matches!(answer.end, End::Overdue(_));
                let is_refused = matches!(answer.end, End::Refused(503, _));
                let is_unserved = !is_overdue && (!answer.has_begun || is_refused);
                if !(is_unserved && is_going && redirected < DOORS_TRIED) {
                    let circumstances = Circumstances { may_end: case.may_end, frontend_killed: killed };
                    let verdict = judge(&expected[visit.case], &answer, circumstances);
                    let seen = Seen { verdict, redirected, gap: answer.longest_gap, manner: visit.manner };
                    self.note(number, visit, life.address, &seen);
                    return seen;
                }
            } else if redirected >= DOORS_TRIED {
                let verdict = Verdict::Fault("no frontend takes it".into());
                self.board.log.fault(Law::Streams, format!("stream {number}: no frontend takes it"));
                return Seen { verdict, redirected, gap: Duration::ZERO, manner: visit.manner };
            }
            redirected += 1;
            sleep(NEXT_DOOR).await;
        }
    }

    fn note(&self, number: usize, visit: &Visit, frontend: SocketAddr, seen: &Seen) {
        let Verdict::Fault(fault) = &seen.verdict else { return };
        let law = if fault.contains("HANGS") { Law::Ends } else { Law::Streams };
        let case = &self.cases[visit.case];
        let what = format!(
            "stream {number} (case {}, begun {:.3} s into it, {:?}, {frontend}{}): {fault}",
            visit.case,
            visit.at.as_secs_f64(),
            visit.manner,
            case.path
        );
        self.board.log.note(&format!("stream {number} asked {}", case.body));
        self.board.log.fault(law, what);
    }

    fn tell(&self, tally: &Tally) {
        let log = &self.board.log;
        log.tell(&format!("streams: {:?}, {} sent to another frontend", tally.verdicts, tally.redirected));
        let mut gaps = tally.gaps.clone();
        gaps.sort_unstable();
        let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).copied().unwrap_or_default();
        let longest = gaps.last().copied().unwrap_or_default();
        let (median, most) = (at(0.5), at(0.99));
        log.tell(&format!(
            "longest gap of a stream that was read at once: {median:.2?} (median), {most:.2?} (99 %), {longest:.2?} (longest)"
        ));
    }

    /// Everything is answered as before.
    async fn afterwards(self: &Arc<Self>, expected: &[Answer]) {
        let answers = self.ask_all().await;
        let mut same = 0;
        for (number, (found, expected)) in answers.iter().zip(expected).enumerate() {
            match judge(expected, found, Circumstances::default()) {
                Verdict::Same => same += 1,
                verdict => {
                    self.board.log.fault(Law::Found, format!("afterwards, case {number}: {verdict:?}"));
                }
            }
        }
        self.board.log.tell(&format!("{same} of {} answers afterwards as before", expected.len()));
    }
}

struct Seen {
    verdict: Verdict,
    redirected: usize,
    gap: Duration,
    manner: Manner,
}

impl Tally {
    fn add(&mut self, seen: &Seen) {
        let name = match &seen.verdict {
            Verdict::Same => "the same",
            Verdict::Left => "client left",
            Verdict::Lost => "frontend killed",
            Verdict::Ended => "ended by the rules",
            Verdict::Fault(_) => "WRONG",
        };
        *self.verdicts.entry(name).or_default() += 1;
        self.redirected += usize::from(seen.redirected > 0);
        if seen.verdict == Verdict::Same && seen.manner == Manner::Plain {
            self.gaps.push(seen.gap);
        }
    }
}

fn whole(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

/// Frontends first: what they have accepted needs the workers. The store last: those who leave say so.
async fn finish(mut members: Vec<Member>, fleet: &Fleet) {
    let stores = members.split_off(members.len().min(fleet.frontends + fleet.workers()));
    let workers = members.split_off(members.len().min(fleet.frontends));
    for group in [members, workers, stores] {
        all(group, async |mut member| {
            member.check();
            member.terminate();
            member.end().await;
            member
        })
        .await;
    }
}

/// What a frontend logs when an answer moves.
const MOVES: &str = "the answer moves to another worker";

/// What the processes said: a task that panics does not end its process, and a frontend that was killed shows no metrics.
fn read_logs(log: &Log, options: &Options) {
    let mut moves = 0;
    for entry in std::fs::read_dir(log.folder()).into_iter().flatten().flatten() {
        if entry.file_name() == "campaign.log" {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        moves += text.lines().filter(|line| line.contains(MOVES)).count();
        if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
            log.fault(Law::Processes, format!("{}: {line}", entry.path().display()));
        }
    }
    log.tell(&format!("answers moved {moves} times"));
    let is_long = options.duration() >= Duration::from_secs(60) && options.streams >= 200;
    if moves == 0 && !options.calm && is_long {
        log.fault(Law::Moved, "no answer moved: nothing was disturbed".into());
    }
}

/// For a person who wants to know before.
pub(crate) fn schedule_of(options: &Options) -> Vec<String> {
    let fleet = options.fleet();
    let duration_ms = u64::try_from(options.duration().as_millis()).unwrap_or(u64::MAX);
    let steps = schedule::plan(options.seed, &fleet, duration_ms);
    let line = |step: &Step| {
        format!("{:9.3} s  {}: {}", step.at_ms as f64 / 1000.0, fleet.name(step.member), step.action)
    };
    steps.iter().map(line).collect()
}
