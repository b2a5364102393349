//! Chooses the worker rank for each request by cached prefix and booked load, and keeps the books.
//!
//! It must never know how requests travel, where workers are, or what time it is: clock and seed are arguments.

mod booking;
mod choose;
mod config;
mod contract;
mod cost;
mod health;
mod outlier;
mod peers;
mod query;
mod router;
mod state;
mod thresholds;

pub use booking::Booking;
pub use config::{Config, Mode};
pub use contract::check_contract;
pub use cost::{CostInputs, cost, uncached_tokens};
pub use dynamo_kv_index::{Applied, Gap, Overlap};
pub use outlier::{Outlier, Reason};
pub use query::{BookedLoad, IndexSize, Lap, Laps, PotentialLoad, Query, Selection, Terms};
pub use router::Router;
pub use thresholds::Thresholds;
