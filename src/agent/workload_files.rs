//! Files of a workload: written on the host before its container starts.
//!
//! Thread: `call:<name>` writes them; `wl:<name>` owns the folder of its workload and removes it.

use crate::limits::PATH_MAX;
use ankaios_model::validation::{mount_rule, unfit_for_mount};
use ankaios_model::workload::{File, FileContent};
use ankaios_platform::private_folder::PrivateFolder;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

/// Any user of the container may read its files. Other users of the node cannot enter the folders
/// around them.
const FILE_MODE: Mode = Mode::from_bits_retain(0o644);

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{what} '{mount_point}': '{reason}'")]
pub struct WorkloadFileError {
    what: &'static str,
    mount_point: String,
    reason: String,
    /// The error of the system; `None` if the definition of the file is wrong.
    io_error: Option<io::Error>,
}

impl WorkloadFileError {
    /// The error for a file with a wrong definition.
    fn invalid(what: &'static str, file: &File, reason: impl ToString) -> Self {
        let mount_point = file.mount_point.escape_debug().to_string();
        Self {
            what,
            mount_point,
            reason: reason.to_string(),
            io_error: None,
        }
    }

    /// The error for a file that the system cannot write.
    fn io(what: &'static str, file: &File, error: io::Error) -> Self {
        Self {
            what,
            mount_point: file.mount_point.clone(),
            reason: error.to_string(),
            io_error: Some(error),
        }
    }

    /// Returns whether a retry cannot succeed, because the error is in the definition of `files`.
    pub(crate) fn is_final(&self, files: &[File]) -> bool {
        let Some(error) = &self.io_error else {
            return true; // A check of the definition failed, before any write.
        };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // The system accepts no file with this path, whenever it is written.
            Some(Errno::NAMETOOLONG | Errno::INVAL) => true,
            // A file is where a folder is needed, or a folder where a file is. If no two of `files`
            // cause that, it is a leftover, which the next start removes first.
            Some(Errno::NOTDIR | Errno::ISDIR) => one_is_folder_of_another(files),
            _ => false,
        }
    }
}

/// Whether the path of one file is a folder in the path of another one.
fn one_is_folder_of_another(files: &[File]) -> bool {
    let mut paths = BTreeSet::new();
    for file in files {
        paths.extend(relative(&file.mount_point));
    }
    for path in &paths {
        for folder in path.ancestors().skip(1) {
            if paths.contains(folder) {
                return true;
            }
        }
    }
    false
}

/// Writes all files below `folder`. Existing ones are not replaced but overwritten, since a
/// container may have them mounted.
pub fn write_files(folder: &Path, files: &[File]) -> Result<(), WorkloadFileError> {
    for file in files {
        write_file(folder, file)?;
    }
    Ok(())
}

/// Returns the host path and the mount point of each file.
pub fn file_paths(
    folder: &Path,
    files: &[File],
) -> Result<Vec<(PathBuf, String)>, WorkloadFileError> {
    let mut paths = Vec::new();
    for file in files {
        paths.push((folder.join(path_of(file)?), file.mount_point.clone()));
    }
    Ok(paths)
}

/// The path of a file inside the folder of all files.
fn path_of(file: &File) -> Result<PathBuf, WorkloadFileError> {
    relative(&file.mount_point)
        .map_err(|reason| WorkloadFileError::invalid("invalid mount point", file, reason))
}

/// Writes one file below `folder`, and makes the folders around it.
fn write_file(folder: &Path, file: &File) -> Result<(), WorkloadFileError> {
    // First: its path and its content.
    let path = path_of(file)?;
    let decoded = match &file.content {
        FileContent::Data(text) => Cow::Borrowed(text.as_bytes()),
        FileContent::BinaryData(text) => {
            let packed: String = text.lines().map(str::trim).collect();
            match STANDARD.decode(packed) {
                Ok(decoded) => Cow::Owned(decoded),
                Err(error) => {
                    let what = "invalid base64 data in";
                    return Err(WorkloadFileError::invalid(what, file, error));
                }
            }
        }
    };
    // Then: the folders and the file.
    let no_folder = "failed to create workload file directory structure for";
    let place =
        folder_of(folder, &path).map_err(|error| WorkloadFileError::io(no_folder, file, error))?;
    let name = Path::new(path.file_name().unwrap_or_default());
    write_one(&place, name, &decoded)
        .map_err(|error| WorkloadFileError::io("write failed for", file, error))
}

fn write_one(place: &PrivateFolder, name: &Path, content: &[u8]) -> io::Result<()> {
    place.write_anew(name, FILE_MODE)?.write_all(content)
}

/// Makes and opens the folder of a file: `path` is its path inside `folder`. Only the user of the
/// agent can enter the folders in between.
fn folder_of(folder: &Path, path: &Path) -> io::Result<PrivateFolder> {
    if folder.as_os_str().len() + path.as_os_str().len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG.into()); // An engine could not mount it.
    }
    let mut place = match (folder.parent(), folder.file_name()) {
        (Some(parent), Some(name)) => PrivateFolder::open(parent)?.subfolder(name)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    if let Some(parent) = path.parent() {
        for part in parent.components() {
            place = place.subfolder(part)?;
        }
    }
    Ok(place)
}

