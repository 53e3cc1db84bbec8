//! `admin`: the listener for operators. An address that other machines can reach needs a token.

use std::path::Path;

use http::{HeaderName, header};

use super::listeners::{check_overlap, socket_address};
use crate::config::files::{MAX_NAMED_FILE, read_bounded};
use crate::config::model::{Admin, Listener};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::boolean;

/// Shortest token, in bytes.
const MIN_TOKEN: usize = 16;

/// `admin`: `None` if the section is absent.
pub(crate) fn admin(
    root: &mut Mapping<'_>,
    folder: &Path,
    listeners: &[Listener],
) -> Option<Admin> {
    let mut map = root.get("admin")?.mapping()?;
    let address_at = map.require("address", "write address: 127.0.0.1:9900");
    let token_at = map.get("token_file");
    let hosts = map.get("hosts").map(|at| at.list_or_single()).unwrap_or_default();
    let hosts = hosts.iter().filter_map(|at| at.parse(host)).collect();
    let by_header = map.get("by_header").and_then(|at| at.parse(header));
    let show_addresses =
        map.get("show_addresses").and_then(|at| at.parse(boolean)).unwrap_or(false);
    map.finish();
    let token = token_at.as_ref().and_then(|at| token(at, &folder.join(at.text()?)));
    let address_at = address_at?;
    let address =
        address_at.parse_or_env(socket_address, "an address with a port, as 127.0.0.1:9900")?;
    check_overlap(&address_at, address, listeners);
    if !address.ip().is_loopback() && token_at.is_none() {
        let cure = "add token_file, or listen on 127.0.0.1";
        address_at.error_with(format!("{address} can be reached from other machines"), cure);
    }
    Some(Admin { address, token, hosts, by_header, show_addresses })
}

/// A name or an address without a port, in lower case.
fn host(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not a host; write admin.example, without scheme and port");
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<std::net::IpAddr>().is_ok() {
        return Ok(bare.to_ascii_lowercase());
    }
    let authority: http::uri::Authority = text.parse().map_err(|_| wrong())?;
    let is_name = authority.host() == text && !text.starts_with('[') && !text.contains('*');
    is_name.then(|| text.to_ascii_lowercase()).ok_or_else(wrong)
}

/// A header that names the operator. Its values are in the audit log, so it must not be one that carries a secret.
fn header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| format!("{text:?} is not the name of a header; write x-forwarded-user"))?;
    let has_secrets = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE];
    match has_secrets.contains(&name) {
        true => Err(format!(
            "{text:?} carries a secret, and its values are in the audit log; write x-forwarded-user"
        )),
        false => Ok(name),
    }
}

/// The content of a file without surrounding white space. Errors never contain the token.
fn token(at: &Located<'_>, file: &Path) -> Option<String> {
    let bytes = read_bounded(file, MAX_NAMED_FILE).map_err(|error| at.error(error)).ok()?;
    let Ok(text) = String::from_utf8(bytes) else {
        at.error_with(
            format!("{}: is not UTF-8", file.display()),
            "make one as: openssl rand -hex 16",
        );
        return None;
    };
    let token = text.trim();
    if token.len() < MIN_TOKEN {
        let message = format!("{}: a token has at least {MIN_TOKEN} characters", file.display());
        at.error_with(message, "make one as: openssl rand -hex 16");
        return None;
    }
    if token.chars().any(|c| !(' '..='~').contains(&c)) {
        let message = format!("{}: a token is one line of ASCII", file.display());
        at.error_with(message, "make one as: openssl rand -hex 16");
        return None;
    }
    Some(token.to_owned())
}
