//! R01-R22 over the whole class: random answers in random pieces, on every route, streamed and not. How many cases there
//! are is listed in docs/conformance.md, which is made from these files.

mod bodies;
mod cases;
mod faults;
mod fixtures;
mod leave;
mod split;
mod stage;
mod text;
