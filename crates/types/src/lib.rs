//! The words every other crate speaks: requests, deltas, errors, block identity, model cards, events and records.
//!
//! It must never know how anything is transported, scheduled, rendered or stored: no I/O, no clock, no async, no
//! randomness that is not passed in.

pub mod card;
pub mod delta;
pub mod draw;
pub mod error;
pub mod event;
pub mod guide;
pub mod hash;
pub mod ids;
pub mod nearest;
pub mod placement;
pub mod record;
pub mod request;
pub mod thinking;
pub mod trace;

pub use card::{BlockContract, ChatTemplate, KvLayout, ModelCard, SpecialTokens, TokenizerSpec};
pub use delta::{Delta, DeltaSink, FinishReason, TokenLogprob};
pub use error::{Class, Error, Result, Side};
pub use event::{KvEvent, KvEventBatch, Load, StepObserver, StepReport, StorageTier, StoredBlock};
pub use guide::{BoundCall, BoundCalls, Frame, Guide, Reasoning};
pub use ids::{InstanceId, RequestId, WorkerRank};
pub use placement::{Placement, Placements};
pub use record::{Instance, ModelRecord, Transport};
pub use request::{OutputOptions, Request, RoutingHints, Sampling, Stopping, Task};
pub use thinking::{Spelling, ThinkingLimit, ThinkingMeter};
pub use trace::{SpanId, TraceContext, TraceId};
