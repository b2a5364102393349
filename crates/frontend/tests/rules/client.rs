//! A small HTTP client that shows exactly what came over the wire.

use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// No answer of these tests takes longer; a test that waits this long has found a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// The `data` of every event, in order.
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.text());
        events(&self.text())
    }

    /// The chunks of a stream that ended well.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text());
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

pub(crate) fn events(text: &str) -> Vec<String> {
    text.split("\n\n")
        .filter_map(|block| {
            let lines: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        })
        .collect()
}

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// With hardly any room for what is not read yet.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self { stream: socket.connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The same to a server that may answer and close before it has read everything.
    pub(crate) async fn write_some(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        if !body.is_empty() {
            if !headers.iter().any(|(name, _)| *name == "content-length") {
                head.push_str(&format!("content-length: {}\r\n", body.len()));
            }
            if !headers.iter().any(|(name, _)| *name == "content-type") {
                head.push_str("content-type: application/json\r\n");
            }
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        self.write(head.as_bytes()).await;
        // The server may answer and close before it has read everything.
        let _ = self.stream.write_all(body).await;
    }

    /// More bytes; false at the end.
    async fn fill(&mut self) -> bool {
        self.buffer.reserve(16 * 1024);
        let read = self.stream.read_buf(&mut self.buffer);
        tokio::time::timeout(PATIENCE, read).await.expect("no answer").unwrap_or(0) > 0
    }

    /// Reads until `text` has arrived.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        loop {
            let seen = String::from_utf8_lossy(&self.buffer).into_owned();
            if seen.contains(text) {
                return seen;
            }
            assert!(self.fill().await, "closed before {text:?}: {seen}");
        }
    }

    pub(crate) async fn is_closed(&mut self) -> bool {
        !self.fill().await
    }

    /// Writes a little more, unless there is an answer.
    pub(crate) async fn trickle(&mut self, bytes: &[u8]) -> Option<Reply> {
        if self.stream.write_all(bytes).await.is_ok() {
            let mut peeked = [0; 1];
            let waiting = tokio::time::timeout(Duration::from_millis(1), self.stream.peek(&mut peeked)).await;
            if waiting.is_err() {
                return None;
            }
        }
        Some(self.reply("POST").await)
    }

    /// Writes a little more. Has the server closed the connection?
    pub(crate) async fn trickle_closed(&mut self, bytes: &[u8]) -> bool {
        if self.stream.write_all(bytes).await.is_err() {
            return true;
        }
        let mut peeked = [0; 1];
        let waiting = tokio::time::timeout(Duration::from_millis(1), self.stream.peek(&mut peeked)).await;
        matches!(waiting, Ok(Ok(0) | Err(_)))
    }

    /// Says goodbye to one direction only.
    pub(crate) async fn close_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    pub(crate) async fn reply(&mut self, method: &str) -> Reply {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at;
            }
            assert!(self.fill().await, "closed in the head: {:?}", String::from_utf8_lossy(&self.buffer));
        };
        let head = String::from_utf8(self.buffer[..end].to_vec()).unwrap();
        self.buffer.drain(..end + 4);
        let mut lines = head.split("\r\n");
        let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut reply = Reply { status, headers, body: Vec::new() };
        if method == "HEAD" {
            return reply;
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = self.chunked().await;
        } else if let Some(length) = reply.header("content-length").map(|text| text.parse::<usize>().unwrap())
        {
            while self.buffer.len() < length {
                assert!(self.fill().await, "closed in the body");
            }
            reply.body = self.buffer.drain(..length).collect();
        }
        reply
    }

    async fn chunked(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = find(&self.buffer, b"\r\n") {
                    break at;
                }
                assert!(self.fill().await, "closed in a chunk: {}", String::from_utf8_lossy(&body));
            };
            let size = usize::from_str_radix(std::str::from_utf8(&self.buffer[..end]).unwrap(), 16).unwrap();
            while self.buffer.len() < end + 2 + size + 2 {
                assert!(self.fill().await, "closed in a chunk");
            }
            body.extend_from_slice(&self.buffer[end + 2..end + 2 + size]);
            self.buffer.drain(..end + 2 + size + 2);
            if size == 0 {
                return body;
            }
        }
    }

    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.send(method, path, headers, body).await;
        self.reply(method).await
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Reply {
    Client::connect(address).await.ask("GET", path, &[], b"").await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    Client::connect(address).await.ask("POST", path, &[], body.to_string().as_bytes()).await
}
