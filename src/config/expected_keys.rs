//! What operators write for a key of this configuration: keys of other products, keys at another level, values without
//! their blank. And what a mapping looks like that is expected at a key. Only words for errors: nothing here decides
//! what is valid.

use super::guesses::rate_cure;
use super::syntax::blank_after_colon;

/// What the mapping of a key looks like.
const EXAMPLES: [(&str, &str); 37] = [
    ("add", "{ x-hop: edge }"),
    ("admin", "{ address: 127.0.0.1:9900 }"),
    ("access_log", "{ to: stdout }"),
    ("bodies", "{ file: denied.html, type: text/html }"),
    ("candidate", "{ rate: 50/1m }"),
    ("check", "{ silence: [spoofable-key] }"),
    ("classes", "{ office: { client: [203.0.113.0/24] } }"),
    ("clients", "{ trusted_proxies: [10.0.0.0/8] }"),
    ("cookie", "{ session: present }"),
    ("count", "{ status: [401, 403] }"),
    ("defaults", "{ limits: [NAME] }"),
    ("discard", "{ bytes: 64KiB, time: 1s }"),
    ("expect", "{ requests: 10000/s }"),
    ("fleet", "{ error: 10%, every: 1s }"),
    ("header", "{ x-api-version: \"2\" }"),
    ("health_check", "{ path: /healthz }"),
    ("limits", "{ pages: { tier: exact, rate: 60/1m, key: client_ip } }"),
    ("limits_of_this_proxy", "{ body_size: 10MiB }"),
    ("listeners", "{ address: 0.0.0.0:8080 }"),
    ("match", "{ path: /api/** }"),
    ("not", "{ path: /api/** }"),
    ("origins", "{ site: { servers: [127.0.0.1:9000] } }"),
    ("overrides", "{ key: k1, rate: 600/1m }"),
    ("pages", "{ 4xx: sorry.html }"),
    ("penalty", "{ after: 20, within: 1m, ban: 10m }"),
    ("plans", "{ by: header:x-plan, rates: { gold: 600/1m } }"),
    ("query", "{ debug: present }"),
    ("rates", "{ gold: 600/1m }"),
    ("redis", "{ url: redis://127.0.0.1:6379 }"),
    ("refund", "{ status: [500-599] }"),
    ("request_headers", "{ set: { x-tier: free } }"),
    ("response_headers", "{ remove: [server] }"),
    ("responses", "{ body: problem }"),
    ("rewrite", "{ strip_prefix: /api }"),
    ("routes", "{ name: site }"),
    ("set", "{ x-tier: free }"),
    ("timeouts", "{ read: 60s }"),
];

/// What the mapping at a path of the configuration looks like, if its last key is known.
pub(super) fn example(path: &str) -> Option<&'static str> {
    // The mapping of a limit or an origin stands below a name.
    let parent = |section: &str| {
        let name = path.strip_prefix(section)?.strip_prefix('.')?;
        (!name.contains('.')).then_some(())
    };
    if parent("limits").is_some() {
        return Some("{ tier: exact, rate: 60/1m, key: client_ip }");
    }
    if parent("origins").is_some() {
        return Some("{ servers: [127.0.0.1:9000] }");
    }
    if parent("classes").is_some() {
        return Some("{ client: [203.0.113.0/24] }");
    }
    if path.ends_with("tls") {
        return Some(match path.starts_with("origins") {
            true => "{ sni: site.internal }",
            false => "{ certificate: tls/site.crt, private_key: tls/site.key }",
        });
    }
    let last = path.rsplit('.').next().unwrap_or(path);
    let key = last.split('[').next().unwrap_or(last);
    EXAMPLES.iter().find(|(name, _)| *name == key).map(|(_, example)| *example)
}

