//! Chat templates against Python's Jinja2: expressions, whole styles of families, and the bounds on what a template may
//! cost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod expressions;
mod styles;
