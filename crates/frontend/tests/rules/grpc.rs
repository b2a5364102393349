//! A small gRPC client over HTTP/2 that shows exactly what came over the wire.

use crate::client::PATIENCE;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::kserve::SERVICE;
use dynamo_protocols::kserve::frame::{self, Frames};
use dynamo_protocols::kserve::wire::{self, Fields, Value};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// What a client sends, piece by piece, until the sender is dropped.
pub(crate) struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// What a connection runs; it ends with its [`Grpc`], so that dropping that closes the socket.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.lock().unwrap().spawn(async move {
            task.await;
        });
    }
}

/// A connection.
pub(crate) struct Grpc {
    send: SendRequest<Pieces>,
    connection: JoinHandle<()>,
    tasks: Tasks,
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.connection.abort();
        self.tasks.0.lock().unwrap().abort_all();
    }
}

/// A call on its way.
pub(crate) struct Call {
    pub(crate) send: Option<mpsc::UnboundedSender<Bytes>>,
    pub(crate) response: Response<Incoming>,
    frames: Frames,
    trailers: Option<HeaderMap>,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) messages: Vec<Bytes>,
    pub(crate) code: u32,
    pub(crate) message: String,
}

impl Grpc {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let tasks = Tasks::default();
        let mut builder = http2::Builder::new(tasks.clone());
        // One call that is not read must not hold up the others on the client's own side.
        builder.initial_connection_window_size(1 << 30).initial_stream_window_size(65_535);
        let (send, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { send, connection, tasks }
    }

    /// Until the server has closed the connection.
    pub(crate) async fn closed(mut self) {
        timeout(PATIENCE, &mut self.connection).await.expect("the server closes").unwrap();
    }

    pub(crate) async fn request(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        pieces: Vec<Bytes>,
    ) -> (mpsc::UnboundedSender<Bytes>, impl Future<Output = hyper::Result<Response<Incoming>>> + use<>) {
        let (send, receive) = mpsc::unbounded_channel();
        pieces.into_iter().for_each(|piece| send.send(piece).unwrap());
        let mut request = Request::post(format!("http://t{path}")).header("te", "trailers");
        if headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send.ready().await.unwrap();
        (send, self.send.send_request(request.body(Pieces(receive)).unwrap()))
    }

    /// A call that stays open for more messages.
    pub(crate) async fn open(&mut self, method: &str, headers: &[(&str, &str)], pieces: Vec<Bytes>) -> Call {
        let (send, response) = self.request(&format!("{SERVICE}{method}"), headers, pieces).await;
        let response = timeout(PATIENCE, response).await.expect("an answer comes").unwrap();
        Call { send: Some(send), response, frames: Frames::new(1 << 30), trailers: None }
    }

    /// A whole call.
    pub(crate) async fn call(&mut self, method: &str, headers: &[(&str, &str)], pieces: Vec<Bytes>) -> Ended {
        let (send, response) = self.request(&format!("{SERVICE}{method}"), headers, pieces).await;
        drop(send);
        let response = timeout(PATIENCE, response).await.expect("an answer comes").unwrap();
        Call::reading(response).end().await
    }
}

impl Call {
    /// With nothing more to say.
    pub(crate) fn reading(response: Response<Incoming>) -> Self {
        Self { send: None, response, frames: Frames::new(1 << 30), trailers: None }
    }

    pub(crate) fn say(&self, message: &[u8]) {
        self.send.as_ref().unwrap().send(framed(message)).unwrap();
    }

    /// The next message; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.frames.next_message().unwrap() {
                return Some(message);
            }
            let frame = timeout(PATIENCE, self.response.frame()).await.expect("more comes")?.unwrap();
            match frame.into_data() {
                Ok(data) => self.frames.push(&data),
                Err(frame) => self.trailers = frame.into_trailers().ok(),
            }
        }
    }

    /// Everything to the end, with nothing more to say.
    pub(crate) async fn end(mut self) -> Ended {
        self.send = None;
        self.rest().await
    }

    /// Everything to the end that the server makes.
    pub(crate) async fn rest(mut self) -> Ended {
        assert_eq!(self.response.status(), 200);
        assert_eq!(self.response.headers()["content-type"], "application/grpc");
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        let headers = self.trailers.as_ref().unwrap_or(self.response.headers());
        let text = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        Ended { messages, code: text("grpc-status").parse().unwrap(), message: text("grpc-message") }
    }
}

/// The rest of a call that was begun by [`Grpc::request`].
pub(crate) async fn ended(response: Response<Incoming>) -> Ended {
    Call::reading(response).end().await
}

pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    frame::write(&mut out, |out| out.extend_from_slice(message));
    out.freeze()
}

/// A `ModelInferRequest`.
#[derive(Clone, Default)]
pub(crate) struct Infer<'a> {
    pub(crate) model: &'a str,
    pub(crate) id: &'a str,
    pub(crate) prompt: &'a str,
    pub(crate) streaming: Option<bool>,
    pub(crate) raw: bool,
    pub(crate) numbers: Vec<(&'a str, i64)>,
    pub(crate) texts: Vec<(&'a str, &'a str)>,
}

