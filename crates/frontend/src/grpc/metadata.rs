//! The calls that only tell what is: live, ready, and what models take and give.

use crate::model::{Model, State};
use crate::shared::{Phase, Shared};
use bytes::{Bytes, BytesMut};
use dynamo_protocols::kserve::{self, ModelName, frame};
use dynamo_types::Result;
use std::sync::Arc;

/// Answers a message with one.
pub(super) type Read = fn(&Shared, &[u8], &mut BytesMut) -> Result<()>;

/// All of them, by method.
pub(super) const READS: &[(&str, Read)] = &[
    ("ServerLive", server_live),
    ("ServerReady", server_ready),
    ("ModelReady", model_ready),
    ("ServerMetadata", server_metadata),
    ("ModelMetadata", model_metadata),
    ("ModelConfig", model_config),
];

/// Answered without a key: probes have none.
pub(super) const OPEN: &[&str] = &["ServerLive", "ServerReady", "Check", "Watch"];

/// The framed answer to a message.
///
/// # Errors
/// 400 for a message that is none, 404 for a model that is not there.
pub(super) fn read(shared: &Shared, read: Read, message: &[u8]) -> Result<Bytes> {
    let mut answer = BytesMut::new();
    read(shared, message, &mut answer)?;
    let mut out = BytesMut::new();
    frame::write(&mut out, |out| out.extend_from_slice(&answer));
    Ok(out.freeze())
}

fn server_live(shared: &Shared, _: &[u8], out: &mut BytesMut) -> Result<()> {
    kserve::verdict(shared.phase() < Phase::Stopping, out);
    Ok(())
}

fn server_ready(shared: &Shared, _: &[u8], out: &mut BytesMut) -> Result<()> {
    kserve::verdict(shared.phase() == Phase::Serving && !shared.catalog.ready().is_empty(), out);
    Ok(())
}

/// A model that nobody knows is not ready, which is no fault: it may still come.
fn model_ready(shared: &Shared, message: &[u8], out: &mut BytesMut) -> Result<()> {
    let asked = ModelName::parse(message)?;
    let is_ready = asked.check_version().is_ok()
        && shared.phase() == Phase::Serving
        && shared.catalog.get(&asked.name).is_some_and(|model| model.state() == State::Ready);
    kserve::verdict(is_ready, out);
    Ok(())
}

fn server_metadata(_: &Shared, _: &[u8], out: &mut BytesMut) -> Result<()> {
    kserve::server_metadata(env!("CARGO_PKG_VERSION"), out);
    Ok(())
}

fn model_metadata(shared: &Shared, message: &[u8], out: &mut BytesMut) -> Result<()> {
    kserve::model_metadata(find(shared, message)?.name(), out);
    Ok(())
}

fn model_config(shared: &Shared, message: &[u8], out: &mut BytesMut) -> Result<()> {
    kserve::model_config(find(shared, message)?.name(), out);
    Ok(())
}

/// A model that can be asked for.
fn find(shared: &Shared, message: &[u8]) -> Result<Arc<Model>> {
    let asked = ModelName::parse(message)?;
    let model = shared.catalog.find(&asked.name)?;
    asked.check_version()?;
    model.usable()?;
    Ok(model)
}
