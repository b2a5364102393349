//! KServe's v2 inference service over gRPC, on a port of its own: the same requests, limits, keys and drain as over HTTP,
//! in frames of HTTP/2. gRPC's health checks are answered beside it. What a message says is `dynamo_protocols::kserve`'s to know; generating is [`crate::generate`]'s.

mod connection;
mod flow;
mod health;
mod infer_stream;
mod metadata;
mod service;

pub(crate) use connection::speak;
