//! From bytes to a configuration of either side.

use super::{Fault, Files, Material};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Files {
    pub(super) fn server(&self, material: &Material) -> Result<ServerConfig, Fault> {
        let names = self.names;
        let (chain, key) = self.identity(material)?.ok_or_else(|| missing(names.cert, names.authorities))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault { key: names.cert, reason: error.to_string() })?;
        let builder = match self.roots(material)? {
            Some((roots, path)) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| Fault {
                    key: names.authorities,
                    reason: format!("{}: {error}", path.display()),
                })?)
            }
            None => builder.with_no_client_auth(),
        };
        builder.with_single_cert(chain, key).map_err(|error| self.unfit(&error))
    }

    pub(super) fn client(&self, material: &Material) -> Result<ClientConfig, Fault> {
        let names = self.names;
        let identity = self.identity(material)?;
        let (roots, _) = self.roots(material)?.ok_or_else(|| missing(names.authorities, names.cert))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault { key: names.authorities, reason: error.to_string() })?
            .with_root_certificates(roots);
        match identity {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| self.unfit(&error))
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }

    fn identity(&self, material: &Material) -> Result<Option<Identity>, Fault> {
        let names = self.names;
        match (material.cert.as_ref().zip(self.cert.as_ref()), material.key.as_ref().zip(self.key.as_ref())) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(missing(names.key, names.cert)),
            (None, Some(_)) => Err(missing(names.cert, names.key)),
            (Some((cert, cert_path)), Some((key, key_path))) => {
                let chain = certificates(cert, cert_path).map_err(Fault::of(names.cert))?;
                let key = private_key(key, key_path).map_err(Fault::of(names.key))?;
                Ok(Some((chain, key)))
            }
        }
    }

    fn roots(&self, material: &Material) -> Result<Option<(RootCertStore, &Path)>, Fault> {
        let Some((bytes, path)) = material.authorities.as_ref().zip(self.authorities.as_deref()) else {
            return Ok(None);
        };
        let fault = Fault::of(self.names.authorities);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(bytes, path).map_err(&fault)? {
            roots.add(certificate).map_err(|error| fault(format!("{}: {error}", path.display())))?;
        }
        Ok(Some((roots, path)))
    }

    /// Certificate and key, each well-formed, cannot be used together.
    fn unfit(&self, error: &rustls::Error) -> Fault {
        let name = |path: &Option<_>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
        let (cert, key) = (name(&self.cert), name(&self.key));
        match error {
            rustls::Error::InconsistentKeys(_) => Fault {
                key: self.names.key,
                reason: format!("the key in {key} does not belong to the certificate in {cert}"),
            },
            error => {
                Fault { key: self.names.cert, reason: format!("{cert} with {key} cannot be used: {error}") }
            }
        }
    }
}

fn missing(key: &'static str, other: &str) -> Fault {
    Fault { key, reason: format!("is needed together with {other}") }
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(format!("{}: expected certificates in PEM form, found none", path.display()))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{} is not in PEM form: {error}", path.display())),
    }
}

fn private_key(bytes: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    match PrivateKeyDer::from_pem_slice(bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if bytes.windows(9).any(|word| word == b"ENCRYPTED") => {
            Err(format!("the key in {} is encrypted: expected one without a passphrase", path.display()))
        }
        Err(pem::Error::NoItemsFound) => {
            Err(format!("{}: expected a private key in PEM form, found none", path.display()))
        }
        Err(error) => Err(format!("{} is not in PEM form: {error}", path.display())),
    }
}
