//! `ank-schema`: prints the JSON schema of manifests, for editors and validators.
//!
//! Thread: `main`. Arguments are ignored.

use std::io::Write;

fn main() {
    let schema = include_str!("../../ank_schema.json");
    let _ = writeln!(std::io::stdout(), "{schema}"); // Nobody is left to tell when the output is closed.
}
