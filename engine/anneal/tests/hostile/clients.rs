//! Clients of one server that must not learn of each other, and other users of the machine.

mod folder;
mod prompts;
mod terminal;
mod worker;
