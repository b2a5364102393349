//! The keys of a process's own port for health and metrics.

use dynamo_runtime::config::Key;
use dynamo_runtime::system::Options;
use serde::{Deserialize, Serialize};

/// The port for health and metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SystemSettings {
    /// Below 0: there is none.
    port: i32,
    host: String,
    health_path: String,
    live_path: String,
    starting_health_status: Status,
}

/// What `/health` says before the process has anything to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    #[default]
    #[serde(rename = "notready")]
    NotReady,
    Ready,
}

impl Default for SystemSettings {
    fn default() -> Self {
        let Options { host, health_path, live_path, .. } = Options::default();
        Self { port: -1, host, health_path, live_path, starting_health_status: Status::default() }
    }
}

impl SystemSettings {
    /// None: there is no such port.
    pub(crate) fn options(&self) -> Option<Options> {
        let port = u16::try_from(self.port).ok()?;
        Some(Options {
            port,
            host: self.host.clone(),
            health_path: self.health_path.clone(),
            live_path: self.live_path.clone(),
        })
    }

    pub(crate) fn starts_ready(&self) -> bool {
        self.starting_health_status == Status::Ready
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if !(-1..=i32::from(u16::MAX)).contains(&self.port) {
            return Err(format!("system.port: expected -1 to 65535, found {}", self.port));
        }
        let paths = [("system.health_path", &self.health_path), ("system.live_path", &self.live_path)];
        if let Some((key, path)) = paths.into_iter().find(|(_, path)| !path.starts_with('/')) {
            return Err(format!("{key}: expected a path that begins with `/`, found `{path}`"));
        }
        Ok(())
    }
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new(
            "system.port",
            "Port for `/health`, `/live` and `/metrics` of any role; -1: none; 0 takes a free one",
        ),
        Key::new("system.host", "Address to listen on for them"),
        Key::new("system.health_path", "Where it says whether the process does what it promises; 503 if not"),
        Key::new("system.live_path", "Where it says that the process lives"),
        Key::new(
            "system.starting_health_status",
            "`notready` or `ready`: what health is before there is anything to serve",
        ),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_port_if_it_is_asked_for() {
        let settings = |port| SystemSettings { port, ..SystemSettings::default() };
        assert_eq!(settings(-1).options(), None);
        assert_eq!(settings(8081).options().map(|options| options.port), Some(8081));
        assert_eq!(settings(70_000).check().unwrap_err(), "system.port: expected -1 to 65535, found 70000");
        let bad = SystemSettings { live_path: "live".into(), ..settings(1) };
        assert!(bad.check().unwrap_err().starts_with("system.live_path: expected a path"));
        assert!(!settings(1).starts_ready() && settings(1).check().is_ok());
    }
}
