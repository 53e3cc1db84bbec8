//! The image, and the compose files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_yaml::Value;

use super::{USER, conf, longest_end, policy, read, strings};

/// How long Docker waits for a container that does not say it, before it kills it.
const DEFAULT_STOP: &str = "10s";

fn dockerfile() -> String {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile"))
}

#[test]
fn the_image_has_a_private_directory_for_the_state_of_its_user() {
    let text = dockerfile();
    let user = format!("USER {USER}:{USER}\n");
    let (as_root, _) = text.split_once(&user).expect("the image's user");
    let made =
        format!("install --directory --mode 0700 --owner {USER} --group {USER} /var/lib/tollgate");
    assert!(as_root.contains(&made), "made while the build is root");
    // With a volume of its own for every container, nothing would be found again, and each would stay.
    assert!(!text.contains("\nVOLUME"));
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(conf().join("compose")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "yml")).collect()
}

#[test]
fn every_compose_file_mounts_what_there_is_and_waits_for_the_end() {
    let files = files();
    assert!(files.len() >= 2, "{files:?}");
    let mut with_state = 0;
    for file in files {
        let compose: Value = serde_yaml::from_str(&read(&file)).unwrap();
        let services = compose["services"].as_mapping().unwrap();
        let mut proxies = 0;
        for (name, service) in services {
            let service = merged(service);
            let at = format!("{}: {}", file.display(), name.as_str().unwrap());
            for (source, _) in mounts(&service) {
                let is_there = match source.starts_with('.') {
                    true => file.parent().unwrap().join(&source).exists(),
                    false => compose["volumes"].get(&*source).is_some(),
                };
                assert!(is_there, "{at}: {source}");
            }
            for other in strings(&service["depends_on"]) {
                assert!(services.contains_key(other), "{at}: {other}");
            }
            if service.get("build").is_some() {
                with_state += u32::from(proxy(&at, &file, &service, services.keys()));
                proxies += 1;
            }
        }
        assert!(proxies > 0, "{}", file.display());
    }
    assert_eq!(with_state, 1);
}

/// A service with the keys of the one that it is merged with (`<<`).
fn merged(service: &Value) -> Value {
    let mut service = service.clone();
    service.apply_merge().unwrap();
    service
}

/// Sources and targets of volumes.
fn mounts(service: &Value) -> Vec<(String, String)> {
    let parts = |text: &str| {
        let mut parts = text.split(':').map(str::to_owned);
        (parts.next().unwrap(), parts.next().unwrap())
    };
    strings(&service["volumes"]).into_iter().map(parts).collect()
}

/// Checks a service that is tollgate. Returns whether it has a state directory.
fn proxy<'s>(
    at: &str,
    file: &Path,
    service: &Value,
    services: impl Iterator<Item = &'s Value>,
) -> bool {
    let folder = file.parent().unwrap();
    assert!(folder.join(service["build"].as_str().unwrap()).join("Dockerfile").exists(), "{at}");
    assert_eq!(service["read_only"], Value::Bool(true), "{at}");
    assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{at}");
    let mounts = mounts(service);
    let (source, _) =
        mounts.iter().find(|(_, target)| target == "/etc/tollgate/tollgate.yaml").unwrap();
    let text = read(&folder.join(source));
    let config = policy(&text, &[]);
    // Each host in it is a service.
    let services: Vec<&str> = services.map(|name| name.as_str().unwrap()).collect();
    for origin in config.origins.iter().flat_map(|origin| &origin.servers) {
        let (host, _) = origin.address.rsplit_once(':').unwrap();
        assert!(services.contains(&host), "{at}: {host}");
    }
    if let Some((_, rest)) = text.split_once("redis://") {
        assert!(services.contains(&rest.split(':').next().unwrap()), "{at}");
    }
    let Some(state) = config.store.state() else {
        return false;
    };
    let (source, _) = mounts
        .iter()
        .find(|(_, target)| state.directory == Path::new(target))
        .unwrap_or_else(|| panic!("{at}: the state is in no volume"));
    assert!(!source.starts_with('.'), "{at}: only a named volume gets owner and mode of the image");
    let image = format!(" {}\n", state.directory.display());
    assert!(dockerfile().contains(&image), "{at}: no such directory in the image");
    let stop = service["stop_grace_period"].as_str().unwrap_or(DEFAULT_STOP);
    let stop = Duration::from_secs(stop.strip_suffix('s').unwrap().parse().unwrap());
    assert!(stop > longest_end(&config), "{at}: {stop:?}");
    true
}
