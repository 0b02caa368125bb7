//! Tests of isolation: clients of one server must not learn about each other, and other users of the machine must not
//! learn about them.

mod folder;
mod prompts;
mod terminal;
mod worker;
