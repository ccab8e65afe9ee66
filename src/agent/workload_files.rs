//! Files of a workload: written on the host before its container starts, removed when it is gone.
//!
//! Thread: `wl:<name>`, which owns the folder of its workload. That of an instance whose container was one too many is
//! removed by `scheduler`.

use crate::model::validation::{mount_rule, unfit_for_mount};
use crate::model::workload::{File, FileContent};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a file cannot be written (spec/agent.md section 13).
#[derive(Debug, thiserror::Error)]
pub enum WorkloadFileError {
    /// The path inside the workload is not that of a file.
    #[error("invalid mount point '{}': '{reason}'", mount_point.escape_debug())]
    MountPoint {
        /// As the user wrote it.
        mount_point: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A folder above the file cannot be made.
    #[error("failed to create workload file directory structure for '{mount_point}': '{source}'")]
    Folder {
        /// As the user wrote it.
        mount_point: String,
        /// Why.
        source: io::Error,
    },
    /// The binary data is not base64 with padding.
    #[error("invalid base64 data in '{mount_point}': '{source}'")]
    Base64 {
        /// As the user wrote it.
        mount_point: String,
        /// Where it is wrong.
        source: base64::DecodeError,
    },
    /// The content cannot be written.
    #[error("write failed for '{mount_point}': '{source}'")]
    Write {
        /// As the user wrote it.
        mount_point: String,
        /// Why.
        source: io::Error,
    },
}

/// Writes all files below `folder`, existing ones in place, since a container may have them mounted.
/// Answers host path and mount point of each.
///
/// # Errors
/// The first file that cannot be written; those before it stay.
pub fn write_files(folder: &Path, files: &[File]) -> Result<Vec<(PathBuf, String)>, WorkloadFileError> {
    files.iter().map(|file| write_file(folder, file)).collect()
}

fn write_file(folder: &Path, file: &File) -> Result<(PathBuf, String), WorkloadFileError> {
    let mount_point = file.mount_point.clone();
    let path = folder.join(relative(&mount_point)?);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .map_err(|source| WorkloadFileError::Folder { mount_point: mount_point.clone(), source })?;
    }
    let written = match &file.content {
        FileContent::Data(text) => fs::write(&path, text),
        FileContent::BinaryData(text) => {
            let packed: String = text.lines().map(str::trim).collect();
            let bytes = STANDARD
                .decode(packed)
                .map_err(|source| WorkloadFileError::Base64 { mount_point: mount_point.clone(), source })?;
            fs::write(&path, bytes)
        }
    };
    written.map_err(|source| WorkloadFileError::Write { mount_point: mount_point.clone(), source })?;
    Ok((path, mount_point))
}

/// The mount point without its root, so that it stays inside the folder it is joined to.
fn relative(mount_point: &str) -> Result<PathBuf, WorkloadFileError> {
    let wrong = |reason: String| WorkloadFileError::MountPoint { mount_point: mount_point.to_owned(), reason };
    if let Some(character) = unfit_for_mount(mount_point) {
        return Err(wrong(mount_rule(character)));
    }
    if mount_point.ends_with('/') {
        return Err(wrong(format!("'{mount_point}' is a directory, expected a file")));
    }
    let path = Path::new(mount_point);
    if !path.is_absolute() {
        return Err(wrong(format!("path '{mount_point}' is relative, expected absolute path")));
    }
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(wrong(format!("path '{mount_point}' contains invalid path components")));
            }
        }
    }
    if inside.as_os_str().is_empty() {
        return Err(wrong(format!("'{mount_point}' is a directory, expected a file")));
    }
    Ok(inside)
}

/// Removes `folder` with all that is in it; missing is fine, any other failure only worth a warning.
pub fn remove_folder(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("Failed to delete folder: '{}': '{error}'", folder.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(mount_point: &str, text: &str) -> File {
        File { mount_point: mount_point.to_owned(), content: FileContent::Data(text.to_owned()) }
    }

    fn binary(mount_point: &str, text: &str) -> File {
        File { mount_point: mount_point.to_owned(), content: FileContent::BinaryData(text.to_owned()) }
    }

    #[test]
    fn mount_points_are_absolute_paths_of_files() {
        for (mount_point, expected) in [
            ("/a/b.txt", Ok("a/b.txt")),
            ("//a/./b", Ok("a/b")),
            ("/a/..b", Ok("a/..b")),
            ("/a/", Err("'/a/' is a directory, expected a file")),
            ("/", Err("'/' is a directory, expected a file")),
            ("/.", Err("'/.' is a directory, expected a file")),
            ("", Err("path '' is relative, expected absolute path")),
            ("a/b", Err("path 'a/b' is relative, expected absolute path")),
            ("/a b/ä='x'", Ok("a b/ä='x'")),
            (
                "/x,source=/,destination=/host",
                Err("It contains ',': commas, double quotes and control characters are not allowed."),
            ),
            ("/a/../b", Err("path '/a/../b' contains invalid path components")),
            ("/..", Err("path '/..' contains invalid path components")),
        ] {
            let result = relative(mount_point).map_err(|error| error.to_string());
            let expected = expected
                .map(PathBuf::from)
                .map_err(|reason: &str| format!("invalid mount point '{mount_point}': '{reason}'"));
            assert_eq!(result, expected, "{mount_point:?}");
        }
    }

    #[test]
    fn files_are_written_verbatim_and_overwritten_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let files = [data("/etc/x.conf", " a\n"), binary("/bin/y", "  AAEC\n  /w== \n")];
        let written = write_files(folder.path(), &files).unwrap();
        let expected = [("etc/x.conf", "/etc/x.conf"), ("bin/y", "/bin/y")];
        assert_eq!(written, expected.map(|(host, inside)| (folder.path().join(host), inside.to_owned())));
        assert_eq!(fs::read(&written[0].0).unwrap(), b" a\n");
        assert_eq!(fs::read(&written[1].0).unwrap(), [0, 1, 2, 255]);
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&written[0].0);
        write_files(folder.path(), &[data("/etc/x.conf", "b")]).unwrap();
        assert_eq!(fs::read(&written[0].0).unwrap(), b"b");
        assert_eq!(inode(&written[0].0), before);
    }

    #[test]
    fn errors_name_the_mount_point() {
        let folder = tempfile::tempdir().unwrap();
        for (files, text) in [
            (vec![binary("/x", "AA EC")], "invalid base64 data in '/x': '"),
            (vec![binary("/x", "AAE")], "invalid base64 data in '/x': '"),
            (
                vec![data("/a", ""), data("/a/b", "")],
                "failed to create workload file directory structure for '/a/b': '",
            ),
            (vec![data("/c/d", ""), data("/c", "")], "write failed for '/c': '"),
        ] {
            let error = write_files(folder.path(), &files).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn removing_a_missing_folder_is_fine() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("files");
        write_files(&inside, &[data("/a/b", "")]).unwrap();
        remove_folder(&inside);
        remove_folder(&inside);
        assert!(!inside.exists());
    }
}
