//! The rules of `users.md` that a frontend answers for, each over its whole class: every route, streamed and not, over
//! a real socket, against workers that do exactly what the test says.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cancel;
mod client;
mod dialects;
mod faults;
mod harness;
mod keys;
mod models;
mod page;
mod requests;
mod routing;
mod said;
mod split;
mod surface;
mod text;
mod tokenize;
