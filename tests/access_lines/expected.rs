//! What each log says in some of its lines: every field that is there.

/// Name of the log, number of the line, and its fields. `␛` stands for the escape character.
pub(crate) const EXPECTED: &[(&str, usize, &str)] = &[
    (
        "nginx_combined",
        2,
        r#"time: 1795772330000000000 +1000000000 End
client: 127.0.0.1
method: GET
target: /index.html?q=a%20b&x=1
status: 200
bytes: 6
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
referer: https://example.com/from?x="1""#,
    ),
    (
        "nginx_combined",
        4,
        r"time: 1795772330000000000 +1000000000 End
client: 127.0.0.1
method: GET
target: /
status: 200
bytes: 6
agent: curl/7.88.1
user: alice smith",
    ),
    (
        "nginx_timed",
        2,
        r#"time: 1795772330809000000 +1000000 End
duration: 0
client: 127.0.0.1
method: GET
host: 127.0.0.1
target: /index.html?q=a%20b&x=1
status: 200
bytes: 6
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
header x-api-key: k-1234
tls: false"#,
    ),
    (
        "nginx_timed",
        13,
        r"time: 1795772346311000000 +1000000 End
duration: 0
client: 127.0.0.1
host: shop.example.com
status: 400
bytes: 157
tls: false",
    ),
    (
        "nginx_json",
        2,
        r#"time: 1795772330809000000 +1000000 End
duration: 0
client: 127.0.0.1
method: GET
host: 127.0.0.1:18081
target: /index.html?q=a%20b&x=1
status: 200
bytes: 6
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
referer: https://example.com/from?x="1""#,
    ),
    (
        "nginx_json",
        14,
        r"time: 1795772346311000000 +1000000 End
duration: 0
client: 127.0.0.1
method: GET
host: shop.example.com
target: /abs?x=1
status: 404
bytes: 153
agent: �� café {x|y}
header x-forwarded-for: 203.0.113.9, 10.0.0.1",
    ),
    (
        "nginx_vhost",
        11,
        r"time: 1795772331000000000 +1000000000 End
client: ::1
method: GET
host: shop.example.com
target: /v6
status: 404
bytes: 153
agent: curl/7.88.1",
    ),
    (
        "apache_common",
        5,
        r"time: 1795772331000000000 +1000000000 Start
client: 127.0.0.1
method: HEAD
target: /index.html
status: 200
bytes: 0",
    ),
    (
        "apache_common",
        6,
        r"time: 1795772346000000000 +1000000000 Start
client: 127.0.0.1
status: 400
bytes: 266",
    ),
    (
        "apache_combined",
        2,
        r#"time: 1795772330000000000 +1000000000 Start
client: 127.0.0.1
method: GET
target: /index.html?q=a%20b&x=1
status: 200
bytes: 206
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
referer: https://example.com/from?x="1""#,
    ),
    (
        "apache_combined",
        7,
        r"time: 1795772346000000000 +1000000000 Start
client: 127.0.0.1
method: GET
host: shop.example.com
target: /abs?x=1
status: 404
bytes: 416
agent: �� café {x|y}",
    ),
    (
        "apache_vhost_combined",
        7,
        r"time: 1795772346000000000 +1000000000 Start
client: 127.0.0.1
method: GET
host: shop.example.com
target: /abs?x=1
status: 404
bytes: 416
agent: �� café {x|y}",
    ),
    (
        "apache_timed",
        2,
        r#"time: 1795772330963000000 +1000000 Start
duration: 245000
client: 127.0.0.1
method: GET
host: 127.0.0.1
target: /index.html?q=a%20b&x=1
status: 200
bytes: 6
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
header x-api-key: k-1234"#,
    ),
    (
        "apache_timed",
        6,
        r"time: 1795772346314000000 +1000000 Start
duration: 152000
client: 127.0.0.1
host: shop.example.com
status: 400
bytes: 266",
    ),
    (
        "combined_mixed",
        1,
        r"time: 1795502789000000000 +1000000000 Unknown
method: GET
target: /a
status: 200
bytes: 612
agent: curl/8.5.0",
    ),
    (
        "combined_mixed",
        2,
        r#"time: 1795502789000000000 +1000000000 Unknown
client: 2001:db8::7
method: GET
target: /b?x="1"
status: 304
bytes: 0
agent: Mozilla/5.0 [en] (X11; U)
referer: https://example.com/\x
user: frank miller"#,
    ),
    (
        "combined_mixed",
        3,
        r"time: 1795502790000000000 +1000000000 Unknown
client: 10.0.0.7
status: 408
bytes: 0",
    ),
    (
        "combined_mixed",
        4,
        r"time: 1795502790000000000 +1000000000 Unknown
client: 10.0.0.8
status: 400
bytes: 157",
    ),
    (
        "combined_mixed",
        5,
        r"time: 1795502791000000000 +1000000000 Unknown
client: 10.0.0.9
method: GET
target: /c
status: 200
bytes: 5316
agent: curl/8.5.0",
    ),
    (
        "combined_mixed",
        6,
        r"time: 1795502792000000000 +1000000000 Unknown
client: 10.0.0.9
method: CONNECT
host: mail.example.com:443
target: mail.example.com:443
status: 405
bytes: 157
user: bob [ops]",
    ),
    (
        "common_vhost",
        1,
        r"time: 1795531589000000000 +1000000000 Unknown
client: 10.0.0.7
method: GET
host: www.example.com
target: /a
status: 200
bytes: 612",
    ),
    (
        "common_vhost",
        2,
        r"time: 1795531590000000000 +1000000000 Unknown
method: GET
host: www.example.com:8080
target: /b
status: 404
bytes: 0
user: frank",
    ),
    (
        "common_vhost",
        3,
        r"time: 1795531591000000000 +1000000000 Unknown
client: 2001:db8::7
method: HEAD
host: [2001:db8::1]:80
target: /
status: 200
bytes: 0",
    ),
    (
        "tollgate",
        1,
        r#"time: 1795502789250000000 +1000000 End
duration: 12500000
client: 203.0.113.7
method: GET
host: api.example.com
target: /v1/items?page=2
status: 200
bytes: 612
agent: curl/8.5.0
tls: true
own: {"key":"9f86d081884c7d65","cost":1}"#,
    ),
    (
        "tollgate",
        2,
        r#"time: 1795502789251000000 +1000000 End
duration: 210000
client: 2001:db8::7
method: POST
host: api.example.com
target: items
status: 429
bytes: 140
agent: a "quoted" agent ␛[0m
tls: false"#,
    ),
    (
        "tollgate_ecs",
        1,
        r"time: 1795502789250000000 +1000000 End
duration: 12500300
client: 203.0.113.7
method: GET
host: api.example.com
target: /v1/items
status: 200
bytes: 612
agent: curl/8.5.0
tls: true",
    ),
    (
        "tollgate_otel",
        1,
        r"time: 1795502789250123456 +1 End
duration: 12500000
client: 203.0.113.7
method: GET
host: api.example.com
target: /v1/items
status: 200
bytes: 612
agent: curl/8.5.0
tls: true",
    ),
    (
        "tollgate_otel",
        2,
        r"time: 1795502789251000000 +1 End
duration: 210000
client: 2001:db8::7
method: PURGE
host: api.example.com
target: /v1/items
status: 405
bytes: 20
tls: false",
    ),
    (
        "caddy",
        2,
        r#"time: 1795772330890085500 +1000 End
duration: 208598
client: 127.0.0.1
method: GET
host: 127.0.0.1:18082
target: /index.html?q=a%20b&x=1
status: 200
bytes: 6
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
referer: https://example.com/from?x="1"
header accept: */*
header x-api-key: k-1234
tls: false"#,
    ),
    (
        "caddy",
        5,
        r"time: 1795772331138440600 +1000 End
duration: 93964
client: 127.0.0.1
method: GET
host: shop.example.com:18443
target: /tls
status: 404
bytes: 0
agent: curl/7.88.1
header accept: */*
header x-api-key: k-5678
tls: true",
    ),
    (
        "traefik",
        2,
        r"time: 1795502790000000000 +1000000000 Start
duration: 1204000000
client: 192.168.1.21
method: POST
target: /api/items
status: 502
bytes: 11
agent: curl/8.5.0
user: alice",
    ),
    (
        "traefik_json",
        1,
        r"time: 1795502789123456789 +1 Start
duration: 3120417
client: 192.168.1.20
method: GET
host: shop.example.com
target: /dashboard/api?x=1
status: 200
bytes: 1324
agent: Mozilla/5.0 (X11; Linux x86_64)
header x-api-key: k-1234
tls: true",
    ),
    (
        "traefik_json",
        2,
        r"time: 1795502790500000000 +1000000 Start
duration: 61012
client: 2001:db8::5
method: GET
host: shop.example.com:8080
target: /nothing
status: 404
bytes: 19
user: bob
tls: false",
    ),
    (
        "envoy",
        1,
        r"time: 1795502789250000000 +1000000 Start
duration: 28000000
method: GET
host: api.example.com
target: /v1/items?page=2
status: 200
bytes: 612
agent: curl/8.5.0
header x-forwarded-for: 203.0.113.7,10.0.0.1",
    ),
    (
        "envoy",
        3,
        r"time: 1795502789400000000 +1000000 Start
duration: 0
status: 400
bytes: 11",
    ),
    (
        "istio",
        2,
        r"time: 1795502789260000000 +1000000 Start
duration: 210000000
client: 10.44.1.23
method: POST
host: httpbin:8000
target: /delay
status: 503
bytes: 145
agent: okhttp/4.12
header x-forwarded-for: 203.0.113.9",
    ),
    (
        "envoy_json",
        1,
        r"time: 1795502789250000000 +1000000 Start
duration: 28000000
client: 203.0.113.7
method: GET
host: api.example.com
target: /v1/items?page=2
status: 200
bytes: 612
agent: curl/8.5.0
header x-forwarded-for: 203.0.113.7",
    ),
    (
        "envoy_json",
        2,
        r"time: 1795502789300000000 +1000000 Start
duration: 0
client: 2001:db8::9
method: POST
host: api.example.com
target: /v1/items
status: 503
bytes: 0
agent: okhttp/4.12
header x-forwarded-for: 2001:db8::9",
    ),
    (
        "haproxy_raw",
        2,
        r#"time: 1795772331053000000 +1000000 Start
duration: 0
client: 127.0.0.1
method: GET
target: /index.html?q=a%20b&x=1
status: 200
bytes: 203
agent: Mozilla/5.0 (X11; Linux x86_64) "quoted" \ back
header x-api-key: k-1234
tls: false"#,
    ),
    (
        "haproxy_raw",
        6,
        r"time: 1795772331156000000 +1000000 Start
duration: 0
client: 127.0.0.1
method: GET
target: /tls
status: 404
bytes: 283
agent: curl/7.88.1
header x-api-key: k-5678
tls: true",
    ),
    (
        "haproxy_raw",
        8,
        r"time: 1795772346316000000 +1000000 Start
duration: 0
client: 127.0.0.1
method: GET
host: shop.example.com
target: /abs?x=1
status: 404
bytes: 283
agent: �� café {x|y}
tls: false",
    ),
    (
        "haproxy_syslog",
        6,
        r"time: 1795772331156000000 +1000000 Start
duration: 0
client: 127.0.0.1
method: GET
target: /tls
status: 404
bytes: 283
tls: true",
    ),
    (
        "haproxy_syslog",
        7,
        r"time: 1795772346316000000 +1000000 Start
duration: 0
client: 127.0.0.1
status: 400
bytes: 0
tls: false",
    ),
    (
        "alb",
        1,
        r"time: 1795502789016000000 +1000 Start
duration: 171000000
client: 192.168.131.39
method: GET
host: www.example.com:443
target: /a?b=c
status: 200
bytes: 366
agent: curl/7.46.0
tls: true",
    ),
    (
        "alb",
        2,
        r"time: 1795502790000000000 +1000 Start
client: 2001:db8::1
method: GET
host: www.example.com:80
target: /
status: 503
bytes: 366
tls: false",
    ),
    (
        "alb",
        3,
        r"time: 1795502791000000000 +1000 Start
client: 192.168.131.40
status: 400
bytes: 272
tls: false",
    ),
    (
        "cloudfront",
        3,
        r"time: 1795502789000000000 +1000000000 End
duration: 251000000
client: 192.0.2.202
method: GET
host: cdn.example.com
target: /images/a%20b.gif?q=1&r=2
status: 200
bytes: 2390282
agent: Mozilla/5.0 (Windows; U; en-US)
referer: www.example.com
header cookie: sid=42
tls: true",
    ),
    (
        "cloudfront",
        4,
        r"time: 1795502790000000000 +1000000000 End
duration: 1000000
client: 2001:db8::2
method: POST
host: d111111abcdef8.cloudfront.net
target: /form
status: 403
bytes: 550
agent: curl/8.5.0
tls: false",
    ),
    (
        "iis",
        5,
        r"time: 1795502789000000000 +1000000000 End
duration: 125000000
client: 198.51.100.4
method: GET
target: /default.htm?id=7
status: 200
agent: Mozilla/5.0 (Windows NT 10.0)
referer: https://example.com/
user: CORP\alice",
    ),
    (
        "iis",
        6,
        r"time: 1795502790000000000 +1000000000 End
duration: 3000000
client: 198.51.100.5
method: POST
target: /api
status: 404",
    ),
    (
        "service",
        1,
        r"time: 1795502789250000000 +1000000 Start
duration: 12500000
client: 203.0.113.7
method: GET
target: /v1/items?page=2
status: 200
header x-api-key: k-2
header x-org: acme",
    ),
    (
        "service",
        2,
        r"time: 1795502789251000000 +1000000 Start
duration: 3000000
client: 2001:db8::7
method: PUT
host: api.example.com
target: /v1/items/7
status: 204",
    ),
];
