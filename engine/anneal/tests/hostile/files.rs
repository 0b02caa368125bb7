//! Folders, links and terminals that are prepared for an attack.

#[path = "../hub/server.rs"]
#[allow(dead_code, reason = "the tests of the hub use the rest")]
mod hub_server;
mod temporary;
