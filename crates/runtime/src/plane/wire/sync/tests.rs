use super::super::super::conformance::eventually;
use super::super::{Caller, Follow, Options};
use super::*;
use crate::events::Local;
use crate::plane::InProcess;
use crate::plane::tcp::{Dialer, Server, Tls};
use dynamo_types::{Instance, Transport, WorkerRank};
use std::sync::Arc;
use tokio::net::TcpListener;

fn placement(worker: u64, prefill_tokens: u64, blocks: usize) -> Placement {
    Placement {
        target: WorkerRank::new(InstanceId(worker), 0),
        prefill_tokens,
        blocks: (0..blocks as u64).collect(),
        anonymous_blocks: 0,
        output_millis: 0,
    }
}

fn caller(options: &Options, peers: &Peers) -> Caller {
    let (events, dialer) = (Arc::new(Local::default()), Arc::new(Dialer::default()));
    Caller::with_peers(options.clone(), events, dialer, Some(peers.clone()))
}

/// A worker process with two workers.
struct Site {
    server: Server,
    options: Options,
}

impl Site {
    async fn with(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (plane, events) = (InProcess::default(), Arc::new(Local::default()));
        let server = Server::start(listener, &plane, events, options.clone(), Tls::default()).unwrap();
        Self { server, options }
    }

    fn frontend(&self) -> Front {
        let peers = Peers::new();
        let caller = caller(&self.options, &peers);
        Front { peers, follows: Vec::new(), caller }
    }

    fn instance(&self, id: u64) -> Instance {
        Instance {
            namespace: "dynamo".into(),
            component: "backend".into(),
            endpoint: "generate".into(),
            id: InstanceId(id),
            transport: Transport::Tcp(self.server.local_addr().to_string()),
            draining: false,
            fault: None,
        }
    }
}

struct Front {
    peers: Peers,
    follows: Vec<Follow>,
    caller: Caller,
}

impl Front {
    fn follow(&mut self, site: &Site, id: u64) {
        self.follows.push(self.caller.follow(&site.instance(id)).unwrap());
    }

    fn place(&self, placement: Placement) -> u64 {
        self.peers.placements().placed(placement)
    }

    /// What it would hear were it to begin now.
    fn hears(&self) -> Vec<Placement> {
        let news = self.peers.heard().reader(None, None).take(usize::MAX, usize::MAX);
        news.put.into_iter().map(|(_, placement)| placement).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frontends_hear_of_each_other_through_the_worker_and_not_of_themselves() {
    let site = Site::with(Options::default()).await;
    let (mut a, mut b) = (site.frontend(), site.frontend());
    // Before there is a connection, and before the worker is followed.
    let early = a.place(placement(1, 50, 3));
    a.place(placement(99, 1, 1));
    a.follow(&site, 1);
    b.follow(&site, 1);
    eventually("b hears of it", || b.hears() == [placement(1, 50, 3)]).await;
    a.peers.placements().changed(early, 0, 7);
    eventually("and of its change", || b.hears() == [Placement { output_millis: 7, ..placement(1, 0, 3) }])
        .await;
    let second = a.place(placement(2, 8, 0));
    b.place(placement(1, 9, 1));
    eventually("a hears of b", || a.hears() == [placement(1, 9, 1)]).await;
    assert_eq!(b.hears().len(), 1, "nobody is told of workers that are not behind the connection");
    a.follow(&site, 2);
    eventually("another worker behind the same connection", || b.hears().len() == 2).await;
    a.peers.placements().ended(early);
    a.peers.placements().ended(second);
    eventually("what is over is gone", || b.hears().is_empty()).await;
    assert_eq!(a.hears(), [placement(1, 9, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_frontend_placed_ends_with_it_and_comes_back_with_its_connection() {
    let site = Site::with(Options::default()).await;
    let (mut a, mut b) = (site.frontend(), site.frontend());
    a.follow(&site, 1);
    b.follow(&site, 1);
    for n in 0..20 {
        a.place(placement(1, n, 2));
    }
    eventually("b hears of all", || b.hears().len() == 20).await;
    // b's connection ends: it knows nothing of a worker that it does not hear.
    b.follows.clear();
    b.caller = caller(&site.options, &b.peers);
    eventually("what was heard ends with the connection", || b.hears().is_empty()).await;
    b.follow(&site, 1);
    eventually("and is there again", || b.hears().len() == 20).await;
    // a's connection is made anew while the worker may not have noticed the end of the other.
    a.caller = caller(&site.options, &a.peers);
    a.follows.clear();
    a.follow(&site, 1);
    a.place(placement(1, 77, 0));
    eventually("nothing counts twice", || b.hears().len() == 21).await;
    drop(a);
    eventually("and nothing is left of the dead", || b.hears().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_one_frame_comes_in_several() {
    let site = Site::with(Options { max_frame_bytes: 4096, ..Options::default() }).await;
    let (mut a, mut b) = (site.frontend(), site.frontend());
    let ids: Vec<u64> = (0..3000).map(|n| a.place(placement(1, n, 3))).collect();
    let huge = a.place(placement(1, 5, 5000));
    a.follow(&site, 1);
    b.follow(&site, 1);
    eventually("all but what does not fit", || b.hears().len() == 3000).await;
    ids.into_iter().chain([huge]).for_each(|id| a.peers.placements().ended(id));
    eventually("all gone", || b.hears().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_take_part_is_left_alone() {
    let site = Site::with(Options::default()).await;
    let (mut a, mut b) = (site.frontend(), site.frontend());
    let silent = Caller::new(site.options.clone(), Arc::new(Local::default()), Arc::new(Dialer::default()));
    let _follow = silent.follow(&site.instance(1)).unwrap();
    a.follow(&site, 1);
    b.follow(&site, 1);
    a.place(placement(1, 5, 5));
    eventually("b hears", || b.hears().len() == 1).await;
    assert_eq!(silent.connection_count(), 1);
}
