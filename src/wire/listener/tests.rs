//! Files of sockets: made, replaced, left alone, removed.
//!
//! Thread: the test's.

use super::*;
use std::os::unix::net::UnixStream;

fn bind(path: &Path, mode: u32) -> io::Result<Listener> {
    Listener::bind(&ListenAddress::Socket(path.to_owned()), mode)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn socket_has_its_mode_shows_the_user_and_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/ank.sock");
    for wanted in [0o600, 0o660, 0o666] {
        let listener = bind(&path, wanted).unwrap();
        assert_eq!(mode(&path), wanted);
        assert_eq!(
            listener.address().unwrap().to_string(),
            format!("unix://{}", path.display())
        );
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let _client = UnixStream::connect(&path).unwrap();
        let (_, peer) = listener.accept().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(
            peer.to_string(),
            format!("unix://{} (uid {uid})", path.display())
        );
        drop(listener);
        assert!(!path.exists() && path.parent().unwrap().exists());
    }
}

#[test]
fn the_file_of_a_dead_server_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ank.sock");
    drop(UnixListener::bind(&path).unwrap()); // As after SIGKILL: nobody removes it.
    assert!(path.exists());
    let listener = bind(&path, 0o660).unwrap();
    let refused = bind(&path, 0o660).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert!(refused.to_string().contains("in use"), "{refused}");
    // Not even when no connection is accepted and too many wait.
    let waiting: Vec<OwnedFd> = (0..2 * 128)
        .map_while(|_| {
            let socket = stream_socket().unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap())
                .ok()
                .map(|()| socket)
        })
        .collect();
    assert!(waiting.len() < 2 * 128);
    assert_eq!(
        bind(&path, 0o660).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    drop(waiting);
    assert!(
        listener.accept().is_ok() && path.exists(),
        "it still listens"
    );
}

#[test]
fn a_port_that_cannot_be_had_is_refused_with_a_way_out() {
    let bind = |address: &str| Listener::bind(&ListenAddress::Tcp(address.parse().unwrap()), 0o660);
    let first = bind("127.0.0.1:0").unwrap();
    let error = bind(&first.address().unwrap().to_string()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(
        error.to_string().ends_with("end it or take another port"),
        "{error}"
    );
    let error = bind("192.0.2.1:0").unwrap_err(); // Reserved for documentation (RFC 5737).
    assert!(
        error
            .to_string()
            .contains("this machine has no such address"),
        "{error}"
    );
}

#[test]
fn other_files_and_sockets_of_others_are_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    fs::write(&file, "kept").unwrap();
    let error = bind(&file, 0o660).unwrap_err();
    assert!(error.to_string().contains("no socket"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    let error = bind(folder.path(), 0o660).unwrap_err();
    assert!(
        error.to_string().contains("a folder; name a file in it"),
        "{error}"
    );

    let path = folder.path().join("ank.sock");
    let first = bind(&path, 0o660).unwrap();
    fs::remove_file(&path).unwrap();
    let second = bind(&path, 0o660).unwrap();
    drop(first);
    assert!(path.exists(), "it belongs to the second");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn a_folder_that_cannot_be_had_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        bind(&folder.path().join("a/b/ank.sock"), 0o660)
            .unwrap_err()
            .kind(),
        io::ErrorKind::NotFound
    );
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(bind(&file.join("ank.sock"), 0o660).is_err());
    let held = lock(folder.path()).unwrap();
    let error = bind(&folder.path().join("ank.sock"), 0o660).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
    drop(held);
    assert!(bind(&folder.path().join("ank.sock"), 0o660).is_ok());
}

#[test]
fn socket_in_a_folder_without_parent_names_the_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let path = missing.join("made/ank.sock");
    let address = ListenAddress::Socket(path);
    let error = Listener::bind(&address, 0o660).err().unwrap();
    let expected = format!(
        "the folder '{}' does not exist; create it",
        missing.display()
    );
    assert!(error.to_string().ends_with(&expected), "{error}");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
