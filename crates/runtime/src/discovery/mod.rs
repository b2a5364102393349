//! Discovery: who serves what (DESIGN 3.6).
//!
//! A back end keeps a [`View`], its last known picture of the fleet, and feeds it from its store. Watchers read the
//! view: a full list first, then changes, and a full list again whenever changes were lost, so a view that converges
//! makes every watcher converge (R25, R26). Loss of the store leaves the view as it was and never stops serving.

#[cfg(test)]
mod conformance;
pub mod etcd;
pub mod file;
mod layout;
mod memory;
mod view;

pub use etcd::Etcd;
pub use file::File;
pub use memory::{Memory, Options};
pub use view::{View, Watch};

use crate::BoxFuture;
use dynamo_types::{InstanceId, ModelRecord};

/// A store of records, shared by the processes of one deployment.
pub trait Discovery: Send + Sync {
    /// Publishes a record until the guard is dropped. Refused when it contradicts what is registered ([`check`]).
    fn register(&self, record: ModelRecord) -> BoxFuture<'_, Result<Registration, Error>>;

    /// Starts watching all records. Never fails: a store that cannot be reached shows as the last known view, and
    /// its changes arrive once it can.
    fn watch(&self) -> BoxFuture<'_, Watch>;

    /// Completes when the store knows of all that was withdrawn, which may be never if it cannot be reached. A process
    /// that ends before leaves records behind until their lease ends.
    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Everything there is: whoever is not in it is gone. Comes first, and again whenever changes may have been lost.
    List(Vec<ModelRecord>),
    /// A new record, or a new state of a known one.
    Put(ModelRecord),
    /// The instance is gone.
    Delete(InstanceId),
}

/// What a back end keeps for one registered record; dropping it withdraws the record.
pub trait Lease: Send + Sync {
    /// Marks the record as draining: it finishes what it has and gets nothing new (R27).
    fn set_draining(&self);

    /// Says what is wrong with the worker, or that nothing is any more; while something is, it gets nothing new.
    fn set_fault(&self, fault: Option<&str>);
}

/// A registered record. Dropping it withdraws the record.
pub struct Registration(Box<dyn Lease>);

impl Registration {
    pub fn new(lease: impl Lease + 'static) -> Self {
        Self(Box::new(lease))
    }

    /// Marks the record as draining: it finishes what it has and gets nothing new (R27).
    pub fn set_draining(&self) {
        self.0.set_draining();
    }

    /// Says what is wrong with the worker, or that nothing is any more; while something is, it gets nothing new.
    pub fn set_fault(&self, fault: Option<&str>) {
        self.0.set_fault(fault);
    }
}

/// Why a record was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Another worker of the same model hashes blocks differently (R35).
    Contract { model: String, instance: InstanceId, existing: String, offered: String },
    /// The id is taken.
    Duplicate(InstanceId),
    /// The store holds as many records as it may.
    Full { limit: usize },
    /// The store cannot be reached, or refused; the text says why.
    Store(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Contract { model, instance, existing, offered } => write!(
                f,
                "worker {instance} cannot serve model {model}: its blocks are ({offered}), those of the workers \
                 that serve it are ({existing})"
            ),
            Self::Duplicate(instance) => write!(f, "instance id {instance} is registered already"),
            Self::Full { limit } => write!(f, "discovery holds {limit} records, which is its limit"),
            Self::Store(reason) => write!(f, "discovery store: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// May `offered` join `existing`? All workers of a model in a namespace must share one block contract, else prefixes
/// would silently never match (R35).
pub fn check<'a>(
    existing: impl IntoIterator<Item = &'a ModelRecord>,
    offered: &ModelRecord,
) -> Result<(), Error> {
    for record in existing {
        if record.instance.id == offered.instance.id {
            return Err(Error::Duplicate(record.instance.id));
        }
        let same_model =
            record.card.name == offered.card.name && record.instance.namespace == offered.instance.namespace;
        if same_model && record.card.blocks != offered.card.blocks {
            let describe = |record: &ModelRecord| {
                let blocks = &record.card.blocks;
                format!(
                    "block size {}, algorithm {}, version {}",
                    blocks.block_size, blocks.algorithm, blocks.version
                )
            };
            return Err(Error::Contract {
                model: offered.card.name.to_string(),
                instance: offered.instance.id,
                existing: describe(record),
                offered: describe(offered),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod fixture {
    use dynamo_types::{
        BlockContract, Instance, InstanceId, ModelCard, ModelRecord, TokenizerSpec, Transport,
    };
    use std::sync::Arc;

    pub(crate) fn record(id: u64, model: &str, block_size: u32) -> ModelRecord {
        ModelRecord {
            instance: Instance {
                namespace: "dynamo".into(),
                component: "backend".into(),
                endpoint: "generate".into(),
                id: InstanceId(id),
                transport: Transport::InProcess,
                draining: false,
                fault: None,
            },
            card: Arc::new(ModelCard {
                name: model.into(),
                aliases: vec![],
                architecture: "mock".into(),
                context_length: 1024,
                vocab_size: 256,
                tokenizer: TokenizerSpec::Bytes { pieces: vec![] },
                chat_template: None,
                special: Default::default(),
                blocks: BlockContract::xxh3(block_size),
                layout: None,
                total_kv_blocks: 64,
                max_num_seqs: 8,
                max_num_batched_tokens: 512,
                kv_events: true,
                guided: false,
                limits_thinking: false,
                tool_parser: None,
                reasoning_parser: None,
                tasks: vec![dynamo_types::Task::Generate],
                embedding_size: None,
                created_s: 0,
            }),
        }
    }
}
