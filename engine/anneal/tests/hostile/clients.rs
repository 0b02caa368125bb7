//! Tests of isolation: neither other clients of a server nor other users of the machine may learn about a client.

mod folder;
mod prompts;
mod terminal;
mod worker;
