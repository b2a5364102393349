//! What every worker must do on the wire, whatever it is written in: the suite speaks to it by hand-made frames.

use super::super::conformance::{Subject, eventually, last, request};
use super::super::wire::frame::{
    self, Batch, Beat, Cancel, Events, GoAway, Hello, Item, Kind, Open, Reader, Subscribe,
};
use super::super::wire::{self, Error};
use crate::events::{Mirror, Position};
use dynamo_types::{InstanceId, Transport, WorkerRank};
use serde::Serialize;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Only bounds a failing test.
const PATIENCE: Duration = Duration::from_secs(30);

const SOURCE: WorkerRank = WorkerRank::new(InstanceId(1), 0);

/// `report` has the engine store a block of this hash.
pub(super) async fn every_case(subject: &Subject, report: &(dyn Fn(u64) + Sync)) {
    another_version_is_refused(subject).await;
    a_large_hello_is_not_waited_for(subject).await;
    pings_are_answered_and_silence_is_broken(subject).await;
    what_is_not_known_is_skipped(subject).await;
    a_request_that_is_not_understood_costs_itself_only(subject).await;
    a_stream_begun_twice_ends_the_connection_and_both(subject).await;
    frames_are_as_small_as_the_caller_wants_them(subject).await;
    a_cancelled_stream_ends_and_others_go_on(subject).await;
    a_caller_that_hangs_is_let_go(subject).await;
    r32_subscribers_get_what_they_miss(subject, report).await;
}

/// A connection by hand.
struct Wire {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// An open with a field of the future.
#[derive(Serialize)]
struct NewerOpen<R> {
    stream: u64,
    colour: &'static str,
    instance: InstanceId,
    request: R,
}

fn hello() -> Hello {
    wire::hello(&wire::Options::default(), None)
}

fn open(stream: u64) -> Open {
    Open { stream, instance: InstanceId(1), request: request(&[stream as u32]), written_unix_ns: None }
}

impl Wire {
    async fn connect(subject: &Subject) -> Self {
        let Transport::Tcp(address) = &subject.transport else { panic!("a worker behind TCP") };
        let (read, writer) = TcpStream::connect(address).await.unwrap().into_split();
        Self { reader: Reader::new(read, 1 << 20, PATIENCE), writer }
    }

    /// After the hellos.
    async fn greeted(subject: &Subject, max_frame_bytes: u64) -> Self {
        let mut wire = Self::connect(subject).await;
        wire.reader.set_limit(max_frame_bytes as usize);
        wire.send(Kind::Hello, &Hello { max_frame_bytes, ..hello() }).await;
        let answer: Hello = frame::parse(&wire.until(Kind::Hello).await).unwrap();
        assert_eq!(answer.version, frame::VERSION);
        wire
    }

    async fn send<T: Serialize>(&mut self, kind: Kind, body: &T) {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, kind, body, usize::MAX).unwrap();
        self.writer.write_all(&bytes).await.unwrap();
    }

    /// The next frame of this kind.
    async fn until(&mut self, wanted: Kind) -> Vec<u8> {
        loop {
            let (kind, body) = self.reader.next().await.unwrap().expect("the connection goes on");
            if kind == wanted {
                return body.to_vec();
            }
        }
    }

    async fn items(&mut self, count: usize) -> Vec<Item> {
        let mut items = Vec::new();
        while items.len() < count {
            items.append(&mut frame::parse::<Batch>(&self.until(Kind::Batch).await).unwrap().items);
        }
        items
    }

