//! The URL of a published set of keys.

use http::Uri;

/// Longest URL, in bytes.
const MAX_URL: usize = 2_048;

/// `https://login.example.com/keys`. Over plain http anyone on the way could put in keys of his own, and sign with them; so
/// http is for a server on this machine only.
pub(super) fn key_set_url(text: &str) -> Result<Uri, String> {
    let wrong = |why: &str| format!("{why}; write for example https://login.example.com/keys");
    if text.len() > MAX_URL {
        return Err(wrong("the URL is longer than 2 KiB"));
    }
    let uri: Uri = text.parse().map_err(|_| wrong("this is no URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong("this is no URL"));
    };
    if authority.host().is_empty() || authority.port_u16() == Some(0) {
        return Err(wrong("the URL names no server"));
    }
    if authority.as_str().contains('@') {
        return Err(wrong("a URL of public keys has no user"));
    }
    if text.contains('#') {
        return Err(wrong("a fragment is never sent"));
    }
    match scheme {
        "https" => Ok(uri),
        "http" if is_here(authority.host()) => Ok(uri),
        "http" => Err(wrong("over http anyone on the way could put in other keys")),
        _ => Err(wrong("keys are fetched over https")),
    }
}

/// Whether a host is this machine. (That `localhost` is, is checked again when it is resolved.)
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: std::net::IpAddr| address.is_loopback();
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}
