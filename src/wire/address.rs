//! Where a server listens and how clients name it, and how the connection is protected.
//!
//! Thread: none, plain values.

/// The address of a server as clients write it: `http://host:port` or `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// Host name or literal address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// The text is not the URL of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Wrong server address format: '{0}'.")]
pub struct WrongAddress(pub String);

/// Port of a server that names none.
pub const DEFAULT_PORT: u16 = 25551;

impl ServerUrl {
    /// Reads `http://host[:port]` or `https://host[:port]`; a path, query or user part is ignored, as the peer does.
    /// A missing port means 25551 (spec/config.md section 4.3).
    ///
    /// # Errors
    /// [`WrongAddress`] when the scheme or the host is missing or the port is not a number.
    pub fn parse(text: &str) -> Result<Self, WrongAddress> {
        let wrong = || WrongAddress(text.to_owned());
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host_port = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = if let Some(bracketed) = host_port.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or_else(wrong)?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or_else(wrong)?)
        } else {
            host_port.split_once(':').unwrap_or((host_port, ""))
        };
        let port = if port.is_empty() { DEFAULT_PORT } else { port.parse().map_err(|_| wrong())? };
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self { tls, host: host.to_owned(), port })
    }

    /// The same server without TLS: what `--insecure` makes of an `https` URL.
    #[must_use]
    pub fn without_tls(mut self) -> Self {
        self.tls = false;
        self
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            write!(formatter, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// PEM texts of one side of a mutually authenticated connection.
#[derive(Clone, PartialEq, Eq)]
pub struct PemTexts {
    /// Certificates of the authority that signed the other side's certificate.
    pub ca: String,
    /// Our certificate.
    pub certificate: String,
    /// Our private key.
    pub key: String,
}

impl std::fmt::Debug for PemTexts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PemTexts(<set>)") // Key material is never printed.
    }
}

/// How connections are protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// Plain text.
    Insecure,
    /// Mutual TLS.
    MutualTls(PemTexts),
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
        ] {
            assert_eq!(ServerUrl::parse(text).ok().map(|url| url.to_string()).as_deref(), expected, "{text:?}");
        }
        assert_eq!(ServerUrl::parse("https://a:1").unwrap().without_tls().to_string(), "http://a:1");
        assert_eq!(ServerUrl::parse("a").unwrap_err().to_string(), "Wrong server address format: 'a'.");
    }
}
