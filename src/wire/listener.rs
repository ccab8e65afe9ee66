//! Listens on TCP ports and Unix domain sockets, and identifies the other end of connections.
//!
//! Thread: `main` binds, `listen` accepts.
//! Owns: the file of each socket. It takes the place of one that a dead server left, never of one
//! in use, and is removed when the listener is dropped.

use super::address::ListenAddress;
use super::grpc;
use super::peer::PeerOrigin;

use ankaios_platform::folder_lock;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

/// One place that is listened on.
#[derive(Debug)]
pub(crate) enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix domain socket.
    Socket(SocketFile),
}

/// Connections to a Unix domain socket that wait to be accepted; as many as the standard library
/// allows for TCP.
const BACKLOG: i32 = 128;

/// A Unix domain socket and its file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    listener: UnixListener,
    path: Arc<Path>,
    /// Device and number of the file, to recognise it when it is removed.
    identity: (u64, u64),
}

impl Listener {
    /// Listens on `address`; `mode` are the permissions of a socket's file.
    ///
    /// # Errors
    /// The operating system's, with kind `AddrInUse` when another server listens there.
    pub(crate) fn bind(address: &ListenAddress, mode: u32) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(with_hint)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            ListenAddress::Socket(path) => SocketFile::bind(path, mode).map(Self::Socket),
        }
    }

    /// Where it listens; with the actual port when 0 was given.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Socket(socket) => Ok(ListenAddress::Socket(socket.path.to_path_buf())),
        }
    }

    /// Takes a connection that waits; its socket does not block.
    ///
    /// # Errors
    /// `WouldBlock` when no connection waits.
    pub(crate) fn accept(&self) -> io::Result<(OwnedFd, PeerOrigin)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match self {
            Self::Tcp(listener) => {
                let (socket, from) = rustix::net::acceptfrom_with(listener, flags)?;
                // A TCP socket always has the address of its peer.
                let from = SocketAddr::try_from(from.ok_or(Errno::AFNOSUPPORT)?)?;
                let stream = TcpStream::from(socket);
                // It fails when the client is gone already; the first read then finds the end.
                let _ = grpc::set_tcp_options(&stream);
                Ok((stream.into(), PeerOrigin::Plain(from)))
            }
            Self::Socket(socket) => {
                let stream = rustix::net::accept_with(&socket.listener, flags)?;
                let uid = peer_uid(stream.as_fd())?;
                Ok((stream, PeerOrigin::Socket(socket.path.clone(), uid)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Socket(socket) => socket.listener.as_fd(),
        }
    }
}

impl SocketFile {
    /// Makes the socket and its file, and the folder of the file if that is missing.
    fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        // First make the folder.
        let folder = path.parent().unwrap_or(Path::new("/"));
        match fs::DirBuilder::new().mode(0o755).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = folder.parent().unwrap_or(folder).display();
                let hint = format!("{error}: the folder '{parent}' does not exist; create it");
                return Err(io::Error::new(error.kind(), hint));
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Then bind. The lock is for two servers that both find the file of a dead one: the second
        // must not remove the file of the first.
        let _lock = lock(folder)?;
        let socket = stream_socket()?;
        let address = SocketAddrUnix::new(path)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_of_dead_server(path, &address)?;
                rustix::net::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        let metadata = fs::symlink_metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        let socket = Self {
            listener: socket.into(),
            path: path.into(),
            identity,
        };
        // Finally listen. Clients cannot connect before that, so the permissions are set first.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket.listener, BACKLOG)?;
        Ok(socket)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Ok(metadata) = fs::symlink_metadata(&self.path)
            && (metadata.dev(), metadata.ino()) == self.identity
            && let Err(error) = fs::remove_file(&self.path)
        {
            // The next server replaces it.
            log::debug!("Cannot remove '{}': '{error}'", self.path.display());
        }
    }
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Adds a hint to the error about a port that cannot be used.
fn with_hint(error: io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there, perhaps another ank-server; end it or take another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 0.0.0.0 stands for all that it has"
        }
        io::ErrorKind::PermissionDenied => {
            "the user may not take this port; one above 1023 needs no rights"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {hint}"))
}

/// Locks `folder` until the result is dropped. Waits a little while another server binds a socket
/// in it.
fn lock(folder: &Path) -> io::Result<File> {
    let Some(lock) = folder_lock::lock(File::open(folder)?)? else {
        let folder = folder.display();
        let text = format!("another program has locked the folder '{folder}'");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    };
    Ok(lock)
}

/// Removes the file of a socket on which no server listens.
fn remove_of_dead_server(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_dir() {
        let text = "that is a folder; name a file in it, for example 'ank.sock'";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, text));
    }
    if !kind.is_socket() {
        let text = "there is a file that is no socket; remove it or choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match rustix::net::connect(stream_socket()?, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // It listens, even if too many connections wait.
        Ok(()) | Err(Errno::AGAIN) => {
            let text = "address in use: another server listens there";
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
        Err(error) => Err(error.into()),
    }
}

/// The id of the user at the other end of a Unix domain socket.
///
/// `rustix` cannot read it if this process runs in a container: the process id of a peer outside is
/// 0, which its type does not allow.
fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    #[allow(unsafe_code)]
    // SAFETY: the descriptor is open, and `credentials` and `length` are writable and as large as
    // the call states.
    let result = unsafe {
        let place = std::ptr::from_mut(&mut credentials).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            place,
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(credentials.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
