//! Connections that hold, stall or flood a server.
