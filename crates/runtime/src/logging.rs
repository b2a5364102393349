//! Logs: lines for people, or one JSON object per line for machines.
//!
//! `DYN_LOG` filters (`info`, `dynamo_router=debug,warn`). JSON lines carry `time` (RFC 3339, microseconds), `level`,
//! `file`, `line`, `target` and `message`, the fields of the enclosing spans from the outermost inwards (`request_id` and
//! `trace_id` among them), and the event's own fields (behaviour.md 11.3).

use serde_json::{Map, Value};
use std::fmt;
use std::io::IsTerminal;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, fmt as layer};

/// The variable that filters.
pub const FILTER_ENV: &str = "DYN_LOG";
/// What is logged without it.
const DEFAULT_FILTER: &str = "info";

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    #[serde(alias = "readable")]
    Human,
    #[serde(alias = "jsonl")]
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "human" | "readable" => Ok(Self::Human),
            "json" | "jsonl" => Ok(Self::Json),
            other => Err(format!("expected human or json, found {other:?}")),
        }
    }
}

/// Why logging could not start.
#[derive(Debug)]
pub enum Error {
    /// `DYN_LOG` is not a filter.
    Filter { found: String, reason: String },
    /// This process logs already.
    Started,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter { found, reason } => {
                write!(f, "{FILTER_ENV}: expected a level or target=level pairs, found {found:?} ({reason})")
            }
            Self::Started => f.write_str("logging was started already"),
        }
    }
}

impl std::error::Error for Error {}

/// Starts logging to the standard error stream, filtered by `DYN_LOG`.
pub fn init(format: Format) -> Result<(), Error> {
    let filter = filter(std::env::var(FILTER_ENV).ok())?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let subscriber = subscriber(format, filter, ansi, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| Error::Started)
}

fn filter(found: Option<String>) -> Result<EnvFilter, Error> {
    let text = found.filter(|text| !text.trim().is_empty()).unwrap_or_else(|| DEFAULT_FILTER.into());
    EnvFilter::try_new(&text).map_err(|error| Error::Filter { found: text, reason: error.to_string() })
}

fn subscriber<W>(
    format: Format,
    filter: EnvFilter,
    ansi: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = layer::fmt().with_env_filter(filter).with_writer(writer).with_ansi(ansi);
    match format {
        Format::Human => Box::new(builder.with_target(false).finish()),
        Format::Json => Box::new(builder.fmt_fields(JsonFields::new()).event_format(JsonLine).finish()),
    }
}

/// Writes an event as one flat JSON object.
struct JsonLine;

impl<S> FormatEvent<S, JsonFields> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("time".into(), time.into());
        line.insert("level".into(), metadata.level().as_str().into());
        line.insert("file".into(), metadata.file().into());
        line.insert("line".into(), metadata.line().into());
        line.insert("target".into(), metadata.target().into());
        let mut own = Fields::default();
        event.record(&mut own);
        line.insert("message".into(), own.0.remove("message").unwrap_or_default());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            line.insert("span_name".into(), span.name().into());
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<JsonFields>>()
                && let Ok(Value::Object(fields)) = serde_json::from_str(&fields.fields)
            {
                fields.into_iter().for_each(|(name, value)| insert(&mut line, name, value));
            }
        }
        own.0.into_iter().for_each(|(name, value)| insert(&mut line, name, value));
        let text = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{text}")
    }
}

/// A field may not hide what every line has.
fn insert(line: &mut Map<String, Value>, name: String, value: Value) {
    let name = if matches!(&*name, "time" | "level" | "file" | "line" | "target" | "message") {
        format!("field_{name}")
    } else {
        name
    };
    line.insert(name, value);
}

/// An event's own fields as JSON.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, filter_text: Option<&str>, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let filter = filter(filter_text.map(Into::into)).unwrap();
        tracing::subscriber::with_default(subscriber(format, filter, false, move || writer.clone()), log);
        let bytes = lock(&lines.0).clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_are_flat_and_carry_the_spans() {
        let text = logged(Format::Json, None, || {
            let span = tracing::info_span!("request", request_id = "r-1", worker = 3);
            let _entered = span.enter();
            tracing::info!(tokens = 7, time = "mine", quoted = "a\"b\n", "answered {}", "it");
            tracing::debug!("below the default level");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let expected = [
            ("level", Value::from("INFO")),
            ("message", "answered it".into()),
            ("target", "dynamo_runtime::logging::tests".into()),
            ("request_id", "r-1".into()),
            ("worker", 3.into()),
            ("tokens", 7.into()),
            ("field_time", "mine".into()),
            ("quoted", "a\"b\n".into()),
            ("span_name", "request".into()),
        ];
        for (name, value) in expected {
            assert_eq!(line.get(name), Some(&value), "{name} in {text}");
        }
        let time = line["time"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000000Z".len(), "{time}");
    }

    #[test]
    fn human_lines_have_no_escapes_and_filters_are_checked() {
        let text = logged(Format::Human, Some("debug"), || tracing::debug!(port = 8000, "listening"));
        assert!(text.contains("listening") && text.contains("port=8000"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let error = filter(Some("dynamo=loud".into())).unwrap_err().to_string();
        assert!(error.contains("DYN_LOG") && error.contains("dynamo=loud"), "{error}");
        assert_eq!("jsonl".parse(), Ok(Format::Json));
        assert!("xml".parse::<Format>().is_err());
    }
}
