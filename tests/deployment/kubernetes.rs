//! The manifests for Kubernetes. Another program has to say whether a cluster takes them; this says whether their parts fit
//! each other and tollgate.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_yaml::Value;
use tollgate::config::Config;

use super::{USER, conf, longest_end, policy, read, strings, takes_over};

/// Each kind that the manifests have, with its version.
const KINDS: [(&str, &str); 5] = [
    ("ConfigMap", "v1"),
    ("Deployment", "apps/v1"),
    ("PodDisruptionBudget", "policy/v1"),
    ("Service", "v1"),
    ("StatefulSet", "apps/v1"),
];

/// How long Kubernetes waits for the end of a pod that does not say it.
const DEFAULT_GRACE_SECS: u64 = 30;

struct Manifests {
    file: PathBuf,
    text: String,
    documents: Vec<Value>,
}

fn all() -> Vec<Manifests> {
    let entries = std::fs::read_dir(conf().join("kubernetes")).unwrap();
    let read = |file: PathBuf| {
        let text = read(&file);
        let documents = serde_yaml::Deserializer::from_str(&text);
        let documents = documents.map(|document| Value::deserialize(document).unwrap()).collect();
        Manifests { file, text, documents }
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

impl Manifests {
    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.documents.iter().filter(move |document| document["kind"] == kind)
    }

    fn workloads(&self) -> impl Iterator<Item = &Value> {
        self.of_kind("Deployment").chain(self.of_kind("StatefulSet"))
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        self.of_kind(kind).any(|document| name_of(document) == name)
    }

    /// The keys of a secret, as a command in the head of the file makes it.
    fn secret(&self, name: &str) -> Vec<String> {
        let command = format!("kubectl create secret generic {name} ");
        let line = self.text.lines().find(|line| line.starts_with('#') && line.contains(&command));
        let line = line.unwrap_or_else(|| panic!("{}: no secret {name}", self.file.display()));
        let keys = line.split("--from-literal=").skip(1);
        keys.map(|rest| rest.split('=').next().unwrap().to_owned()).collect()
    }
}

fn name_of(document: &Value) -> &str {
    document["metadata"]["name"].as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_sequence().map_or(&[], Vec::as_slice)
}

fn names<'v>(list: &'v [Value], key: &str) -> Vec<&'v str> {
    list.iter().map(|item| item[key].as_str().unwrap()).collect()
}

#[test]
fn every_document_has_a_known_kind_and_a_name_of_its_own() {
    let files = all();
    assert_eq!(files.len(), 2);
    for manifests in files {
        let mut known = BTreeSet::new();
        for document in &manifests.documents {
            let kind = document["kind"].as_str().unwrap();
            let version = document["apiVersion"].as_str().unwrap();
            assert!(KINDS.contains(&(kind, version)), "{kind} {version}");
            let name = name_of(document);
            let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.len() < 64 && name.chars().all(is_label), "{name}");
            assert!(known.insert((kind, name)), "{kind} {name} twice");
        }
    }
}

#[test]
fn what_selects_pods_selects_those_of_a_workload() {
    for manifests in all() {
        for workload in manifests.workloads() {
            let spec = &workload["spec"];
            let labels = &spec["template"]["metadata"]["labels"];
            assert_eq!(&spec["selector"]["matchLabels"], labels);
            if workload["kind"] == "StatefulSet" {
                assert!(manifests.has("Service", spec["serviceName"].as_str().unwrap()));
            }
        }
        let of_labels = |labels: &Value| {
            let mut workloads = manifests.workloads();
            let found = workloads
                .find(|workload| &workload["spec"]["template"]["metadata"]["labels"] == labels);
            found.unwrap_or_else(|| panic!("{}: {labels:?}", manifests.file.display()))
        };
        for service in manifests.of_kind("Service") {
            let pod = &of_labels(&service["spec"]["selector"])["spec"]["template"]["spec"];
            let ports = names(list(&pod["containers"][0]["ports"]), "name");
            for port in list(&service["spec"]["ports"]) {
                assert!(ports.contains(&port["targetPort"].as_str().unwrap()));
            }
        }
        for budget in manifests.of_kind("PodDisruptionBudget") {
            let workload = of_labels(&budget["spec"]["selector"]["matchLabels"]);
            let replicas = workload["spec"]["replicas"].as_u64().unwrap();
            let least = budget["spec"]["minAvailable"].as_u64().unwrap();
            assert!(least < replicas, "a node could never be drained");
        }
    }
}

#[test]
fn mounts_are_of_volumes_and_volumes_are_mounted() {
    for manifests in all() {
        for workload in manifests.workloads() {
            let pod = &workload["spec"]["template"]["spec"];
            let claims = list(&workload["spec"]["volumeClaimTemplates"]);
            let mut volumes = names(list(&pod["volumes"]), "name");
            volumes.extend(claims.iter().map(name_of));
            volumes.sort_unstable();
            let mut mounted = names(list(&pod["containers"][0]["volumeMounts"]), "name");
            mounted.sort_unstable();
            assert_eq!(mounted, volumes, "{}", name_of(workload));
            let mounts = names(list(&pod["containers"][0]["volumeMounts"]), "mountPath");
            let paths: BTreeSet<&str> = mounts.iter().copied().collect();
            assert!(paths.len() == mounts.len() && paths.iter().all(|path| path.starts_with('/')));
            for volume in list(&pod["volumes"]) {
                if let Some(name) = volume["configMap"]["name"].as_str() {
                    assert!(manifests.has("ConfigMap", name), "{name}");
                }
            }
            assert_eq!(pod["securityContext"]["runAsNonRoot"], Value::Bool(true));
            let container = &pod["containers"][0]["securityContext"];
            assert_eq!(container["readOnlyRootFilesystem"], Value::Bool(true));
            assert_eq!(container["allowPrivilegeEscalation"], Value::Bool(false));
            assert_eq!(strings(&container["capabilities"]["drop"]), ["ALL"]);
        }
    }
}

