//! Tests of folders, links and terminals prepared by an attacker.

#[path = "../hub/server.rs"]
#[allow(dead_code, reason = "the hub tests use the rest")]
mod hub_server;
mod temporary;
