//! How connections are protected, as settings say it.
//!
//! Thread: none, plain values.

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