/// A workload whose container is tollgate.
struct Tollgate<'m> {
    workload: &'m Value,
    config: Config,
}

fn tollgate(manifests: &Manifests) -> Tollgate<'_> {
    let is_tollgate = |workload: &&Value| name_of(workload) == "tollgate";
    let workload = manifests.workloads().find(is_tollgate).unwrap();
    let pod = &workload["spec"]["template"]["spec"];
    let mut secrets = Vec::new();
    for volume in list(&pod["volumes"]) {
        let projected = list(&volume["projected"]["sources"]).iter();
        let sources = projected.map(|source| &source["secret"]["name"]);
        for name in sources.chain([&volume["secret"]["secretName"]]).filter_map(Value::as_str) {
            secrets.extend(manifests.secret(name));
        }
    }
    assert!(!secrets.is_empty());
    let map = manifests.of_kind("ConfigMap").next().unwrap();
    let text = map["data"]["tollgate.yaml"].as_str().unwrap();
    let config = policy(text, &secrets);
    if let Some((_, rest)) = text.split_once("redis://") {
        let (host, port) = rest.split(',').next().unwrap().split_once(':').unwrap();
        let service = manifests.of_kind("Service").find(|service| name_of(service) == host);
        let ports = list(&service.unwrap()["spec"]["ports"]);
        assert_eq!(ports[0]["port"].as_u64(), port.parse().ok());
    }
    Tollgate { workload, config }
}

#[test]
fn ports_probes_and_arguments_are_those_of_tollgate() {
    let endpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/admin/endpoints.rs");
    let endpoints = read(&endpoints);
    for manifests in all() {
        let Tollgate { workload, config } = tollgate(&manifests);
        let container = &workload["spec"]["template"]["spec"]["containers"][0];
        let port = |name: &str| {
            let ports = list(&container["ports"]);
            let named = ports.iter().find(|port| port["name"] == name).unwrap();
            named["containerPort"].as_u64().unwrap()
        };
        assert_eq!(port("http"), u64::from(config.listeners[0].address.port()));
        let admin = config.admin.as_ref().unwrap().address;
        assert_eq!(port("admin"), u64::from(admin.port()));
        assert!(admin.ip().is_unspecified(), "the kubelet asks at the pod's address");
        for (probe, path) in [("readinessProbe", "/ready"), ("livenessProbe", "/healthz")] {
            let asked = &container[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&path.into(), &"admin".into()));
            assert!(endpoints.contains(&format!("(\"{path}\", Endpoint::")), "{path}");
        }
        let arguments = strings(&container["args"]);
        assert!(!takes_over(&arguments), "a pod has nothing to take over from");
        let (folder, _) = arguments.last().unwrap().rsplit_once('/').unwrap();
        let mounts = list(&container["volumeMounts"]);
        assert!(
            mounts.iter().any(|mount| mount["name"] == "config" && mount["mountPath"] == folder)
        );
    }
}

#[test]
fn a_pod_has_the_time_that_its_end_may_take() {
    for manifests in all() {
        let Tollgate { workload, config } = tollgate(&manifests);
        let pod = &workload["spec"]["template"]["spec"];
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE_SECS);
        assert!(Duration::from_secs(grace) > longest_end(&config), "{grace}");
    }
}

/// Two pods cannot share a state directory, a volume's root belongs to root, and the kubelet opens what is in a volume to
/// the group unless it is told not to.
#[test]
fn a_state_directory_has_one_pod_and_lies_inside_of_a_claimed_volume() {
    let mut with_state = 0;
    for manifests in all() {
        let Tollgate { workload, config } = tollgate(&manifests);
        let pod = &workload["spec"]["template"]["spec"];
        for key in ["runAsUser", "runAsGroup", "fsGroup"] {
            assert_eq!(pod["securityContext"][key].as_u64(), Some(USER), "{key}");
        }
        let Some(state) = config.store.state() else {
            assert_eq!(workload["kind"], "Deployment");
            let rolling = &workload["spec"]["strategy"]["rollingUpdate"];
            assert_eq!(rolling["maxUnavailable"].as_u64(), Some(0));
            continue;
        };
        with_state += 1;
        assert_eq!(
            (&workload["kind"], &workload["spec"]["replicas"]),
            (&"StatefulSet".into(), &1.into())
        );
        assert_eq!(pod["securityContext"]["fsGroupChangePolicy"], "OnRootMismatch");
        let claims = list(&workload["spec"]["volumeClaimTemplates"]);
        let mounts = list(&pod["containers"][0]["volumeMounts"]);
        let inside = mounts.iter().find(|mount| {
            let path = Path::new(mount["mountPath"].as_str().unwrap());
            state.directory.starts_with(path) && state.directory != path
        });
        let name = inside.expect("below a mount")["name"].as_str().unwrap();
        assert!(claims.iter().any(|claim| name_of(claim) == name), "{name} is kept");
        assert_eq!(claims[0]["spec"]["accessModes"], Value::from(vec!["ReadWriteOnce"]));
    }
    assert_eq!(with_state, 1);
}
