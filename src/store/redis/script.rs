//! The script that settles charges. Its head describes what it is called with and what it promises.

/// The text of `charge.lua`. Servers name it by its SHA-1.
pub const SCRIPT: &str = include_str!("charge.lua");
