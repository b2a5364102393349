//! One request to a running server, for the commands that a person types.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::io::{self, Write};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A server on the same machine accepts at once; one across the world within this.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest silence. Covers a long prompt that waits behind others on a slow machine.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(300);
/// Longest unary body read: some thousand models or workers.
const BODY_LIMIT_BYTES: usize = 1 << 20;
/// Where `dynamo serve` listens unless told otherwise.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// # Errors
/// One line: standard output is closed.
pub(crate) fn write_out(text: &str) -> Result<(), String> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot write the answer: {error}"))
}

/// Where the server is. One connection per request: a conversation is slow, and a server may restart within it.
pub(crate) struct Server {
    /// `host:port`.
    pub(crate) authority: String,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// An error as a frontend says it, or a router.
#[derive(Deserialize)]
struct Refusal {
    error: Words,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Whole(Fault),
    Plain(String),
}

/// An error in OpenAI's form.
#[derive(Debug, Deserialize)]
pub(crate) struct Fault {
    pub(crate) message: String,
}

/// A response, and the connection it comes from; both end when this is dropped.
pub(crate) struct Reply {
    pub(crate) response: Response<Incoming>,
    _connection: JoinSet<()>,
}

impl Server {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let fault = |found: &str| format!("--url {url}: expected http://HOST:PORT, found {found}");
        let uri: Uri = url.parse().map_err(|error| fault(&format!("{error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(scheme) => return Err(fault(&format!("the scheme `{scheme}`"))),
            None => return Err(fault("no scheme")),
        }
        if !matches!(uri.path(), "" | "/" | "/v1" | "/v1/") {
            return Err(fault(&format!("the path `{}`", uri.path())));
        }
        let host = uri.host().ok_or_else(|| fault("no host"))?;
        Ok(Self { authority: format!("{host}:{}", uri.port_u16().unwrap_or(80)) })
    }

    pub(crate) fn silent(&self) -> String {
        format!("no answer from {self} for {} s", SILENCE_LIMIT.as_secs())
    }

    /// # Errors
    /// The server cannot be reached or refuses; the text is the server's own where it gave one.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Reply, String> {
        let unreachable =
            |why: String| format!("cannot reach {self}: {why}. Is it running? Start it with `dynamo serve`");
        let stream = timeout(CONNECT_LIMIT, TcpStream::connect(&self.authority))
            .await
            .map_err(|_| unreachable(format!("no connection within {} s", CONNECT_LIMIT.as_secs())))?
            .map_err(|error| unreachable(error.to_string()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // A broken connection shows as an error of the response's body.
            drop(connection.await);
        });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.authority)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| format!("--url http://{}: {error}", self.authority))?;
        let response = timeout(SILENCE_LIMIT, sender.send_request(request))
            .await
            .map_err(|_| self.silent())?
            .map_err(|error| format!("{self} gave no answer: {error}"))?;
        let reply = Reply { response, _connection: tasks };
        if reply.response.status().is_success() { Ok(reply) } else { Err(reply.refusal().await) }
    }

    pub(crate) async fn first_model(&self) -> Result<String, String> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            id: String,
        }
        let body = self.send(Method::GET, "/v1/models", Vec::new()).await?.whole().await?;
        let list: List = serde_json::from_slice(&body)
            .map_err(|error| format!("{self} does not list models as OpenAI does: {error}"))?;
        list.data
            .into_iter()
            .next()
            .map(|entry| entry.id)
            .ok_or_else(|| format!("{self} serves no model yet"))
    }
}

impl Reply {
    pub(crate) async fn whole(self) -> Result<Bytes, String> {
        let body =
            timeout(SILENCE_LIMIT, Limited::new(self.response.into_body(), BODY_LIMIT_BYTES).collect());
        let body = body.await.map_err(|_| "the answer did not end".to_owned())?;
        body.map(|body| body.to_bytes()).map_err(|error| format!("the answer broke off: {error}"))
    }

    /// The server's own words for an error status.
    async fn refusal(self) -> String {
        let status = self.response.status();
        let body = self.whole().await.unwrap_or_default();
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(Refusal { error: Words::Whole(Fault { message }) | Words::Plain(message) }) => message,
            _ => format!("the server answered {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_before_they_are_used() {
        let authority = |url: &str| Server::parse(url).map(|server| server.authority);
        assert_eq!(authority("http://127.0.0.1:8000").unwrap(), "127.0.0.1:8000");
        assert_eq!(authority("http://localhost/v1/").unwrap(), "localhost:80");
        assert_eq!(authority("http://[::1]:9").unwrap(), "[::1]:9");
        for bad in
            ["", "127.0.0.1:8000", "https://example.test", "http://a/b", "http://", "ftp://a", "http://a b"]
        {
            let fault = authority(bad).unwrap_err();
            assert!(fault.starts_with(&format!("--url {bad}: expected http://HOST:PORT")), "{fault}");
        }
    }
}
