//! Where a server listens and how clients name it, and how the connection is protected.
//!
//! Thread: none, plain values.

use ankaios_model::limits::SOCKET_PATH_MAX;
use ankaios_model::shown_text::without_passwords;
pub use ankaios_platform::security::{PemTexts, Security};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Begins the address of a Unix domain socket; an absolute path follows.
const SOCKET_SCHEME: &str = "unix://";
const NO_LISTEN_ADDRESS: &str = "expected an IP address and a port, for example 0.0.0.0:25551, or a socket, for example unix:///run/ank.sock";

/// The address of a server as clients write it: `http://host:port`, `https://host:port` or
/// `unix:///path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUrl {
    /// Over the network.
    Tcp {
        /// Whether the scheme is `https`.
        tls: bool,
        /// Host name or literal address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A Unix domain socket of this machine, by its absolute path. Never with TLS: the permissions
    /// of the file control access.
    Socket(PathBuf),
}

/// Port of a server that names none.
pub(crate) const DEFAULT_PORT: u16 = 25551;

impl ServerUrl {
    /// Reads `http://host[:port]` or `https://host[:port]`; a path, query or user part is ignored,
    /// as Eclipse Ankaios does. A missing port means 25551. Or `unix:///path`.
    ///
    /// # Errors
    /// The scheme or the host is missing, the port is not a number or the path is not absolute.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = match text.strip_prefix(SOCKET_SCHEME) {
            Some(path) => socket_path(path).map(Self::Socket),
            None => Self::parse_tcp(text),
        };
        if let Some(url) = found {
            return Ok(url);
        }
        let shown = without_passwords(text);
        let mut error = format!("Wrong server address format: '{shown}'.");
        // Only for sockets: scripts compare the text for other addresses.
        if text.starts_with("unix:") {
            error.push(' ');
            error.push_str(&no_socket_path());
        }
        Err(error)
    }

    fn parse_tcp(text: &str) -> Option<Self> {
        let tls = text.starts_with("https://");
        let scheme = if tls { "https://" } else { "http://" };
        let rest = text.strip_prefix(scheme)?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let without_user = authority.rsplit('@').next()?;
        let (host, port) = split_port(without_user)?;
        let port = match port {
            "" => DEFAULT_PORT,
            port => port.parse().ok()?,
        };
        if host.is_empty() {
            return None;
        }
        Some(Self::Tcp {
            tls,
            host: host.to_owned(),
            port,
        })
    }

    /// The same server with or without TLS: `--insecure` makes `http` of an `https` URL,
    /// certificates the reverse. A socket stays as it is.
    pub fn with_tls(mut self, wanted: bool) -> Self {
        if let Self::Tcp { tls, .. } = &mut self {
            *tls = wanted;
        }
        self
    }

    /// Whether the connection uses TLS.
    pub fn uses_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Whether it is a Unix domain socket, which needs neither certificates nor `--insecure`.
    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Socket(_))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { tls, host, port } => {
                let scheme = if *tls { "https" } else { "http" };
                if host.contains(':') {
                    write!(formatter, "{scheme}://[{host}]:{port}")
                } else {
                    write!(formatter, "{scheme}://{host}:{port}")
                }
            }
            Self::Socket(path) => write!(formatter, "{SOCKET_SCHEME}{}", path.display()),
        }
    }
}

/// Where a server listens: `IP:PORT` or `unix:///path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP port of one or all interfaces.
    Tcp(SocketAddr),
    /// A Unix domain socket, by its absolute path.
    Socket(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(SOCKET_SCHEME) {
            let path = socket_path(path).ok_or_else(no_socket_path)?;
            return Ok(Self::Socket(path));
        }
        match text.parse() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(NO_LISTEN_ADDRESS.to_owned()),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Socket(path) => write!(formatter, "{SOCKET_SCHEME}{}", path.display()),
        }
    }
}

