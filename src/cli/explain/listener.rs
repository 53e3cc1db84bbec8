//! The listener that the request of an explanation comes to: the one that is named, or the one that fits the URL.
//!
//! What must always hold: whatever was assumed stands in the explanation.

use http::Uri;
use serde_json::{Value, json};

use crate::config::Listener;
use crate::policy::ConnectionFacts;

/// The connection of a request, with what is known of its listener.
pub(super) struct ArrivalAtListener {
    pub(super) connection: ConnectionFacts,
    listener: Option<String>,
    /// Why this one, if the request does not determine it.
    assumed: Option<String>,
}

/// What the command line says about the connection.
pub(super) struct Arrival<'a> {
    pub(super) url: &'a Uri,
    /// The name of the listener.
    pub(super) listener: Option<&'a str>,
    /// The name in the certificate of the client.
    pub(super) tls_client: Option<&'a str>,
}

impl Arrival<'_> {
    /// Finds the listener. The error says what to write.
    pub(super) fn at(&self, listeners: &[Listener]) -> Result<ArrivalAtListener, String> {
        match self.listener {
            Some(name) => self.at_named(name, listeners),
            None => self.at_fitting(listeners),
        }
    }

    fn at_named(&self, name: &str, listeners: &[Listener]) -> Result<ArrivalAtListener, String> {
        let Some(listener) = listeners.iter().find(|at| at.name.as_deref() == Some(name)) else {
            let names: Vec<&str> = listeners.iter().filter_map(|at| at.name.as_deref()).collect();
            return Err(match names.is_empty() {
                true => format!("--listener {name}: no listener of the file has a name"),
                false => format!(
                    "--listener {name}: no listener has this name; write {}",
                    names.join(" or ")
                ),
            });
        };
        if has_tls(listener) && self.scheme() == Some("http") {
            return Err(format!("--listener {name}: it speaks TLS; write an https URL"));
        }
        if self.tls_client.is_some() && listener.client_ca.is_none() {
            let cure = "leave --tls-client out, or name a listener with client_ca";
            return Err(format!("--listener {name}: it asks clients for no certificate; {cure}"));
        }
        // Something in front may have ended the TLS of an https URL.
        Ok(self.arrived(Some(listener), has_tls(listener), None))
    }

    fn at_fitting(&self, listeners: &[Listener]) -> Result<ArrivalAtListener, String> {
        let is_tls = self.scheme() == Some("https");
        if self.tls_client.is_some() && !is_tls {
            let cure = "a client shows a certificate over TLS only; write https";
            return Err(format!("--tls-client: {cure}"));
        }
        let fits = |at: &&Listener| {
            (self.scheme().is_none() || has_tls(at) == is_tls)
                && (self.tls_client.is_none() || at.client_ca.is_some())
        };
        let fitting: Vec<&Listener> = listeners.iter().filter(fits).collect();
        if fitting.is_empty() {
            let what = match (self.tls_client.is_some(), is_tls) {
                (true, _) => "asks clients for a certificate",
                (false, true) => "speaks TLS",
                (false, false) => "accepts requests without TLS",
            };
            let cure = match is_tls && self.tls_client.is_none() {
                true => "; if a load balancer ends TLS, add --listener NAME",
                false => "",
            };
            let why = format!("no listener {what}, so it comes to none of them{cure}");
            return Ok(self.arrived(None, is_tls, Some(why)));
        }
        let default_port = self.scheme().map(|_| if is_tls { 443 } else { 80 });
        let port = self.url.port_u16().or(default_port);
        let has_port = |at: &&&Listener| port == Some(at.address.port());
        // Without a scheme nothing says that a request comes to a listener that only redirects.
        let serves = |at: &&&Listener| at.https_port.is_none();
        let mut at_port = fitting.iter().filter(has_port);
        let chosen = match (at_port.next(), at_port.next()) {
            (Some(only), None) => return Ok(self.arrived(Some(only), has_tls(only), None)),
            (Some(first), Some(_)) => first,
            (None, _) => fitting.iter().find(serves).unwrap_or(&fitting[0]),
        };
        let why = match (self.url.port(), fitting.len()) {
            (None, 1) => None,
            (Some(port), 1) => Some(format!("no listener that fits has port {port}")),
            (_, count) => Some(format!("{count} listeners fit; --listener NAME chooses")),
        };
        Ok(self.arrived(Some(chosen), has_tls(chosen), why))
    }

    fn arrived(
        &self,
        listener: Option<&Listener>,
        is_tls: bool,
        assumed: Option<String>,
    ) -> ArrivalAtListener {
        let authority = self.url.authority().map_or("", |authority| authority.as_str());
        let scheme = if is_tls { "https" } else { "http" };
        let mut connection = ConnectionFacts::for_url(scheme, authority)
            .with_client_name(self.tls_client.map(ToOwned::to_owned))
            .with_listener(listener.and_then(|at| at.name.clone()));
        connection.https_port = listener.and_then(|at| at.https_port);
        let asks = listener.is_some_and(|at| at.client_ca.is_some()) && self.tls_client.is_none();
        let asks = asks.then(|| {
            "its clients show certificates: without --tls-client, one that names nobody".to_owned()
        });
        let notes: Vec<String> = assumed.into_iter().chain(asks).collect();
        ArrivalAtListener {
            connection,
            listener: listener.map(name_of),
            assumed: (!notes.is_empty()).then(|| notes.join("; ")),
        }
    }

    fn scheme(&self) -> Option<&str> {
        self.url.scheme_str()
    }
}

impl ArrivalAtListener {
    pub(super) fn json(&self) -> Value {
        json!({ "listener": self.listener, "assumed": self.assumed })
    }
}

/// Its name and address, as far as it has a name.
fn name_of(listener: &Listener) -> String {
    match &listener.name {
        Some(name) => format!("{name} ({})", listener.address),
        None => listener.address.to_string(),
    }
}

fn has_tls(listener: &Listener) -> bool {
    !listener.certificates.is_empty()
}
