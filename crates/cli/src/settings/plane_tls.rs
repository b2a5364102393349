//! The keys of TLS between frontends and workers.

use super::RequestPlaneSettings;
use dynamo_runtime::config::Key;
use dynamo_runtime::plane::tcp;
use dynamo_runtime::tls::{Files, Names};
use std::path::PathBuf;

const CERT: &str = "request_plane.tls_cert_path";
const KEY: &str = "request_plane.tls_key_path";
const CLIENT_CA: &str = "request_plane.tls_client_ca_cert_path";
const CA: &str = "request_plane.tls_ca_cert_path";
const CLIENT_CERT: &str = "request_plane.tls_client_cert_path";
const CLIENT_KEY: &str = "request_plane.tls_client_key_path";
const SERVER_NAME: &str = "request_plane.tls_server_name";

impl RequestPlaneSettings {
    /// Within a runtime: the files are followed.
    ///
    /// # Errors
    /// One line: the setting, and what is wrong with its file.
    pub(crate) fn tls(&self) -> Result<tcp::Tls, String> {
        let path = |path: &Option<String>| path.as_ref().map(PathBuf::from);
        let accept = Files {
            names: Names { cert: CERT, key: KEY, authorities: CLIENT_CA },
            cert: path(&self.tls_cert_path),
            key: path(&self.tls_key_path),
            authorities: path(&self.tls_client_ca_cert_path),
        };
        let connect = Files {
            names: Names { cert: CLIENT_CERT, key: CLIENT_KEY, authorities: CA },
            cert: path(&self.tls_client_cert_path),
            key: path(&self.tls_client_key_path),
            authorities: path(&self.tls_ca_cert_path),
        };
        let name = self.tls_server_name.as_deref().map(|name| (SERVER_NAME, name));
        tcp::Tls::open(accept, connect, name).map_err(|fault| fault.to_string())
    }
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new(CERT, "Certificate chain of the workers (PEM); with its key, frontends must speak TLS")
            .env("DYN_TCP_TLS_CERT_PATH"),
        Key::new(KEY, "Private key of that certificate (PEM)").env("DYN_TCP_TLS_KEY_PATH"),
        Key::new(CLIENT_CA, "Authorities of frontends' certificates (PEM); frontends need one (mutual TLS)")
            .env("DYN_TCP_TLS_CLIENT_CA_CERT_PATH"),
        Key::new(CA, "Authorities of workers' certificates (PEM); workers must speak TLS")
            .env("DYN_TCP_TLS_CA_CERT_PATH"),
        Key::new(CLIENT_CERT, "Certificate chain of the frontend (PEM), for mutual TLS")
            .env("DYN_TCP_TLS_CLIENT_CERT_PATH"),
        Key::new(CLIENT_KEY, "Private key of that certificate (PEM)").env("DYN_TCP_TLS_CLIENT_KEY_PATH"),
        Key::new(
            SERVER_NAME,
            "Name in the certificates of all workers; unset: the host by which each is reached",
        )
        .env("DYN_TCP_TLS_SERVER_NAME"),
    ]
    .into_iter()
}
