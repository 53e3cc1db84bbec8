//! The name of a client: what its certificate says who it is.
//!
//! The first of these that the certificate has: a URI of its alternative names (a SPIFFE ID is one), a DNS name, an e-mail
//! address, an IP address, each the first of its kind in the order of the certificate; without any of them, its subject as
//! RFC 4514 writes it. The kind is a part of the name. It does not verify anything. What must always hold: two
//! certificates have the same name only if they carry the same kind of name with the same value.

use std::fmt::Write as _;
use std::net::IpAddr;

use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_X509_EXT_SUBJECT_ALT_NAME, Oid};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};
use x509_parser::x509::AttributeTypeAndValue;

use crate::policy::canonical_client_name;

/// A certificate that cannot be read, or whose alternative names can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableCertificate;

/// The name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateName(Option<String>);

impl CertificateName {
    /// Reads a certificate (DER).
    pub(super) fn read(der: &[u8]) -> Result<Self, UnreadableCertificate> {
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|_| UnreadableCertificate)?;
        if !rest.is_empty() {
            return Err(UnreadableCertificate);
        }
        let names = alternative_names(&certificate)?;
        let name = match best(names) {
            Some(name) => Some(name),
            None => Some(subject(certificate.subject())).filter(|subject| !subject.is_empty()),
        };
        // A name that the policy cannot write, such as an empty one, is no name.
        Ok(Self(name.as_deref().and_then(canonical_client_name)))
    }

    /// As key sources read it; `None` if the certificate names nobody.
    pub(super) fn into_text(self) -> Option<String> {
        self.0
    }
}

/// The alternative names of a certificate. A second list of them, or one that is not understood, would leave it open
/// which names count.
fn alternative_names<'c>(
    certificate: &'c X509Certificate<'_>,
) -> Result<&'c [GeneralName<'c>], UnreadableCertificate> {
    let mut lists = certificate
        .extensions()
        .iter()
        .filter(|extension| extension.oid == OID_X509_EXT_SUBJECT_ALT_NAME);
    match (lists.next().map(|list| list.parsed_extension()), lists.next()) {
        (None, _) => Ok(&[]),
        (Some(ParsedExtension::SubjectAlternativeName(names)), None) => Ok(&names.general_names),
        (Some(_), _) => Err(UnreadableCertificate),
    }
}

