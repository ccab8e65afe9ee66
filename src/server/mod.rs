//! Part of the program
//!
//! Thread: see the files.
