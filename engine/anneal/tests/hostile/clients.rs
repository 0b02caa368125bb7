//! Tests of isolation: clients of one server must not learn about each other, nor other users of the machine about
//! them.

mod folder;
mod prompts;
mod terminal;
mod worker;
