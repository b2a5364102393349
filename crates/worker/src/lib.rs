//! Workers: an engine, made reachable on the request plane and known in discovery.
//!
//! [`Engine`] is what an engine has to be; the adapters are [`embedded`] (real tokens), [`mock`] (real scheduling, made-up
//! tokens and times) and [`scripted`] (exactly what a script says). [`Worker`] serves one on the request plane, publishes
//! its KV events and load, and registers it once it can answer.
//!
//! It must never know about HTTP, text, templates or how a worker is chosen.

mod admission;
pub mod canary;
mod card;
pub mod clock;
pub mod embedded;
mod engine;
mod metrics;
pub mod mock;
mod publisher;
pub mod scripted;
mod traced;
mod worker;

pub use admission::Limits;
pub use clock::{Clock, ManualClock, RealClock};
pub use engine::Engine;
pub use metrics::Metrics;
pub use worker::{Drained, Error, Services, Worker, WorkerOptions};
