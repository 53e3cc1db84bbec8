//! What the admin API answers is what its description says: every path, every status, every member.

use serde_json::{Value, json};
use support::servers::{Gate, Origin, client, origin_yaml};

const TOKEN: &str = "0123456789abcdef";

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: token_bucket, rate: 2/1h, key: header:x-api-key, missing_key: skip }
  pages: { tier: estimate, rate: 2/1h, key: client_ip }
routes: [{ name: all, limits: [writes, pages] }]
access_log: { to: ./access.log, replay: true }
";

struct Described {
    gate: Gate,
    description: Value,
}

impl Described {
    /// The schema of an answer: its own, with what it refers to.
    fn schema(&self, path: &str, method: &str, status: u16) -> Option<Value> {
        let answer = &self.description["paths"][path][method]["responses"][status.to_string()];
        assert!(!answer.is_null(), "{method} {path}: {status} is not described");
        let content = answer["content"].as_object()?;
        let (media_type, content) = content.iter().next()?;
        let mut schema = content["schema"].clone();
        schema["components"] = self.description["components"].clone();
        // Lines of JSON (`application/x-ndjson`) are no JSON.
        let is_json = media_type.ends_with("/json") || media_type.ends_with("+json");
        is_json.then_some(schema)
    }

    /// Sends a request and compares the answer with its description.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        target: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let url = format!("http://127.0.0.1:{}{target}", self.gate.admin);
        let request =
            client().request(method.to_uppercase().parse().unwrap(), url).bearer_auth(TOKEN);
        let request = request.body(body.map(|body| body.to_string()).unwrap_or_default());
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let Some(schema) = self.schema(path, method, status) else {
            return (status, Value::Null);
        };
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{target}: {text}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{method} {target}: {status}\n{errors:#?}\n{value:#}");
        (status, value)
    }
}

async fn described(origin: &Origin) -> Described {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    let policy = format!(
        "  token_file: token\n  show_addresses: true\n{}{POLICY}",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, "").await;
    let url = format!("http://127.0.0.1:{}/openapi.json", gate.admin);
    let text = client().get(url).bearer_auth(TOKEN).send().await.unwrap().text().await.unwrap();
    Described { gate, description: serde_json::from_str(&text).unwrap() }
}

#[tokio::test]
async fn every_answer_is_as_the_description_says() {
    let origin = Origin::start("site").await;
    let api = described(&origin).await;
    let mut refused = String::new();
    for _ in 0..4 {
        let answer = client().get(api.gate.url("/")).header("x-api-key", "k").send().await.unwrap();
        if answer.status() == 429 {
            refused = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        }
    }
    let key = |more: Value| {
        let mut body = json!({ "limit": "writes", "key": "k", "reason": "a test" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Some(body)
    };
    for (path, target, body, status) in [
        ("/keys", "/keys", Some(json!({ "limit": "writes", "key": ["k"] })), 200),
        ("/keys", "/keys", Some(json!({ "limit": "pages", "key": "127.0.0.1" })), 200),
        ("/keys", "/keys", Some(json!({ "limit": "none", "key": "k" })), 404),
        ("/keys", "/keys", Some(json!({})), 400),
        (
            "/keys/override",
            "/keys/override",
            key(json!({ "rate": "9/1h", "burst": 9, "for": "1h" })),
            200,
        ),
        ("/keys/override", "/keys/override", key(json!({ "action": "allow", "for": "1h" })), 200),
        (
            "/keys/override",
            "/keys/override",
            key(json!({ "rate": "9/1h", "burst": 0, "for": "1h" })),
            409,
        ),
        ("/keys/override", "/keys/override", key(json!({ "action": "?" })), 400),
        ("/keys/ban", "/keys/ban", key(json!({ "for": "1h" })), 200),
        ("/keys", "/keys", Some(json!({ "limit": "writes", "key": "k" })), 200),
        ("/keys/ban", "/keys/ban", key(json!({})), 400),
        ("/keys/reset", "/keys/reset", key(json!({})), 200),
        ("/reload", "/reload", None, 200),
    ] {
        let (got, answer) = api.ask("post", path, target, body).await;
        assert_eq!(got, status, "{target}: {answer}");
    }
    let why = format!("/refusals/{refused}");
    for (path, target, status) in [
        ("/", "/", 200),
        ("/healthz", "/healthz", 200),
        ("/ready", "/ready", 200),
        ("/metrics", "/metrics", 200),
        ("/status", "/status", 200),
        ("/routes", "/routes?contains=a&offset=0&count=5", 200),
        ("/routes", "/routes?cuont=5", 400),
        ("/refusals", "/refusals?since=1h&route=all&limit=writes&count=3", 200),
        ("/refusals", "/refusals?count=0", 400),
        ("/refusals/{request_id}", &*why, 200),
        ("/refusals/{request_id}", "/refusals/none", 404),
        ("/top", "/top?limit=writes&hours=24&count=3", 200),
        ("/top", "/top?limit=pages", 200),
        ("/top", "/top", 400),
        ("/top", "/top?limit=none", 404),
        ("/history", "/history?minutes=3", 200),
        ("/history", "/history?minutes=0", 400),
        ("/log", "/log?since=1h", 200),
        ("/log", "/log?after=0", 400),
        ("/overrides", "/overrides", 200),
        ("/audit", "/audit?count=3", 200),
        ("/audit", "/audit?count=1001", 400),
        ("/openapi.json", "/openapi.json", 200),
    ] {
        let (got, answer) = api.ask("get", path, target, None).await;
        assert_eq!(got, status, "{target}: {answer}");
    }
    let (_, overrides) = api.ask("get", "/overrides", "/overrides", None).await;
    assert_eq!(overrides["overrides"].as_array().unwrap().len(), 2, "an override and a ban");
    std::fs::write(api.gate.file(), "version: 2").unwrap();
    assert_eq!(api.ask("post", "/reload", "/reload", None).await.0, 422);
    api.the_others_are_refused().await;
}

impl Described {
    /// Methods that are not described, and requests without the token.
    async fn the_others_are_refused(&self) {
        for (path, methods) in self.description["paths"].as_object().unwrap() {
            let url = format!("http://127.0.0.1:{}{path}", self.gate.admin);
            let other = if methods.get("get").is_some() { "POST" } else { "GET" };
            let sent = client()
                .request(other.parse().unwrap(), &url)
                .bearer_auth(TOKEN)
                .send()
                .await
                .unwrap();
            assert_eq!(sent.status(), 405, "{other} {path}");
            let method = if other == "GET" { "POST" } else { "GET" };
            let sent = client().request(method.parse().unwrap(), &url).send().await.unwrap();
            let needs_token = methods[&method.to_lowercase()]["responses"].get("401").is_some();
            assert_eq!(sent.status() == 401, needs_token, "{method} {path} without a token");
        }
        let (missing, _) = self.gate.admin_get("/no").await.unwrap();
        assert_eq!(missing, 404);
    }
}
