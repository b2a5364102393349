//! The HTTP frontend: sockets, routes, the model view, and the one pipeline behind every API: translate, render,
//! tokenise, choose a worker, stream. A new API is one module under `api`. gRPC has a port and a transport of its own.
//!
//! It must never know how an engine works, how requests and events are carried, or how a worker is chosen: it asks the
//! request plane, the event plane, discovery and the router.

mod api;
mod aside;
mod best;
mod body;
mod catalog;
mod compute;
mod config;
mod connection;
mod course;
mod dispatch;
mod error;
mod facts;
mod frame;
mod generate;
mod generation;
mod grpc;
mod hints;
mod http;
mod identity;
mod keys;
mod metrics;
mod migration;
mod model;
mod page;
mod patience;
mod plan;
mod prepare;
mod record;
mod routes;
mod selection;
mod server;
mod service;
mod shared;
mod socket;
mod stall;
mod status;
mod stream;
mod thinking;
mod tls;
mod trace;
mod watch;

pub use config::Config;
pub use error::Error;
pub use routes::routes;
pub use selection::Config as SelectionConfig;
pub use server::{Frontend, Ledger, Services};
