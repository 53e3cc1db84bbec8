//! The logs in `fixtures`, and how each is read.

use std::fmt::Write;
use std::path::Path;

use tollgate::access_lines::{AccessLine, Format, LineParser, Zone};

/// A log, and how it is read.
pub(crate) struct Fixture {
    /// Name of the file.
    pub(crate) file: &'static str,
    /// Its format, and the fields that are named.
    pub(crate) format: &'static str,
    pub(crate) fields: &'static [&'static str],
    /// What detection finds.
    pub(crate) detected: Option<&'static str>,
}

const fn fixture(
    file: &'static str,
    format: &'static str,
    detected: Option<&'static str>,
) -> Fixture {
    Fixture { file, format, fields: &[], detected }
}

const NGINX_TIMED: &str = r#"nginx: $remote_addr - $remote_user [$time_iso8601] "$request_method $scheme://$host$request_uri" $status $body_bytes_sent $request_time "$http_x_api_key" "$http_user_agent" $upstream_response_time $msec"#;

const NGINX_JSON: &str = r#"nginx: log_format js escape=json '{"time":"$time_iso8601","msec":$msec,"remote_addr":"$remote_addr","request_method":"$request_method","request_uri":"$request_uri",'
    '"http_host":"$http_host","status":$status,"body_bytes_sent":$body_bytes_sent,"request_time":$request_time,"http_user_agent":"$http_user_agent",'
    '"http_referer":"$http_referer","http_x_forwarded_for":"$http_x_forwarded_for"}';"#;

const NGINX_VHOST: &str = r#"nginx: $server_name:$server_port $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;

const APACHE_TIMED: &str = r#"apache: LogFormat "%a [%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t] %m %U%q %H %>s %B %D \"%{X-Api-Key}i\" \"%{User-Agent}i\" %V" timed"#;

const APACHE_VHOST: &str =
    r#"apache: %v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\""#;

/// All logs.
pub(crate) const FIXTURES: &[Fixture] = &[
    fixture("nginx_combined", "nginx: combined", Some("combined")),
    fixture("nginx_timed", NGINX_TIMED, None),
    fixture("nginx_json", NGINX_JSON, Some("json")),
    fixture("nginx_vhost", NGINX_VHOST, Some("combined")),
    fixture("apache_common", "apache: common", Some("common")),
    fixture("apache_combined", "apache: combined", Some("combined")),
    fixture("apache_vhost_combined", APACHE_VHOST, Some("combined")),
    fixture("apache_timed", APACHE_TIMED, None),
    fixture("combined_mixed", "combined", Some("combined")),
    fixture("common_vhost", "common", Some("common")),
    fixture("tollgate", "tollgate", Some("tollgate")),
    fixture("tollgate_ecs", "tollgate", Some("tollgate")),
    fixture("tollgate_otel", "tollgate", Some("tollgate")),
    fixture("caddy", "caddy", Some("caddy")),
    fixture("traefik", "traefik", Some("traefik")),
    fixture("traefik_json", "traefik", Some("traefik")),
    fixture("envoy", "envoy", Some("envoy")),
    fixture("istio", "envoy", Some("envoy")),
    fixture("envoy_json", "envoy", Some("envoy")),
    Fixture {
        file: "haproxy_raw",
        format: "haproxy",
        fields: &["user_agent=captures.0", "header.x-api-key=captures.1"],
        detected: Some("haproxy"),
    },
    fixture("haproxy_syslog", "haproxy", Some("haproxy")),
    fixture("alb", "alb", Some("alb")),
    fixture("cloudfront", "cloudfront", Some("cloudfront")),
    fixture("iis", "w3c", Some("cloudfront")),
    Fixture {
        file: "service",
        format: "json",
        fields: &[
            "time_start=when",
            "client_ip=req.peer",
            "method=req.verb",
            "path=req.url",
            "status=res.code",
            "duration=res.took_ms",
            "header.x-api-key=req.hdr.X-Api-Key.1",
            "header.x-org=req.hdr.x-org",
        ],
        detected: None,
    },
];

impl Fixture {
    /// The bytes of the log.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/access_lines/fixtures");
        std::fs::read(folder.join(format!("{}.log", self.file))).unwrap()
    }

    /// A parser for the log, whose stamps without a zone are in UTC.
    pub(crate) fn parser(&self) -> LineParser {
        let format = Format::parse(self.format).unwrap().with_fields(self.fields).unwrap();
        LineParser::new(format, Zone::UTC)
    }
}

/// The log with this name.
pub(crate) fn named(file: &str) -> &'static Fixture {
    FIXTURES.iter().find(|fixture| fixture.file == file).unwrap()
}

/// All fields of a record that are there, each on a line.
pub(crate) fn show(line: &AccessLine<'_>) -> String {
    let mut shown = String::new();
    let mut field = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            writeln!(shown, "{name}: {value}").unwrap();
        }
    };
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
    let stamp = line.stamp;
    field("time", Some(format!("{} +{} {:?}", stamp.nanos, stamp.resolution, stamp.moment)));
    field("duration", line.duration.map(|nanos| nanos.to_string()));
    field("client", line.client.map(|client| client.to_string()));
    field("method", text(&line.method));
    field("host", text(&line.host));
    field("target", text(&line.target));
    field("status", line.status.map(|status| status.to_string()));
    field("bytes", line.response_bytes.map(|bytes| bytes.to_string()));
    field("agent", text(&line.user_agent));
    field("referer", text(&line.referer));
    field("user", text(&line.user));
    for (name, value) in &line.headers {
        field(&format!("header {name}"), Some(value.to_string()));
    }
    field("tls", line.is_tls.map(|is_tls| is_tls.to_string()));
    field("own", line.own.map(|own| own.get().to_owned()));
    shown
}
