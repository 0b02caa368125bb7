//! Clients of one server that must not learn of each other.
