//! Which address is the client's: each row of `clients/addresses.yaml` is a test.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::process::ExitCode;

use http::{HeaderMap, HeaderName, HeaderValue};
use support::cases::{self, Case};
use tollgate::policy::client::{AddressHeader, ClientRules};

/// Fewer rows than this mean that the file was not read to its end.
const MIN_ROWS: usize = 60;

/// The columns of the file: header, peer, lines, client.
type Columns = (String, String, Vec<String>, String);

struct Row {
    header: String,
    peer: String,
    lines: Vec<String>,
    client: String,
}

impl Row {
    fn of((header, peer, lines, client): Columns) -> Self {
        Self { header, peer, lines, client }
    }

    fn name(&self) -> String {
        format!("{}::{} sends {:?}", self.header, self.peer, self.lines)
    }

    fn check(&self) -> Result<(), String> {
        let rules = rules(&self.header);
        let mut headers = HeaderMap::new();
        for line in &self.lines {
            let value = HeaderValue::from_bytes(with_hops(line).as_bytes()).unwrap();
            headers.append(HeaderName::try_from(&self.header).unwrap(), value);
        }
        let found = rules.client(self.peer.parse().unwrap(), &headers).ip.to_string();
        if found != self.client {
            return Err(format!("{found}, expected {}", self.client));
        }
        // The same lines from a peer that is not trusted change nothing.
        let stranger = "192.0.2.200".parse().unwrap();
        assert_eq!(rules.client(stranger, &headers).ip, stranger);
        Ok(())
    }
}

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

/// Replaces `{hops:N}` by N addresses of a trusted proxy.
fn with_hops(line: &str) -> String {
    let Some((before, rest)) = line.split_once("{hops:") else {
        return line.to_owned();
    };
    let (count, after) = rest.split_once('}').unwrap();
    let hops = vec!["10.0.0.9"; count.parse().unwrap()].join(", ");
    format!("{before}{hops}{after}")
}

fn main() -> ExitCode {
    let text = std::fs::read_to_string("tests/clients/addresses.yaml").unwrap();
    let rows: Vec<Columns> = serde_yaml::from_str(&text).unwrap();
    let rows = rows.into_iter().map(Row::of);
    let tests = rows.map(|row| Case::new(row.name(), move || row.check())).collect();
    cases::run(&[("", MIN_ROWS)], tests)
}