impl Infer<'_> {
    pub(crate) fn message(&self) -> BytesMut {
        let mut out = BytesMut::new();
        wire::text(&mut out, 1, if self.model.is_empty() { "m" } else { self.model });
        wire::text(&mut out, 3, self.id);
        let mut parameter = |name: &str, fill: &dyn Fn(&mut BytesMut)| {
            wire::message(&mut out, 4, |entry| {
                wire::text(entry, 1, name);
                wire::message(entry, 2, |value| fill(value));
            });
        };
        for (name, number) in &self.numbers {
            parameter(name, &|value| wire::choice(value, 2, *number as u64));
        }
        for (name, text) in &self.texts {
            parameter(name, &|value| wire::bytes(value, 3, text.as_bytes()));
        }
        let mut raw = Vec::new();
        let mut tensor = |name: &str, kind: &str, inline: (u32, &[u8]), bytes: Vec<u8>| {
            wire::message(&mut out, 5, |tensor| {
                wire::text(tensor, 1, name);
                wire::text(tensor, 2, kind);
                wire::bytes(tensor, 3, &[1]);
                if !self.raw {
                    wire::message(tensor, 5, |contents| wire::bytes(contents, inline.0, inline.1));
                }
            });
            raw.push(bytes);
        };
        let prompt = if self.prompt.is_empty() { "hello" } else { self.prompt };
        let length = u32::try_from(prompt.len()).unwrap().to_le_bytes();
        tensor("text_input", "BYTES", (8, prompt.as_bytes()), [&length[..], prompt.as_bytes()].concat());
        if let Some(streaming) = self.streaming {
            tensor("streaming", "BOOL", (1, &[u8::from(streaming)]), vec![u8::from(streaming)]);
        }
        if self.raw {
            raw.iter().for_each(|bytes| wire::bytes(&mut out, 7, bytes));
        }
        out
    }
}

/// What a response says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) error: String,
    pub(crate) model: String,
    pub(crate) id: String,
    pub(crate) is_final: Option<bool>,
    pub(crate) text: String,
    pub(crate) finish: String,
}

fn fields(message: &[u8]) -> Vec<(u32, Value<'_>)> {
    Fields::of(message).map(Result::unwrap).collect()
}

/// Reads a `ModelInferResponse`.
pub(crate) fn response(message: &[u8]) -> Said {
    let mut said = Said::default();
    let (mut names, mut contents) = (Vec::new(), Vec::new());
    for (number, value) in fields(message) {
        match number {
            1 => said.model = value.text().unwrap().to_owned(),
            3 => said.id = value.text().unwrap().to_owned(),
            4 => {
                let entry = fields(value.bytes().unwrap());
                if entry[0].1.text().unwrap() == "triton_final_response" {
                    let flag = fields(entry[1].1.bytes().unwrap())[0].1;
                    said.is_final = Some(flag == Value::Varint(1));
                }
            }
            5 => {
                for (number, value) in fields(value.bytes().unwrap()) {
                    match number {
                        1 => names.push(value.text().unwrap()),
                        5 => contents.push(fields(value.bytes().unwrap())[0].1.text().unwrap().to_owned()),
                        _ => {}
                    }
                }
            }
            6 => {
                let (length, element) = value.bytes().unwrap().split_first_chunk::<4>().unwrap();
                assert_eq!(u32::from_le_bytes(*length) as usize, element.len());
                contents.push(String::from_utf8(element.to_vec()).unwrap());
            }
            _ => {}
        }
    }
    assert_eq!(names.len(), contents.len());
    for (name, content) in names.into_iter().zip(contents) {
        match name {
            "text_output" => said.text = content,
            "finish_reason" => said.finish = content,
            _ => panic!("an output named {name}"),
        }
    }
    said
}

/// Reads a `ModelStreamInferResponse`.
pub(crate) fn streamed(message: &[u8]) -> Said {
    let fields = fields(message);
    let inner =
        fields.iter().find(|(number, _)| *number == 2).map(|(_, value)| response(value.bytes().unwrap()));
    let error =
        fields.iter().find(|(number, _)| *number == 1).map(|(_, value)| value.text().unwrap().to_owned());
    Said { error: error.unwrap_or_default(), ..inner.unwrap() }
}

/// One answer of a stream: all responses with this id, put together.
pub(crate) fn folded(messages: &[Bytes], id: &str) -> Said {
    let mut whole = Said::default();
    for said in messages.iter().map(|message| streamed(message)).filter(|said| said.id == id) {
        assert_ne!(whole.is_final, Some(true), "something after the last response");
        whole = Said { text: whole.text + &said.text, ..said };
    }
    assert_eq!(whole.is_final, Some(true), "the last response is marked");
    whole
}
