//! The keys of NATS, as a transport of the request plane.

use super::RequestPlaneSettings;
use dynamo_runtime::config::Key;
use dynamo_runtime::plane::nats::{Login, Options, Seed};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What workers of this process are reached by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestTransport {
    /// A port of their own.
    #[default]
    Tcp,
    /// A server that both sides reach.
    Nats,
}

/// The server of NATS, and who we are to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NatsSettings {
    pub(crate) url: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) nkey: Option<String>,
    pub(crate) credentials_file: Option<String>,
    pub(crate) startup_timeout_ms: u64,
}

impl Default for NatsSettings {
    fn default() -> Self {
        let timeout = Options::default().startup_timeout;
        Self {
            url: "nats://localhost:4222".into(),
            username: None,
            password: None,
            token: None,
            nkey: None,
            credentials_file: None,
            startup_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

const DEFAULT_PORT: u16 = 4222;

impl NatsSettings {
    /// # Errors
    /// One line with the key: what of the settings cannot work.
    pub(crate) fn options(&self, plane: &RequestPlaneSettings) -> Result<Options, String> {
        let urls = self.url.split(',').map(str::trim).filter(|url| !url.is_empty());
        let urls: Vec<Url> = urls.map(Url::parse).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            return Err("nats.url: expected at least one, found none".into());
        }
        let named = urls.iter().find_map(|url| url.login.clone());
        Ok(Options {
            login: self.login()?.or(named).unwrap_or(Login::None),
            servers: urls.into_iter().map(|url| url.address).collect(),
            connect_timeout: Duration::from_millis(plane.connect_timeout_ms),
            startup_timeout: Duration::from_millis(self.startup_timeout_ms),
            beat_every: Duration::from_millis(plane.beat_ms),
            dead_after: Duration::from_millis(plane.dead_after_ms),
        })
    }

    /// At most one way to show who we are.
    fn login(&self) -> Result<Option<Login>, String> {
        let set = [
            ("nats.username", self.username.is_some()),
            ("nats.token", self.token.is_some()),
            ("nats.nkey", self.nkey.is_some()),
            ("nats.credentials_file", self.credentials_file.is_some()),
        ];
        let mut set = set.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key);
        if let (Some(first), Some(second)) = (set.next(), set.next()) {
            return Err(format!("{second}: expected none beside {first}, found one"));
        }
        if self.password.is_some() && self.username.is_none() {
            return Err("nats.username: expected one beside nats.password, found none".into());
        }
        if let Some(user) = self.username.clone() {
            return Ok(Some(Login::Password { user, password: self.password.clone().unwrap_or_default() }));
        }
        if let Some(seed) = &self.nkey {
            return Seed::parse(seed)
                .map(|seed| Some(Login::Key(seed)))
                .map_err(|error| format!("nats.nkey: {error}"));
        }
        if let Some(path) = &self.credentials_file {
            let fault = |error: String| format!("nats.credentials_file: {path}: {error}");
            let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
            return Login::from_credentials(&text).map(Some).map_err(fault);
        }
        Ok(self.token.clone().map(Login::Token))
    }
}

/// One server, as users write it.
#[derive(Debug, PartialEq)]
struct Url {
    address: String,
    login: Option<Login>,
}

impl Url {
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
        // A URL may hold a password, which is not for logs.
        let shown = rest.rsplit('@').next().unwrap_or(rest);
        match scheme {
            "nats" => {}
            "tls" => return Err(format!("nats.url: TLS is not supported yet, found tls://{shown}")),
            _ => return Err(format!("nats.url: expected nats://host:port, found {scheme}://{shown}")),
        }
        let (login, host) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, host)) => (Some(login), host),
        };
        let host = host.trim_end_matches('/');
        let name = host.strip_prefix('[').map_or(host, |v6| v6.split_once(']').map_or("", |(_, port)| port));
        let has_port = name.contains(':');
        let port = name.rsplit_once(':').map(|(_, port)| port);
        if host.is_empty() || host.contains('/') || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(format!("nats.url: expected nats://host:port, found {shown}"));
        }
        let address = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
        let login = login.map(|login| match login.split_once(':') {
            Some((user, password)) => Login::Password { user: decoded(user), password: decoded(password) },
            None => Login::Token(decoded(login)),
        });
        Ok(Self { address, login })
    }
}