    /// Reads until the worker has closed the connection.
    async fn end(&mut self) {
        loop {
            match self.reader.next().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(Error::Io(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn another_version_is_refused(subject: &Subject) {
    let mut wire = Wire::connect(subject).await;
    wire.send(Kind::Hello, &Hello { version: 99, ..hello() }).await;
    let GoAway { reason } = frame::parse(&wire.until(Kind::GoAway).await).unwrap();
    assert!(reason.contains("version 99") && reason.contains("version 1"), "{reason}");
    wire.end().await;
}

async fn a_large_hello_is_not_waited_for(subject: &Subject) {
    let mut wire = Wire::connect(subject).await;
    let head = [&(1u32 << 20).to_be_bytes()[..], &[Kind::Hello as u8]].concat();
    wire.writer.write_all(&head).await.unwrap();
    wire.end().await;
}

async fn pings_are_answered_and_silence_is_broken(subject: &Subject) {
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    for number in [7, u64::MAX] {
        wire.send(Kind::Ping, &Beat { number }).await;
        while frame::parse::<Beat>(&wire.until(Kind::Pong).await).unwrap().number != number {}
    }
    assert_eq!(frame::parse::<Beat>(&wire.until(Kind::Pong).await).unwrap().number, 0, "a sign of life");
}

async fn what_is_not_known_is_skipped(subject: &Subject) {
    subject.stage.serve();
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    wire.writer.write_all(&[0, 0, 0, 3, 200, 1, 2]).await.unwrap();
    let newer = NewerOpen { stream: 3, colour: "green", instance: InstanceId(1), request: request(&[3]) };
    wire.send(Kind::Open, &newer).await;
    subject.has(1).await;
    subject.stage.push(3, last(&[9]));
    let items = wire.items(1).await;
    assert_eq!((items[0].stream, &items[0].delta), (3, &last(&[9])));
}

async fn a_request_that_is_not_understood_costs_itself_only(subject: &Subject) {
    subject.stage.serve();
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    let newer = NewerOpen { stream: 4, colour: "red", instance: InstanceId(1), request: "of another shape" };
    wire.send(Kind::Open, &newer).await;
    let items = wire.items(1).await;
    assert_eq!(items[0].stream, 4);
    assert!(!items[0].error.as_ref().unwrap().retryable(), "every worker of this age would say so");
    wire.send(Kind::Open, &open(5)).await;
    subject.has(1).await;
    subject.stage.push(5, last(&[9]));
    assert_eq!(wire.items(1).await[0].delta, last(&[9]));
}

async fn a_stream_begun_twice_ends_the_connection_and_both(subject: &Subject) {
    subject.stage.serve();
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    wire.send(Kind::Open, &open(0)).await;
    subject.has(1).await;
    wire.send(Kind::Open, &open(0)).await;
    wire.end().await;
    eventually("the engine is told", || subject.stage.is_cancelled(0)).await;
}

async fn frames_are_as_small_as_the_caller_wants_them(subject: &Subject) {
    const LIMIT: u64 = 300;
    subject.stage.serve();
    subject.stage.flush();
    let mut wire = Wire::greeted(subject, LIMIT).await;
    for stream in 0..20 {
        wire.send(Kind::Open, &open(stream)).await;
    }
    subject.has(20).await;
    (0..19).for_each(|stream| subject.stage.push(stream, last(&[7])));
    subject.stage.push(19, last(&[70_000; 1000]));
    subject.stage.flush();
    let mut found = wire.items(20).await;
    found.sort_by_key(|item| item.stream);
    assert!(found[..19].iter().all(|item| item.delta == last(&[7])));
    let error = found[19].error.as_ref().unwrap();
    assert!(error.detail().unwrap().contains("limit 300"), "{error}");
}

async fn a_cancelled_stream_ends_and_others_go_on(subject: &Subject) {
    subject.stage.serve();
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    for stream in 0..2 {
        wire.send(Kind::Open, &open(stream)).await;
    }
    subject.has(2).await;
    wire.send(Kind::Cancel, &Cancel { streams: vec![0, 77] }).await;
    eventually("the engine is told", || subject.stage.is_cancelled(0)).await;
    assert!(!subject.stage.is_cancelled(1));
    subject.stage.push(1, last(&[9]));
    assert_eq!(wire.items(1).await[0].stream, 1);
}

async fn a_caller_that_hangs_is_let_go(subject: &Subject) {
    subject.stage.serve();
    let mut wire = Wire::greeted(subject, 1 << 20).await;
    wire.send(Kind::Open, &open(0)).await;
    subject.has(1).await;
    wire.end().await;
    eventually("its stream is cancelled", || subject.stage.is_cancelled(0)).await;
}

/// What a subscriber holds that gave these positions and read this far.
struct Heard {
    wire: Wire,
    mirror: Mirror,
    at: Option<Position>,
    snapshots: usize,
}

impl Heard {
    async fn subscribe(subject: &Subject, at: Option<Position>, mirror: Mirror) -> Self {
        let mut wire = Wire::greeted(subject, 1 << 20).await;
        let positions = at.into_iter().map(|at| (SOURCE, at)).collect();
        wire.send(Kind::Subscribe, &Subscribe { positions }).await;
        Self { wire, mirror, at, snapshots: 0 }
    }

    async fn blocks(mut self, count: usize) -> Self {
        while self.mirror.len() != count {
            for event in frame::parse::<Events>(&self.wire.until(Kind::Events).await).unwrap().events {
                let batch = match event {
                    frame::Event::Snapshot(batch) => {
                        self.snapshots += 1;
                        batch
                    }
                    frame::Event::Kv(batch) => {
                        let next = self.at.map(|at| (at.epoch, at.sequence + 1));
                        assert_eq!(Some((batch.epoch, batch.sequence)), next, "without a gap");
                        batch
                    }
                    frame::Event::Load(..) => continue,
                };
                assert_eq!(batch.source, SOURCE);
                self.at = Some(Position { epoch: batch.epoch, sequence: batch.sequence });
                batch.events.iter().for_each(|event| self.mirror.apply(event));
            }
        }
        self
    }
}

async fn r32_subscribers_get_what_they_miss(subject: &Subject, report: &(dyn Fn(u64) + Sync)) {
    subject.stage.serve();
    (1..=5).for_each(report);
    let late = Heard::subscribe(subject, None, Mirror::new(100)).await.blocks(5).await;
    assert_eq!(late.snapshots, 1, "a late start begins with all there is");
    report(6);
    let late = late.blocks(6).await;
    assert_eq!(late.snapshots, 1, "then comes what happens");
    let at = late.at;
    (7..=9).for_each(report);
    Heard::subscribe(subject, at, late.mirror).await.blocks(9).await;
    let elsewhere = at.map(|at| Position { epoch: at.epoch ^ 1, ..at });
    let lost = Heard::subscribe(subject, elsewhere, Mirror::new(100)).await.blocks(9).await;
    assert_eq!(lost.snapshots, 1, "it stood in another life of the worker");
}
