//! Warnings about trust: which peers may state the address of a client, and whether readers of the
//! store can test keys.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::model::StoreConfig;

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    warn_of_untrusted_header(input, list);
    warn_of_trusting_everybody(input, list);
    warn_of_fixed_secret(input, list);
}

fn warn_of_untrusted_header(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    if let Some(at) = &input.clients_at
        && input.clients.address_header.is_some()
        && input.clients.trusted_proxies.is_empty()
    {
        let message = "address_header has no effect: trusted_proxies is empty".to_owned();
        list.add(Code::AddressHeaderUntrusted, at, message, "write trusted_proxies: [10.0.0.0/8]");
    }
}

fn warn_of_trusting_everybody(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let all = input.clients.trusted_proxies.iter().find(|network| network.prefix_len() == 0);
    if let (Some(at), Some(all)) = (&input.clients_at, all) {
        let message = format!(
            "{all} contains every client: each can claim another address and get a new budget"
        );
        let cure = "name the networks of your load balancers, as trusted_proxies: [10.0.0.0/8]";
        list.add(Code::TrustsEverybody, at, message, cure);
    }
}

fn warn_of_fixed_secret(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let (StoreConfig::Redis(redis), Some(at)) = (input.store, &input.store_at) else {
        return;
    };
    if redis.key_secret.is_none() {
        let message = "without key_secret_file keys are hashed with a publicly known secret: a \
                       reader of the store can test whether a key is in it, and a writer can make up \
                       counts under scope: fleet";
        let cure = "write key_secret_file, the same on all nodes";
        list.add(Code::FixedKeySecret, at, message.to_owned(), cure);
    }
}
