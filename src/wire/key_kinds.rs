//! Names keys and texts that TLS cannot use, for errors: the kind of a key, the content of a PEM
//! text.
//!
//! Thread: none, plain functions. Their results contain no part of a text or key.

/// The keys that work, for users.
pub(crate) const WORKING_KEYS: &str =
    "Ed25519, ECDSA with P-256 or P-384 and RSA with 2048 to 4096 bits work";
/// Keys of authorities that work, for users.
pub(crate) const WORKING_AUTHORITIES: &str =
    "Ed25519, ECDSA with P-256 or P-384 and RSA with 2048 to 8192 bits work";
/// RSA keys that the library accepts, in bits.
const RSA_BITS_MIN: usize = 2048;
/// Longest own RSA key, in bits: the library signs with it.
pub(crate) const RSA_BITS_OWN: usize = 4096;
/// Longest RSA key of an authority, in bits: the library only verifies with it.
pub(crate) const RSA_BITS_AUTHORITY: usize = 8192;
/// Shortest number of a key that is taken for the modulus of RSA, in bytes; versions and exponents
/// are shorter.
const MODULUS_BYTES_MIN: usize = 32;
/// Levels that are searched for the parts of a key: those of an RSA key in PKCS#8 are four levels
/// deep.
const DEPTH_MAX: usize = 6;

/// Object identifiers in DER, as far as they are the same, with the kinds that they stand for.
const UNUSABLE_KINDS: [(&[u8], &str); 10] = [
    (b"\x06\x05\x2b\x81\x04\x00\x23", "ECDSA with P-521"),
    (b"\x06\x05\x2b\x81\x04\x00\x21", "ECDSA with P-224"),
    (
        b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x01",
        "ECDSA with P-192",
    ),
    (b"\x06\x05\x2b\x81\x04\x00\x0a", "ECDSA with secp256k1"),
    (
        b"\x06\x09\x2b\x24\x03\x03\x02\x08\x01\x01",
        "ECDSA with a Brainpool curve",
    ),
    (b"\x06\x03\x2b\x65\x71", "Ed448"),
    (b"\x06\x03\x2b\x65\x6e", "X25519, which signs nothing"),
    (b"\x06\x03\x2b\x65\x6f", "X448, which signs nothing"),
    (b"\x06\x07\x2a\x86\x48\xce\x38\x04\x01", "DSA"),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a", "RSA-PSS"),
];

/// The end of the first line of a private key.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// Wrong contents of PEM texts, by their first lines.
const PEM_CONTENTS: [(&str, &str); 9] = [
    (
        "-----BEGIN CERTIFICATE REQUEST-----",
        "it holds a certificate request, which an authority has to sign",
    ),
    (
        "-----BEGIN NEW CERTIFICATE REQUEST-----",
        "it holds a certificate request, which an authority has to sign",
    ),
    (
        "-----BEGIN TRUSTED CERTIFICATE-----",
        "it holds a 'TRUSTED CERTIFICATE'; 'openssl x509' converts it",
    ),
    (
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "it holds a key of OpenSSH; make one with 'openssl genpkey'",
    ),
    ("-----BEGIN DSA PRIVATE KEY-----", "it holds a DSA key"),
    ("-----BEGIN PUBLIC KEY-----", "it holds a public key"),
    ("-----BEGIN RSA PUBLIC KEY-----", "it holds a public key"),
    (
        "-----BEGIN CERTIFICATE-----",
        "it holds a certificate and no key",
    ),
    (PRIVATE_KEY, "it holds a private key and no certificate"),
];

/// The kind of a key in DER that cannot be used; `None` if its kind works or is unknown. An RSA key
/// may have at most `rsa_bits_max` bits.
pub(crate) fn unusable_kind(der: &[u8], rsa_bits_max: usize) -> Option<String> {
    for (identifier, kind) in UNUSABLE_KINDS {
        if der
            .windows(identifier.len())
            .any(|bytes| bytes == identifier)
        {
            return Some(kind.to_owned());
        }
    }
    let bits = rsa_bits(der, DEPTH_MAX)?;
    let is_usable = (RSA_BITS_MIN..=rsa_bits_max).contains(&bits);
    if is_usable {
        return None;
    }
    Some(format!("RSA with {bits} bits"))
}

