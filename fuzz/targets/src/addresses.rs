use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::policy::client::{AddressHeader, ClientRules};

/// Lines of a field that tells the client's address. Only a trusted peer is believed, and what a
/// client invents changes nothing about what a proxy vouches for.
pub fn addresses(bytes: &[u8]) {
    let (trusted, stranger) = (IpAddr::from([10, 9, 9, 9]), IpAddr::from([192, 0, 2, 1]));
    for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let rules = ClientRules {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            address_header: Some(match header {
                "x-forwarded-for" => AddressHeader::XForwardedFor,
                "forwarded" => AddressHeader::Forwarded,
                name => AddressHeader::Single(HeaderName::from_static(name)),
            }),
            ..ClientRules::default()
        };
        let mut headers = HeaderMap::new();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for value in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()) {
            headers.append(header, value);
        }
        let told = rules.client(trusted, &headers).ip;
        assert!(told == trusted || is_written(&headers, header, told), "{told} was made up");
        assert_eq!(rules.client(stranger, &headers).ip, stranger);
        assert_eq!(rules.client(trusted, &HeaderMap::new()).ip, trusted);
        let vouched = match header {
            "x-forwarded-for" => "198.51.100.77",
            "forwarded" => "for=198.51.100.77",
            _ => continue,
        };
        headers.append(header, HeaderValue::from_static(vouched));
        assert_eq!(rules.client(trusted, &headers).ip, IpAddr::from([198, 51, 100, 77]));
    }
}

/// Whether an address stands in the lines, in some notation.
fn is_written(headers: &HeaderMap, header: &str, address: IpAddr) -> bool {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':');
    headers.get_all(header).iter().any(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        text.split(|c: char| !is_part(c)).any(|word| {
            // A port may follow.
            let before_port = word.rsplit_once(':').map_or(word, |(before, _)| before);
            let parses = |word: &str| {
                word.parse::<IpAddr>().is_ok_and(|found| found.to_canonical() == address)
            };
            parses(word) || parses(before_port)
        })
    })
}
