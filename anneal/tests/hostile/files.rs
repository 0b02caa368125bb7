//! Folders, links and terminals that are prepared for an attack.
