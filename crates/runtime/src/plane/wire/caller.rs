//! The caller's side of all connections.

use super::link::{Followed, Link};
use super::{Dial, Error, Options};
use crate::BoxFuture;
use crate::bookings::Peers;
use crate::events::Local;
use crate::pause::Pause;
use crate::plane::{DeltaStream, RequestPlane};
use crate::sync::lock;
use dynamo_types::{self as types, Instance, InstanceId, Request, Result, Transport};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex};
use tokio::task::AbortHandle;

/// Calls workers of other processes, one connection to each. Clones share the connections; the last one ends them.
#[derive(Clone)]
pub struct Caller {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    dial: Arc<dyn Dial>,
    /// By where they lead. Connections that ended stay until the next one is made.
    links: Mutex<FxHashMap<Transport, Running>>,
    followed: Arc<Followed>,
}

/// A link and the task that carries it.
struct Running {
    link: Arc<Link>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Caller {
    /// `events`: where the events of followed workers go.
    pub fn new(options: Options, events: Arc<Local>, dial: Arc<dyn Dial>) -> Self {
        Self::with_peers(options, events, dial, None)
    }

    /// Says what this process places on followed workers, and hears what others do.
    pub fn with_peers(
        options: Options,
        events: Arc<Local>,
        dial: Arc<dyn Dial>,
        peers: Option<Peers>,
    ) -> Self {
        let followed = Arc::new(Followed { events, peers, instances: Mutex::default() });
        Self { inner: Arc::new(Inner { options, dial, links: Mutex::default(), followed }) }
    }

    /// Keeps a connection to the instance and takes in its events, until the guard is dropped. Then its sources are
    /// forgotten. None for instances that are not reached like this.
    pub fn follow(&self, instance: &Instance) -> Option<Follow> {
        let to = instance.transport.clone();
        if !self.inner.dial.reaches(&to) {
            return None;
        }
        {
            let mut instances = lock(&self.inner.followed.instances);
            let (known, followers) = instances.entry(instance.id).or_insert_with(|| (to.clone(), 0));
            known.clone_from(&to);
            *followers += 1;
        }
        let inner = Arc::clone(&self.inner);
        // A connection that is there already may have sent what nobody wanted then.
        inner.link(&to).subscribe();
        let task = tokio::spawn(async move { inner.keep(&to).await }).abort_handle();
        Some(Follow { followed: Arc::clone(&self.inner.followed), instance: instance.id, task })
    }

    /// Connections that have not ended.
    pub fn connection_count(&self) -> usize {
        lock(&self.inner.links).values().filter(|running| !running.link.has_ended()).count()
    }
}

impl Inner {
    /// The connection that leads there, a new one if there is none.
    fn link(&self, to: &Transport) -> Arc<Link> {
        let mut links = lock(&self.links);
        if let Some(running) = links.get(to)
            && !running.link.has_ended()
        {
            return Arc::clone(&running.link);
        }
        links.retain(|_, running| !running.link.has_ended());
        let link = Link::new(self.options.clone());
        link.subscribe();
        let carrying = Arc::clone(&link).run(to.clone(), Arc::clone(&self.dial), Arc::clone(&self.followed));
        let task = tokio::spawn(carrying).abort_handle();
        links.insert(to.clone(), Running { link: Arc::clone(&link), task });
        link
    }

    async fn keep(&self, to: &Transport) {
        let mut pause = Pause::default();
        let mut complaint = None;
        loop {
            let begun = tokio::time::Instant::now();
            let link = self.link(to);
            link.end().await;
            complaint = complain(to, link.fault(), complaint);
            pause.lasted(begun.elapsed());
            pause.wait().await;
        }
    }
}

/// Says once why a worker cannot be called, if waiting will not mend it.
fn complain(to: &Transport, fault: Option<Error>, before: Option<Error>) -> Option<Error> {
    match fault {
        Some(fault @ (Error::Tls(_) | Error::Refused(_))) => {
            if before.as_ref() != Some(&fault) {
                tracing::warn!("the worker at {to} cannot be called: {fault}");
            }
            Some(fault)
        }
        _ => before,
    }
}

impl RequestPlane for Caller {
    fn call<'a>(
        &'a self,
        instance: &'a Instance,
        request: Arc<Request>,
    ) -> BoxFuture<'a, Result<DeltaStream>> {
        if !self.inner.dial.reaches(&instance.transport) {
            let error = types::Error::disconnected("there is no way from here to the chosen worker")
                .with_detail(instance.transport.to_string());
            return Box::pin(std::future::ready(Err(error)));
        }
        let stream = self
            .inner
            .link(&instance.transport)
            .open(instance.id, request)
            .map(|(receiver, guard)| DeltaStream::new(receiver).with_guard(guard));
        Box::pin(std::future::ready(stream))
    }

    fn agent(&self, instance: &Instance) -> Option<Arc<str>> {
        lock(&self.inner.links).get(&instance.transport)?.link.agent()
    }
}

/// Keeps following a worker. Dropping it forgets what it said.
pub struct Follow {
    followed: Arc<Followed>,
    instance: InstanceId,
    task: AbortHandle,
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
        let mut instances = lock(&self.followed.instances);
        if let Some((_, count)) = instances.get_mut(&self.instance) {
            *count -= 1;
            if *count == 0 {
                instances.remove(&self.instance);
                self.followed.events.retire_worker(self.instance);
            }
        }
    }
}
