//! Files delivered beside the programs: units, settings, scripts, manual pages, the recipes of
//! `just`, the Yocto layer, the history of the repository.

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.
#![allow(clippy::disallowed_methods)] // Tests start processes and wait for them.

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
#[path = "../support/mod.rs"]
mod support;

mod files;
mod history;
mod init;
mod man;
mod recipes;
mod yocto;