/// Splits `host:port`; the port is empty if there is none. An IPv6 address has brackets, which are
/// removed.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let Some(bracketed) = text.strip_prefix('[') else {
        return Some(text.split_once(':').unwrap_or((text, "")));
    };
    let (host, after) = bracketed.split_once(']')?;
    if after.is_empty() {
        return Some((host, ""));
    }
    Some((host, after.strip_prefix(':')?))
}

fn no_socket_path() -> String {
    format!(
        "A socket is written as unix:///path, with an absolute path of at most {SOCKET_PATH_MAX} bytes."
    )
}

/// The path of a socket; `None` if it is not absolute, names no file, or cannot be an address.
fn socket_path(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let names_file = path.file_name().is_some() && !text.ends_with('/');
    let fits = text.len() <= SOCKET_PATH_MAX && !text.contains('\0');
    if !path.is_absolute() || !names_file || !fits {
        return None;
    }
    Some(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_scheme_host_and_port() {
        for (text, expected) in [
            ("http://127.0.0.1:25551", Some("http://127.0.0.1:25551")),
            ("https://server:1", Some("https://server:1")),
            ("http://[::1]:9", Some("http://[::1]:9")),
            ("http://[::1]", Some("http://[::1]:25551")),
            ("http://server", Some("http://server:25551")),
            ("http://me@server:7/path?query", Some("http://server:7")),
            ("server:1", None),
            ("http://", None),
            ("http://:1", None),
            ("http://a:b", None),
            ("http://[::1", None),
            ("http://[::1]x", None),
            ("ftp://a:1", None),
            ("", None),
            (
                "unix:///run/ankaios/ank.sock",
                Some("unix:///run/ankaios/ank.sock"),
            ),
            ("unix:///a b?c", Some("unix:///a b?c")),
            ("unix://run/ank.sock", None),
            ("unix:/run/ank.sock", None),
            ("unix:///", None),
            ("unix:///run/", None),
            ("unix:///run/..", None),
            ("unix:///run/a\0b", None),
        ] {
            assert_eq!(
                ServerUrl::parse(text)
                    .ok()
                    .map(|url| url.to_string())
                    .as_deref(),
                expected,
                "{text:?}"
            );
        }
        assert_eq!(
            ServerUrl::parse("https://a:1")
                .unwrap()
                .with_tls(false)
                .to_string(),
            "http://a:1"
        );
        assert_eq!(
            ServerUrl::parse("a").unwrap_err().to_string(),
            "Wrong server address format: 'a'."
        );
    }

    #[test]
    fn a_socket_is_an_absolute_path_that_fits_and_never_uses_tls() {
        let longest = format!("unix:///{}", "x".repeat(SOCKET_PATH_MAX - 1));
        assert!(ServerUrl::parse(&longest).is_ok() && longest.parse::<ListenAddress>().is_ok());
        let text =
            "A socket is written as unix:///path, with an absolute path of at most 107 bytes.";
        for wrong in [
            format!("{longest}x"),
            "unix://relative".to_owned(),
            "unix://".to_owned(),
        ] {
            let error = ServerUrl::parse(&wrong).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("Wrong server address format: '{wrong}'. {text}")
            );
            assert_eq!(
                wrong.parse::<ListenAddress>().unwrap_err().to_string(),
                text
            );
        }
        let url = ServerUrl::parse("unix:///run/ank.sock").unwrap();
        assert!(url.is_socket() && !url.clone().with_tls(true).uses_tls());
        assert_eq!(url.with_tls(true).to_string(), "unix:///run/ank.sock");
    }

    #[test]
    fn a_server_listens_on_literal_addresses_and_sockets() {
        for text in ["127.0.0.1:0", "[::1]:25551", "unix:///run/ank.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in [
            "localhost:1",
            "25551",
            "",
            "http://127.0.0.1:1",
            "/run/ank.sock",
            "unix:/run/ank.sock",
        ] {
            let error = text.parse::<ListenAddress>().unwrap_err();
            assert_eq!(error, NO_LISTEN_ADDRESS, "{text}");
        }
    }
}
