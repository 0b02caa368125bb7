//! Conversations: messages, the model's template that makes a prompt of them, and turns that evaluate only what is
//! new.

mod builtin;
mod calls;
mod conversation;
mod environment;
mod forced;
mod json;
mod markup;
mod message;
mod stack;
mod template;

pub use builtin::NAMES as BUILTIN_NAMES;
pub use calls::{CallFormat, CallReader, Part};
pub use conversation::{Conversation, Turn};
pub use forced::{ForcedReader, Offered, schema as forced_schema};
pub use message::{Function, Json, Message, ToolCall};
pub use template::{Inputs, Specials, Template};