/// The first name of the best kind.
fn best(names: &[GeneralName<'_>]) -> Option<String> {
    let first = |named: &dyn Fn(&GeneralName<'_>) -> Option<String>| names.iter().find_map(named);
    first(&|name| match name {
        GeneralName::URI(uri) => Some(format!("uri:{uri}")),
        _ => None,
    })
    .or_else(|| {
        first(&|name| match name {
            GeneralName::DNSName(host) => Some(format!("dns:{host}")),
            _ => None,
        })
    })
    .or_else(|| {
        first(&|name| match name {
            GeneralName::RFC822Name(address) => Some(format!("email:{address}")),
            _ => None,
        })
    })
    .or_else(|| {
        first(&|name| match name {
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| format!("ip:{address}")),
            _ => None,
        })
    })
}

/// Four bytes or sixteen (RFC 5280, section 4.2.1.6).
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    ipv4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

/// A subject as RFC 4514 writes it: the last name first, `+` between those that belong together. Empty if it has none.
fn subject(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let levels: Vec<_> = name.iter_rdn().collect();
    for level in levels.into_iter().rev() {
        for (index, attribute) in level.iter().enumerate() {
            match (text.is_empty(), index) {
                (true, _) => text.push_str("subject:"),
                (false, 0) => text.push(','),
                (false, _) => text.push('+'),
            }
            write_attribute(attribute, &mut text);
        }
    }
    text
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, text: &mut String) {
    match short_name(attribute.attr_type()) {
        Some(name) => text.push_str(name),
        None => text.push_str(&attribute.attr_type().to_id_string()),
    }
    text.push('=');
    let Ok(value) = attribute.as_str() else {
        // Another type of string: its bytes, behind the number of the type.
        let value = attribute.attr_value();
        text.push('#');
        // Writing to a string cannot fail.
        let _ = write!(text, "{:02x}", value.header.tag().0);
        for byte in value.as_bytes() {
            let _ = write!(text, "{byte:02x}");
        }
        return;
    };
    let last = value.chars().count().saturating_sub(1);
    for (index, character) in value.chars().enumerate() {
        match character {
            '\0' => text.push_str("\\00"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', character]),
            ' ' if index == 0 || index == last => text.push_str("\\ "),
            '#' if index == 0 => text.push_str("\\#"),
            _ => text.push(character),
        }
    }
}

/// The names of RFC 4514, section 3.
fn short_name(kind: &Oid<'_>) -> Option<&'static str> {
    Some(match kind.to_id_string().as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "STREET",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CustomExtension, DistinguishedName, DnType, DnValue, KeyPair, SanType,
    };

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn name(change: impl FnOnce(&mut CertificateParams)) -> Option<String> {
        CertificateName::read(&certificate(change)).unwrap().into_text()
    }

    #[test]
    fn the_first_name_of_the_best_kind_counts() {
        let uri = || SanType::URI("spiffe://prod/ns/web".try_into().unwrap());
        let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let email = || SanType::Rfc822Name("Ann@Example.com".try_into().unwrap());
        let ip = || SanType::IpAddress(IpAddr::from([192, 0, 2, 1]));
        for (names, expected) in [
            (
                vec![ip(), email(), dns("B.Example"), dns("a.example"), uri()],
                "uri:spiffe://prod/ns/web",
            ),
            (vec![ip(), email(), dns("B.Example"), dns("a.example")], "dns:b.example"),
            (vec![ip(), email()], "email:Ann@example.com"),
            (vec![ip()], "ip:192.0.2.1"),
        ] {
            let found = name(|params| {
                params.subject_alt_names = names;
                params.distinguished_name.push(DnType::CommonName, "nobody");
            });
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_subject_counts_only_without_other_names() {
        let of = |attributes: &[(DnType, &str)]| {
            name(|params| {
                for (kind, value) in attributes {
                    params.distinguished_name.push(kind.clone(), *value);
                }
            })
        };
        assert_eq!(of(&[]), None, "it names nobody");
        assert_eq!(of(&[(DnType::CommonName, "Ann")]).as_deref(), Some("subject:CN=Ann"));
        assert_eq!(
            of(&[
                (DnType::CountryName, "DE"),
                (DnType::OrganizationName, "Acme"),
                (DnType::CommonName, "Ann")
            ])
            .as_deref(),
            Some("subject:CN=Ann,O=Acme,C=DE")
        );
        // What looks like two names is one, and another one than the two.
        assert_eq!(
            of(&[(DnType::CommonName, " Ann,O=Acme+\\#")]).as_deref(),
            Some("subject:CN=\\ Ann\\,O=Acme\\+\\\\#")
        );
        let other = name(|params| {
            let value = DnValue::BmpString("Ann".try_into().unwrap());
            params.distinguished_name.push(DnType::CommonName, value);
        });
        assert_eq!(other.as_deref(), Some("subject:CN=#1e0041006e006e"));
    }

    #[test]
    fn names_with_several_readings_are_no_names() {
        let two_lists = certificate(|params| {
            params.subject_alt_names = vec![SanType::DnsName("a.example".try_into().unwrap())];
            // GeneralNames with the DNS name "b".
            let second = vec![0x30, 0x03, 0x82, 0x01, b'b'];
            let second = CustomExtension::from_oid_content(&[2, 5, 29, 17], second);
            params.custom_extensions.push(second);
        });
        assert_eq!(CertificateName::read(&two_lists), Err(UnreadableCertificate));
        let not_text = certificate(|params| {
            let list = vec![0x30, 0x03, 0x82, 0x01, 0xff];
            params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 17], list));
            params.distinguished_name.push(DnType::CommonName, "payments");
        });
        assert_eq!(CertificateName::read(&not_text), Err(UnreadableCertificate));
        let mut longer = certificate(|_| {});
        assert!(CertificateName::read(&longer).is_ok());
        longer.push(0);
        assert_eq!(CertificateName::read(&longer), Err(UnreadableCertificate));
        assert_eq!(CertificateName::read(b""), Err(UnreadableCertificate));
    }
}
