//! Chat templates: build a prompt from messages and tools, and read tool calls from the model's answer.

mod builtin;
mod calls;
mod channels;
mod environment;
mod fallback;
mod forced;
mod json;
mod list;
mod message;
mod part;
mod reasoning;
mod scan;
mod stack;
mod system;
mod template;
mod template_tags;
mod thoughts;
mod tool_defaults;

pub use builtin::NAMES as BUILTIN_NAMES;
pub use calls::{CallFormat, CallReader};
pub use forced::{ForcedReader, schema as forced_schema};
pub use message::{Function, Json, Message, ToolCall, arguments_object};
pub use part::{CallProgress, Offered, Part};
pub use reasoning::{ThoughtFormat, ThoughtReader, thought_variables};
pub use template::{Inputs, Specials, Template, VARIABLES};