/// Keys by the level at which they belong.
const LEVELS: [(&str, &[&str]); 9] = [
    (
        "a limit, as limits: { NAME: { KEY: .. } }, and the route names the limit in its limits",
        &[
            "tier",
            "rate",
            "burst",
            "algorithm",
            "missing_key",
            "max_delay",
            "max_in_flight",
            "penalty",
            "overrides",
            "plans",
            "on_store_failure",
            "when_full",
            "refill_every",
            "rollout",
            "refund",
            "scope",
        ],
    ),
    (
        "match of a route, as match: { KEY: .. }",
        &["path", "host", "methods", "header", "query", "cookie", "client"],
    ),
    ("a route, as routes: [{ name: NAME, KEY: .. }]", &["match"]),
    (
        "an origin, as origins: { NAME: { KEY: .. } }",
        &["servers", "balance", "health_check", "timeouts", "resolve_every", "slow_start"],
    ),
    (
        "limits_of_this_proxy, as limits_of_this_proxy: { KEY: .. }",
        &[
            "body_size",
            "header_size",
            "header_fields",
            "header_timeout",
            "idle_timeout",
            "write_timeout",
            "max_connections",
            "max_connections_per_client",
            "drain",
            "finish",
            "memory",
            "max_keys",
            "h2_streams",
            "underscores",
            "method_override",
            "handshakes_per_client",
            "body_min_rate",
            "discard",
        ],
    ),
    ("clients, as clients: { KEY: .. }", &["trusted_proxies", "address_header", "ipv6_prefix"]),
    ("a listener, as listeners: [{ address: .., KEY: .. }]", &["proxy_protocol"]),
    (
        "store.redis, as store: { redis: { KEY: .. } }",
        &["key_secret_file", "password_file", "sentinel", "cluster"],
    ),
    (
        "the top level of the file",
        &[
            "version",
            "threads",
            "listeners",
            "admin",
            "clients",
            "store",
            "fleet",
            "origins",
            "limits",
            "routes",
            "defaults",
            "responses",
            "limits_of_this_proxy",
            "access_log",
            "check",
            "classes",
            "include",
        ],
    ),
];

/// Keys of other proxies and limiters, and what is written here.
const OTHER_PRODUCTS: [(&str, &str); 44] = [
    ("limit_req", "define the limit under limits, and name it in limits of a route"),
    (
        "limit_req_zone",
        "define the limit under limits: { NAME: { tier: exact, rate: 10/s, key: client_ip } }",
    ),
    ("token", "write it into a file, and name that: token_file: FILE"),
    ("password", "write it into a file, and name that: password_file: FILE"),
    ("secret", "write it into a file, and name that: secret_file: FILE"),
    ("client_max_body_size", "write limits_of_this_proxy: { body_size: 10MiB }"),
    ("zone", "leave it out: a limit has its own memory (max_keys bounds it)"),
    ("nodelay", "leave it out: a token_bucket with a burst admits the burst at once"),
    ("delay", "write algorithm: leaky_bucket, and max_delay: 1s"),
    ("requests_per_unit", "write the number and the time as one rate, as rate: 60/1m"),
    ("requests_per_second", "write rate: 10/s"),
    ("requests_per_minute", "write rate: 60/1m"),
    ("requests", "write the number and the time as one rate, as rate: 60/1m"),
    ("unit", "write the number and the time as one rate, as rate: 60/1m"),
    ("per", "write the number and the time as one rate, as rate: 60/1m"),
    ("period", "write the number and the time as one rate, as rate: 60/1m"),
    ("interval", "write the number and the time as one rate, as rate: 60/1m"),
    ("window", "write the number and the time as one rate, as rate: 60/1m"),
    ("duration", "write the number and the time as one rate, as rate: 60/1m"),
    ("max_tokens", "write burst: NUMBER, with algorithm: token_bucket"),
    ("tokens_per_fill", "write rate: NUMBER/TIME, with algorithm: token_bucket"),
    ("fill_interval", "write rate: NUMBER/TIME, with algorithm: token_bucket"),
    ("token_bucket", "write algorithm: token_bucket, with rate and burst next to it"),
    ("rate_limits", "define limits under limits, and name them in limits of a route"),
    ("descriptors", "write the parts of the key as a list, as key: [header:x-org, path]"),
    (
        "stick-table",
        "define the limit under limits: { NAME: { tier: exact, rate: 10/s, key: client_ip } }",
    ),
    ("upstream", "write origins: { NAME: { servers: [HOST:PORT] } }"),
    ("upstreams", "write origins: { NAME: { servers: [HOST:PORT] } }"),
    ("backend", "write origins: { NAME: { servers: [HOST:PORT] } }, and origin: NAME in the route"),
    ("backends", "write origins: { NAME: { servers: [HOST:PORT] } }"),
    (
        "server",
        "write listeners: [{ address: 0.0.0.0:8080 }] for what listens, origins for what is behind",
    ),
    ("listen", "write listeners: [{ address: 0.0.0.0:8080 }]"),
    ("location", "write routes: [{ name: NAME, match: { path: /PATH/** } }]"),
    ("locations", "write routes: [{ name: NAME, match: { path: /PATH/** } }]"),
    ("proxy_pass", "write origin: NAME, with origins: { NAME: { servers: [HOST:PORT] } }"),
    ("strip_path", "write rewrite: { strip_prefix: /PREFIX }"),
    ("path_rewrite", "write rewrite: { strip_prefix: /PREFIX }"),
    ("dry_run", "write mode: shadow"),
    ("shadow", "write mode: shadow"),
    ("aud", "write audience: NAME"),
    ("iss", "write issuer: NAME"),
    ("alg", "write algorithms: [RS256]"),
    ("verify", "leave it out: certificates are always verified, with the authorities in ca_file"),
    (
        "insecure_skip_verify",
        "leave it out: certificates are always verified, with the authorities in ca_file",
    ),
];

