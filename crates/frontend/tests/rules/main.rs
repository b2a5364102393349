//! The rules of `users.md` that a frontend answers for, each over its whole class: every route, streamed and not, over
//! a real socket, against workers that do exactly what the test says.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bodies;
mod cancel;
mod candidates;
mod client;
mod dialects;
mod drain;
mod embeddings;
mod faults;
mod forced;
mod grpc;
mod harness;
mod health;
mod keys;
mod kserve;
mod laws;
mod migration;
mod models;
mod nvext;
mod page;
mod patience;
mod requests;
mod roster;
mod routing;
mod said;
mod selection;
mod shedding;
mod split;
mod stages;
mod strict;
mod surface;
mod text;
mod thinking;
mod tls;
mod tokenize;
mod tracing;
mod wire;
