//! What the three programs' settings have in common: files, PEM texts, booleans of the environment.
//!
//! Thread: `main`.
