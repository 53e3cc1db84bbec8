use std::path::Path;
use std::sync::Arc;

use tollgate::clock::{ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::Engine;
use tollgate::policy::KeySecret;

/// The text of a configuration. What is accepted can be put in force; what is refused is refused at
/// places that exist.
pub fn configurations(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match config::read_text(text, "f.yaml", Path::new("")) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                exists(text, warning.location);
            }
            let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
            let engine = Engine::new(clock, KeySecret::new([7; 16]));
            let generation = engine.generation(loaded.config.policy, None).0;
            engine.tick(&generation);
        }
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                assert!(!error.message.is_empty());
                error.location.into_iter().for_each(|location| exists(text, location));
            }
            assert!(errors.lines().iter().all(|line| line.starts_with("f.yaml:")));
        }
    }
}

/// A location is a character of the text, or its end.
fn exists(text: &str, location: config::Location) {
    // (To YAML a carriage return alone ends a line too.)
    let lines = text.split(['\r', '\n']).count();
    assert!((1..=lines + 1).contains(&location.line) && location.column >= 1, "{location:?}");
}
