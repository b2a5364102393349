//! The rules of `users.md` that a frontend answers for, each over its whole class: every route, streamed and not, over
//! a real socket, against workers that do exactly what the test says.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cancel;
mod client;
mod faults;
mod harness;
mod models;
mod requests;
mod routing;
mod surface;
mod text;
