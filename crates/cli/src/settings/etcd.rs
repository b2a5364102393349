//! The keys of the etcd backend of discovery.

use super::{DiscoveryBackend, DiscoverySettings};
use dynamo_runtime::config::Key;
use dynamo_runtime::discovery::etcd::Options;
use std::time::Duration;

impl DiscoverySettings {
    pub(crate) fn etcd(&self) -> Options {
        let options = Options::default();
        let endpoints = self.etcd_endpoints.as_ref().map_or(options.endpoints, |endpoints| {
            let endpoints = endpoints.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty());
            endpoints.map(str::to_owned).collect()
        });
        let login =
            self.etcd_username.clone().map(|user| (user, self.etcd_password.clone().unwrap_or_default()));
        Options {
            endpoints,
            login,
            lease: self.etcd_lease_s.map_or(options.lease, Duration::from_secs),
            connect_timeout: self
                .etcd_connect_timeout_ms
                .map_or(options.connect_timeout, Duration::from_millis),
            ..options
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        // Below 2 etcd itself does not go.
        const LEASES_S: std::ops::RangeInclusive<u64> = 2..=3600;
        if let Some(found) = self.etcd_lease_s
            && !LEASES_S.contains(&found)
        {
            return Err(format!("discovery.etcd_lease_s: expected 2 to 3600, found {found}"));
        }
        if self.etcd_password.is_some() && self.etcd_username.is_none() {
            return Err(
                "discovery.etcd_username: expected one beside discovery.etcd_password, found none".into()
            );
        }
        if self.backend == Some(DiscoveryBackend::Etcd) && self.etcd().endpoints.is_empty() {
            return Err("discovery.etcd_endpoints: expected at least one, found none".into());
        }
        Ok(())
    }
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new("discovery.etcd_endpoints", "Members of etcd, such as `http://host:2379`, separated by commas; default `http://localhost:2379`")
            .env("ETCD_ENDPOINTS"),
        Key::new("discovery.etcd_username", "User of etcd, if it asks for one").env("ETCD_AUTH_USERNAME"),
        Key::new("discovery.etcd_password", "That user's password; better in the environment than in a file")
            .env("ETCD_AUTH_PASSWORD"),
        Key::new(
            "discovery.etcd_lease_s",
            "Time after which a worker that says nothing to etcd is gone, alike for all processes; default 10",
        )
        .env("ETCD_LEASE_TTL"),
        Key::new(
            "discovery.etcd_connect_timeout_ms",
            "Longest wait for etcd at the start, and for a registration; default 120000",
        )
        .scaled_env("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", 1000),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_taken_apart_and_what_cannot_work_is_refused() {
        let several = DiscoverySettings {
            backend: Some(DiscoveryBackend::Etcd),
            etcd_endpoints: Some("http://a:1, b:2,".into()),
            ..DiscoverySettings::default()
        };
        assert_eq!(several.etcd().endpoints, ["http://a:1", "b:2"]);
        assert_eq!(several.check(), Ok(()));
        let none = DiscoverySettings { etcd_endpoints: Some(" ,".into()), ..several.clone() };
        assert!(none.check().unwrap_err().starts_with("discovery.etcd_endpoints: expected at least one"));
        let short = DiscoverySettings { etcd_lease_s: Some(1), ..several.clone() };
        assert_eq!(short.check().unwrap_err(), "discovery.etcd_lease_s: expected 2 to 3600, found 1");
        let nobody = DiscoverySettings { etcd_password: Some("secret".into()), ..several };
        assert!(nobody.check().unwrap_err().starts_with("discovery.etcd_username"));
    }
}
