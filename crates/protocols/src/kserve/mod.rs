//! KServe's v2 inference protocol over gRPC (service `inference.GRPCInferenceService`): its messages, read and written
//! field by field. A request for text becomes the body of a `/v1/completions` request and is checked by the same table.
//!
//! Only what is used of a message is kept while it is read, so a message takes no more memory than its own length.

pub mod frame;
mod health;
mod request;
mod response;
mod status;
pub mod wire;

pub use health::{HEALTH_SERVICE, Health, asked_service};
pub use request::{InferRequest, ModelName, request_id};
pub use response::{Answered, Piece, model_config, model_metadata, server_metadata, verdict, write_error};
pub use status::{Code, header_text, timeout};

/// Path prefix of the service's methods.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";
/// Versions of a model; there is one.
pub const VERSION: &str = "1";

pub(crate) const TEXT_INPUT: &str = "text_input";
pub(crate) const STREAMING: &str = "streaming";
pub(crate) const TEXT_OUTPUT: &str = "text_output";
pub(crate) const FINISH_REASON: &str = "finish_reason";
