//! Conversations: messages, the model's template that makes a prompt of them, and turns that evaluate only what is
//! new.

mod builtin;
mod conversation;
mod environment;
mod json;
mod message;
mod stack;
mod template;

pub use builtin::NAMES as BUILTIN_NAMES;
pub use conversation::{Conversation, Turn};
pub use message::{Function, Json, Message, ToolCall};
pub use template::{Inputs, Specials, Template};
