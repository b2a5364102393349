//! Follows whoever is in discovery.

use super::caller::{Caller, Follow};
use crate::discovery::{Discovery, Event, Watch};
use dynamo_types::{Instance, InstanceId, ModelRecord, Transport};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Keeps a connection to every worker that discovery knows and takes in their events. Dropping it stops that.
pub struct Fleet(AbortHandle);

impl Fleet {
    pub fn follow(discovery: Arc<dyn Discovery>, caller: Caller) -> Self {
        let following = async move {
            let watch = discovery.watch().await;
            run(watch, &caller).await;
        };
        Self(tokio::spawn(following).abort_handle())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A worker that is followed, and where.
struct Followed {
    transport: Transport,
    _follow: Follow,
}

async fn run(mut watch: Watch, caller: &Caller) {
    let mut followed: FxHashMap<InstanceId, Followed> = FxHashMap::default();
    while let Some(event) = watch.next().await {
        match event {
            Event::List(records) => {
                followed.retain(|id, _| records.iter().any(|record| record.instance.id == *id));
                records.iter().for_each(|record| put(&mut followed, &record.instance, caller));
            }
            Event::Put(ModelRecord { instance, .. }) => put(&mut followed, &instance, caller),
            Event::Delete(id) => {
                followed.remove(&id);
            }
        }
    }
}

fn put(followed: &mut FxHashMap<InstanceId, Followed>, instance: &Instance, caller: &Caller) {
    if followed.get(&instance.id).is_some_and(|known| known.transport == instance.transport) {
        return;
    }
    if let Some(follow) = caller.follow(instance) {
        let transport = instance.transport.clone();
        followed.insert(instance.id, Followed { transport, _follow: follow });
    }
}
