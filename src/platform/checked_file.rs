//! Files of ours that must be whole: one line with a checksum of the rest, then the rest.
//!
//! A new file is written, brought to the disk and renamed over the old one. So a crash loses at
//! most the new file, and damage is noticed.
//!
//! Thread: any. Takes: folders and texts. Gives: checked texts.

use ankaios_model::names::hash_id;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The text of a file: `header` names what the file is, and its version.
pub fn text(header: &str, body: &str) -> String {
    format!("{header}{}\n{body}", hash_id(body))
}

/// Returns the body of a text that [`text`] has made.
///
/// # Errors
/// The reason why it is no such text.
pub fn body<'a>(header: &str, text: &'a str) -> Result<&'a str, &'static str> {
    let (first, body) = text.split_once('\n').ok_or("it has no first line")?;
    let checksum = first
        .strip_prefix(header)
        .ok_or("its first line is not that of a file that this version writes")?;
    if checksum != hash_id(body) {
        return Err("its checksum is wrong");
    }
    Ok(body)
}

/// Writes a text to a new file and brings it to the disk. Only our user may read it: configurations
/// may hold secrets.
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Replaces the file `name` in `folder` as a whole.
pub fn replace(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    write_new(&new, text)?;
    fs::rename(&new, folder.join(name))?;
    // The new name is on the disk only when the folder is.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "test file 1 sha256:";

    #[test]
    fn a_text_is_read_back_and_each_damage_is_noticed() {
        let whole = text(HEADER, "a body\nof two lines");
        assert_eq!(body(HEADER, &whole), Ok("a body\nof two lines"));
        for place in 0..whole.len() {
            let mut bytes = whole.clone().into_bytes();
            bytes[place] ^= 1;
            let damaged = String::from_utf8(bytes).unwrap();
            assert!(body(HEADER, &damaged).is_err(), "{damaged}");
            assert!(body(HEADER, &whole[..place]).is_err(), "{place}");
        }
        assert!(body("test file 2 sha256:", &whole).is_err());
    }

    #[test]
    fn a_replaced_file_has_the_new_text_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.new"), "left by a crash, and longer").unwrap();
        for text in ["one", "two"] {
            replace(folder.path(), "a", text).unwrap();
            assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("missing"), "a", "x").is_err());
    }
}
