//! Who the client is, row by row (`tests/clients/addresses.yaml`).
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::policy::client::{AddressHeader, ClientRules};

type Row = (String, String, Vec<String>, String);

fn rules(header: &str) -> ClientRules {
    let trusted = ["10.0.0.0/8", "fd00::/8", "203.0.113.7/32"];
    ClientRules {
        trusted_proxies: trusted.iter().map(|net| net.parse().unwrap()).collect(),
        address_header: Some(match header {
            "x-forwarded-for" => AddressHeader::XForwardedFor,
            "forwarded" => AddressHeader::Forwarded,
            name => AddressHeader::Single(HeaderName::try_from(name).unwrap()),
        }),
        ..ClientRules::default()
    }
}

fn filled_in(line: &str) -> String {
    let Some((before, rest)) = line.split_once("{hops:") else {
        return line.to_owned();
    };
    let (count, after) = rest.split_once('}').unwrap();
    let hops = vec!["10.0.0.9"; count.parse().unwrap()].join(", ");
    format!("{before}{hops}{after}")
}

#[test]
fn every_row_is_the_client_it_says() {
    let text = std::fs::read_to_string("tests/clients/addresses.yaml").unwrap();
    let rows: Vec<Row> = serde_yaml::from_str(&text).unwrap();
    assert!(rows.len() >= 60, "{}", rows.len());
    let mut wrong = Vec::new();
    for (header, peer, lines, expected) in &rows {
        let mut headers = HeaderMap::new();
        for line in lines {
            let value = HeaderValue::from_bytes(filled_in(line).as_bytes()).unwrap();
            headers.append(HeaderName::try_from(header).unwrap(), value);
        }
        let found = rules(header).client(peer.parse().unwrap(), &headers).ip;
        if found.to_string() != *expected {
            wrong.push(format!("{header} from {peer}: {lines:?}: {found} and not {expected}"));
        }
        // What is believed from a trusted peer is believed from nobody else.
        let stranger = "192.0.2.200".parse().unwrap();
        assert_eq!(rules(header).client(stranger, &headers).ip, stranger);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