/// The bits of the modulus of an RSA key in DER: the first long integer in it, at most `depth`
/// levels deep.
fn rsa_bits(der: &[u8], depth: usize) -> Option<usize> {
    const INTEGER: u8 = 0x02;
    const BIT_STRING: u8 = 0x03;
    const OCTET_STRING: u8 = 0x04;
    const SEQUENCE: u8 = 0x30;
    let mut rest = der;
    while let Some(Element {
        tag,
        content,
        after,
    }) = Element::read(rest)
    {
        rest = after;
        match tag {
            INTEGER if content.len() >= MODULUS_BYTES_MIN => return Some(bits(content)),
            SEQUENCE | OCTET_STRING | BIT_STRING if depth > 0 => {
                // A bit string begins with the number of unused bits.
                let inner = if tag == BIT_STRING {
                    content.get(1..).unwrap_or_default()
                } else {
                    content
                };
                if let Some(bits) = rsa_bits(inner, depth - 1) {
                    return Some(bits);
                }
            }
            _ => {}
        }
    }
    None
}

/// An element of DER.
struct Element<'d> {
    tag: u8,
    content: &'d [u8],
    /// The bytes behind it.
    after: &'d [u8],
}

impl<'d> Element<'d> {
    /// Reads the first element; `None` at the end, and if this is not DER.
    fn read(der: &'d [u8]) -> Option<Self> {
        let (tag, rest) = der.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if *first > 0x7f {
            // The first byte has the number of bytes of the length.
            if !(0x81..=0x84).contains(first) {
                return None;
            }
            let (bytes, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            length = 0;
            for byte in bytes {
                length = length << 8 | usize::from(*byte);
            }
            rest = behind;
        }
        let (content, after) = rest.split_at_checked(length)?;
        Some(Self {
            tag: *tag,
            content,
            after,
        })
    }
}

/// The number of bits of a positive number.
fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let significant = &number[zeros..];
    match significant.first() {
        Some(first) => 8 * significant.len() - first.leading_zeros() as usize,
        None => 0,
    }
}

/// Whether a PEM text holds an encrypted private key.
pub(crate) fn is_encrypted(pem: &str) -> bool {
    pem.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || pem.contains("Proc-Type: 4,ENCRYPTED")
}

/// Describes the wrong content of a PEM text; `None` if it is unknown.
pub(crate) fn other_content(pem: &str) -> Option<&'static str> {
    pem_content(pem).map(|(_, content)| *content)
}

/// As [`other_content`] where a private key is expected: a damaged one is not something else.
pub(crate) fn other_content_than_key(pem: &str) -> Option<&'static str> {
    let (line, content) = pem_content(pem)?;
    if *line == PRIVATE_KEY {
        return None;
    }
    Some(*content)
}

/// The entry of [`PEM_CONTENTS`] for a PEM text.
fn pem_content(pem: &str) -> Option<&'static (&'static str, &'static str)> {
    let mut lines = pem.lines();
    let begin = lines.find(|line| line.starts_with("-----BEGIN "))?;
    let begin = begin.trim_end();
    PEM_CONTENTS.iter().find(|(line, _)| begin.ends_with(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_keys_are_of_no_known_kind() {
        let keys: [&[u8]; 7] = [
            b"",
            b"\x30",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x80\x02",
            b"\x02\x21",
            b"\x03\x00",
            b"x",
        ];
        for der in keys {
            assert_eq!(unusable_kind(der, RSA_BITS_OWN), None, "{der:?}");
        }
        assert_eq!(
            unusable_kind(&[0x30, 0x02].repeat(1000), RSA_BITS_OWN),
            None,
            "nested deep"
        );
    }

    #[test]
    fn rsa_keys_are_told_apart_by_their_bits() {
        for (bytes, first, own, authority) in [
            (
                128,
                0x80,
                Some("RSA with 1024 bits"),
                Some("RSA with 1024 bits"),
            ),
            (256, 0x80, None, None),
            (
                256,
                0x40,
                Some("RSA with 2047 bits"),
                Some("RSA with 2047 bits"),
            ),
            (512, 0x80, None, None),
            (513, 0x01, Some("RSA with 4097 bits"), None),
            (1024, 0x80, Some("RSA with 8192 bits"), None),
            (
                1025,
                0x01,
                Some("RSA with 8193 bits"),
                Some("RSA with 8193 bits"),
            ),
        ] {
            let mut modulus = vec![0_u8; bytes];
            modulus[0] = first;
            // The zero keeps the number positive.
            let mut der = vec![0x02, 0x82];
            der.extend(u16::try_from(bytes + 1).unwrap().to_be_bytes());
            der.push(0);
            der.extend(modulus);
            assert_eq!(
                unusable_kind(&der, RSA_BITS_OWN).as_deref(),
                own,
                "{bytes} bytes"
            );
            assert_eq!(
                unusable_kind(&der, RSA_BITS_AUTHORITY).as_deref(),
                authority,
                "{bytes} bytes"
            );
        }
    }
}
