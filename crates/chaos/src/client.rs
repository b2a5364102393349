//! A client that reads byte by byte what a frontend says, at its own pace, and may leave.

use crate::answer::{Answer, End};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Longest head or line of a body.
const LINE_LIMIT: u64 = 1 << 20;

/// Longest body that is not a stream.
const BODY_LIMIT: u64 = 64 << 20;

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Plain,
    /// Waits this long after each piece of the first ones.
    Slow(Duration),
    /// Closes the connection after so many pieces.
    Leaves(usize),
}

/// Pieces that a slow client is slow with.
const SLOW_PIECES: usize = 24;

/// Sends `body` and reads the stream that answers it.
pub(crate) async fn ask(
    address: SocketAddr,
    path: &str,
    body: &Value,
    manner: Manner,
    limit: Duration,
) -> Answer {
    let mut answer = Answer::default();
    let end = timeout(limit, exchange(address, path, body, manner, &mut answer)).await;
    answer.end = end.unwrap_or(End::Overdue(limit));
    answer
}

async fn exchange(address: SocketAddr, path: &str, body: &Value, manner: Manner, answer: &mut Answer) -> End {
    let broken = |error: std::io::Error| End::Broken(error.to_string());
    let mut reader = match send(address, "POST", path, Some(body)).await {
        Ok(reader) => reader,
        Err(error) => return broken(error),
    };
    let status = match head(&mut reader).await {
        Ok(status) => status,
        Err(error) => return broken(error),
    };
    answer.has_begun = true;
    if status != 200 {
        let mut body = String::new();
        let _ = reader.take(LINE_LIMIT).read_to_string(&mut body).await;
        return End::Refused(status, body);
    }
    let mut last = Instant::now();
    loop {
        let chunk = match chunk(&mut reader).await {
            Ok(chunk) => chunk,
            Err(error) => return broken(error),
        };
        if chunk.is_empty() {
            return answer.finish();
        }
        answer.longest_gap = answer.longest_gap.max(last.elapsed());
        answer.push(&chunk);
        match manner {
            Manner::Leaves(pieces) if answer.pieces >= pieces => return End::Left,
            Manner::Slow(pause) if answer.pieces < SLOW_PIECES => sleep(pause).await,
            _ => {}
        }
        last = Instant::now();
    }
}

/// The whole body of a page.
///
/// # Errors
/// One line: the frontend cannot be reached or does not answer with 200.
pub(crate) async fn get(address: SocketAddr, path: &str, limit: Duration) -> Result<String, String> {
    let page = async {
        let mut reader = send(address, "GET", path, None).await?;
        let status = head(&mut reader).await?;
        let mut body = String::new();
        reader.take(BODY_LIMIT).read_to_string(&mut body).await?;
        if status == 200 { Ok(body) } else { Err(std::io::Error::other(format!("status {status}"))) }
    };
    let page = timeout(limit, page).await.map_err(|_| format!("{address}{path}: no answer in {limit:?}"))?;
    page.map_err(|error| format!("{address}{path}: {error}"))
}

async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address).await?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(BufReader::with_capacity(4096, stream))
}

/// The status of the answer whose head is read.
async fn head(reader: &mut BufReader<TcpStream>) -> std::io::Result<u16> {
    let first = line(reader).await?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status in `{first}`")))?;
    while !line(reader).await?.is_empty() {}
    Ok(status)
}

async fn line(reader: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    reader.take(LINE_LIMIT).read_line(&mut line).await?;
    match line.strip_suffix("\r\n") {
        Some(whole) => Ok(whole.to_owned()),
        None => Err(std::io::Error::other("the connection ended in the middle of the answer")),
    }
}

/// The next chunk of a body; empty at its end.
async fn chunk(reader: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let size = line(reader).await?;
    let length = u64::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16);
    let length = length.ok().filter(|length| *length <= LINE_LIMIT);
    let length = length.ok_or_else(|| std::io::Error::other(format!("no size of a chunk in `{size}`")))?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    reader.read_exact(&mut bytes).await?;
    line(reader).await?;
    Ok(bytes)
}