/// Keys of other products for what a match has.
const OTHER_CONDITIONS: [(&str, &str); 15] = [
    ("ip", "write client: [10.0.0.0/8]"),
    ("ips", "write client: [10.0.0.0/8]"),
    ("client_ip", "write client: [10.0.0.0/8]"),
    ("source_ip", "write client: [10.0.0.0/8]"),
    ("remote_addr", "write client: [10.0.0.0/8]"),
    ("cidr", "write client: [10.0.0.0/8]"),
    ("network", "write client: [10.0.0.0/8]"),
    ("user_agent", "write header: { user-agent: { contains: TEXT } }"),
    ("user-agent", "write header: { user-agent: { contains: TEXT } }"),
    ("uri", "write path: /PATH/**"),
    ("url", "write host: NAME and path: /PATH/**"),
    ("prefix", "write path: /PREFIX/**"),
    ("path_prefix", "write path: /PREFIX/**"),
    ("domain", "write host: NAME"),
    ("hostname", "write host: NAME"),
];

/// What to write instead of an unknown key at a path. `value`: the text behind it. `known`: the keys that are expected.
pub(super) fn unknown_key_cure(
    name: &str,
    value: &str,
    known: &[&str],
    path: &str,
) -> Option<String> {
    if let Some(cure) = blank_after_colon(name) {
        return Some(cure);
    }
    if name == "<<" {
        return Some("write the keys of the other mapping out here".to_owned());
    }
    if let Some(key) = name.strip_prefix('-') {
        return Some(format!("write a blank behind the dash: - {key}"));
    }
    let is_limit = known.contains(&"tier");
    let lower = name.to_ascii_lowercase();
    if is_limit && matches!(&*lower, "limit" | "max" | "count_per_second") {
        let rate = rate_cure(value).unwrap_or_else(|| "write rate: 100/1m".to_owned());
        return Some(format!("a limit has a rate: {rate}"));
    }
    // One letter away from a key that is expected here is that key.
    let is_near = known.iter().any(|key| strsim::damerau_levenshtein(key, &lower) <= 1);
    if is_near {
        return None;
    }
    match known {
        _ if name.is_empty() => {}
        ["set", "add", "remove"] => return Some(format!("write set: {{ {name}: TEXT }}")),
        ["limit", "cost"] if value.is_empty() => return Some(format!("write limit: {name}")),
        ["by", "rates"] => {
            return Some(format!("write by: header:x-plan, rates: {{ {name}: 600/1m }}"));
        }
        _ => {}
    }
    let is_match = known.contains(&"methods") && known.contains(&"client");
    let others = if is_match { &OTHER_CONDITIONS[..] } else { &[] };
    if let Some((_, cure)) = others.iter().chain(&OTHER_PRODUCTS).find(|(other, _)| *other == lower)
    {
        return Some((*cure).to_owned());
    }
    let is_top = !path.contains('.');
    let (level, _) = LEVELS.iter().find(|(_, keys)| keys.contains(&&*lower))?;
    let is_own_level = is_top && level.starts_with("the top");
    (!is_own_level).then(|| format!("it belongs to {}", level.replace("KEY", &lower)))
}