/// Without the escapes of URLs; what is none stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let escaped = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (byte, used) = match escaped {
            Some(byte) if first == b'%' => (byte, 3),
            _ => (first, 1),
        };
        bytes.push(byte);
        rest = rest.get(used..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new(
            "request_plane.transport",
            "How frontends reach the workers of this process: `tcp` or `nats`",
        )
        .flag("--request-plane")
        .env("DYN_REQUEST_PLANE"),
        Key::new("nats.url", "Servers of NATS, such as `nats://host:4222`, separated by commas")
            .env("NATS_SERVER"),
        Key::new("nats.username", "User of NATS, if it asks for one").env("NATS_AUTH_USERNAME"),
        Key::new("nats.password", "That user's password; better in the environment than in a file")
            .env("NATS_AUTH_PASSWORD"),
        Key::new("nats.token", "Token of NATS, if it asks for one").env("NATS_AUTH_TOKEN"),
        Key::new("nats.nkey", "Seed of a user's key (`SU...`), if NATS asks for a signature; better in the environment than in a file")
            .env("NATS_AUTH_NKEY"),
        Key::new("nats.credentials_file", "File of credentials (`.creds`), if NATS asks for a signed token")
            .env("NATS_AUTH_CREDENTIALS_FILE"),
        Key::new("nats.startup_timeout_ms", "Longest wait for NATS at the start"),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str, change: impl Fn(&mut NatsSettings)) -> Result<Options, String> {
        let mut settings = NatsSettings { url: url.into(), ..NatsSettings::default() };
        change(&mut settings);
        settings.options(&RequestPlaneSettings::default())
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, servers) in [
            ("nats://a:1, b ,", vec!["a:1", "b:4222"]),
            ("nats://[::1]:7/", vec!["[::1]:7"]),
            ("[::1]", vec!["[::1]:4222"]),
        ] {
            assert_eq!(options(url, |_| {}).unwrap().servers, servers);
        }
        let password =
            |user: &str, password: &str| Login::Password { user: user.into(), password: password.into() };
        assert!(options("nats://u:p%40ss%zz@h", |_| {}).unwrap().login == password("u", "p@ss%zz"));
        assert!(options("nats://secret@h:1", |_| {}).unwrap().login == Login::Token("secret".into()));
        let both = options("nats://secret@h:1", |settings| settings.username = Some("me".into()));
        assert!(both.unwrap().login == password("me", ""), "keys come before the URL");
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key_and_without_secrets() {
        for (url, expected) in [
            (" ,", "at least one"),
            ("http://a:1", "found http://a:1"),
            ("nats://secret@a:x", "found a:x"),
            ("tls://secret@a", "found tls://a"),
            ("nats://", "expected nats://host:port"),
        ] {
            let error = options(url, |_| {}).unwrap_err();
            assert!(error.starts_with("nats.url: ") && error.contains(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let error = options("a", |settings| settings.password = Some("p".into())).unwrap_err();
        assert!(error.starts_with("nats.username: "), "{error}");
        let error = options("a", |settings| {
            settings.username = Some("u".into());
            settings.token = Some("t".into());
        });
        assert_eq!(error.unwrap_err(), "nats.token: expected none beside nats.username, found one");
        let error = options("a", |settings| settings.nkey = Some("secret".into())).unwrap_err();
        assert!(
            error.starts_with("nats.nkey: expected a user's seed") && !error.contains("secret"),
            "{error}"
        );
        let error = options("a", |settings| settings.credentials_file = Some("nowhere.creds".into()));
        assert!(error.unwrap_err().starts_with("nats.credentials_file: nowhere.creds: "));
    }
}
