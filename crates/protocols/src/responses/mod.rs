//! OpenAI's responses, as far as they need no storage: the request, the answer, its events, counting its tokens.

mod event;
mod input;
mod item;
mod request;
mod response;

pub use event::EventWriter;
pub use item::{Item, OutputText, ReasoningText};
pub use request::{Request, Settings};
pub use response::{Body, InputTokens, Response, Usage};