/// The mount point without its root. Joined to a folder, it stays inside that.
///
/// # Errors
/// A text that says why it is no mount point of a file.
fn relative(mount_point: &str) -> Result<PathBuf, String> {
    if let Some(character) = unfit_for_mount(mount_point) {
        return Err(mount_rule(character));
    }
    if mount_point.ends_with('/') {
        return Err(format!("'{mount_point}' is a directory, expected a file"));
    }
    let path = Path::new(mount_point);
    if !path.is_absolute() {
        return Err(format!(
            "path '{mount_point}' is relative, expected absolute path"
        ));
    }
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(format!(
                    "path '{mount_point}' contains invalid path components"
                ));
            }
        }
    }
    if inside.as_os_str().is_empty() {
        return Err(format!("'{mount_point}' is a directory, expected a file"));
    }
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn data(mount_point: &str, text: &str) -> File {
        File {
            mount_point: mount_point.to_owned(),
            content: FileContent::Data(text.to_owned()),
        }
    }

    fn binary(mount_point: &str, text: &str) -> File {
        File {
            mount_point: mount_point.to_owned(),
            content: FileContent::BinaryData(text.to_owned()),
        }
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
                Err(
                    "It contains ',': commas, double quotes and control characters are not allowed.",
                ),
            ),
            (
                "/a/../b",
                Err("path '/a/../b' contains invalid path components"),
            ),
            ("/..", Err("path '/..' contains invalid path components")),
        ] {
            let expected = expected.map(PathBuf::from).map_err(str::to_owned);
            assert_eq!(relative(mount_point), expected, "{mount_point:?}");
        }
    }

    #[test]
    fn files_are_written_verbatim_and_overwritten_in_place() {
        let workload = tempfile::tempdir().unwrap();
        let folder = workload.path().join("files");
        let files = [
            data("/etc/x.conf", " a\n"),
            binary("/bin/y", "  AAEC\n  /w== \n"),
        ];
        write_files(&folder, &files).unwrap();
        let written = file_paths(&folder, &files).unwrap();
        let expected = [("etc/x.conf", "/etc/x.conf"), ("bin/y", "/bin/y")];
        assert_eq!(
            written,
            expected.map(|(host, inside)| (folder.join(host), inside.to_owned()))
        );
        assert_eq!(fs::read(&written[0].0).unwrap(), b" a\n");
        assert_eq!(fs::read(&written[1].0).unwrap(), [0, 1, 2, 255]);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = inode(&written[0].0);
        write_files(&folder, &[data("/etc/x.conf", "b")]).unwrap();
        assert_eq!(fs::read(&written[0].0).unwrap(), b"b");
        assert_eq!(inode(&written[0].0), before);
    }

    #[test]
    fn files_are_open_in_the_container_and_closed_outside() {
        let workload = tempfile::tempdir().unwrap();
        let folder = workload.path().join("files");
        let files = [data("/etc/app/x.conf", "a")];
        write_files(&folder, &files).unwrap();
        let written = file_paths(&folder, &files).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&written[0].0), 0o644);
        for place in ["", "etc", "etc/app"] {
            assert_eq!(mode(&folder.join(place)), 0o700, "{place}");
        }
        fs::set_permissions(folder.join("etc"), fs::Permissions::from_mode(0o777)).unwrap();
        let error = write_files(&folder, &[data("/etc/app/x.conf", "a")]).unwrap_err();
        assert!(
            error.to_string().contains("others may write to '"),
            "{error}"
        );
    }

    #[test]
    fn errors_name_the_mount_point_and_say_what_is_final() {
        let workload = tempfile::tempdir().unwrap();
        let folder = workload.path().join("files");
        let deep = "/a".repeat(PATH_MAX / 2);
        let long = format!("/{}", "x".repeat(256));
        let no_folder = "failed to create workload file directory structure for '/";
        for (files, text, is_final) in [
            (
                vec![data("relative", "")],
                "invalid mount point 'relative': '",
                true,
            ),
            (
                vec![data("/a\n/", "")],
                "invalid mount point '/a\\n/': 'It contains",
                true,
            ),
            (
                vec![binary("/x", "AA EC")],
                "invalid base64 data in '/x': '",
                true,
            ),
            (
                vec![binary("/x", "AAE")],
                "invalid base64 data in '/x': '",
                true,
            ),
            (
                vec![data("/a", ""), data("/a/b", "")],
                &format!("{no_folder}a/b': '"),
                true,
            ),
            (
                vec![data("/c/d", ""), data("/c", "")],
                "write failed for '/c': '",
                true,
            ),
            (vec![data(&deep, "")], "", true),
            (vec![data(&long, "")], "", true),
            (vec![data("/taken/b", "")], no_folder, false),
            (vec![data("/open/b", "")], "", false),
        ] {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("open")).unwrap();
            fs::set_permissions(folder.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
            fs::write(folder.join("taken"), "").unwrap();
            let error = write_files(&folder, &files).unwrap_err();
            assert!(error.to_string().starts_with(text), "{error}");
            assert_eq!(error.is_final(&files), is_final, "{error}");
        }
    }
}
