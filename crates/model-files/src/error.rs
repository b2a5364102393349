//! What is wrong with a model's files.

use std::fmt;
use std::path::{Path, PathBuf};

/// Longest piece of a file's own text that an error repeats.
const MAX_QUOTED_CHARS: usize = 80;

/// A model that cannot be read. Displays as one line: where, what, expected, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    path: PathBuf,
    what: String,
    expected: String,
    found: String,
}

impl Error {
    pub(crate) fn new(
        path: &Path,
        what: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self {
            path: path.to_owned(),
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(crate) fn io(path: &Path, what: impl Into<String>, error: &std::io::Error) -> Self {
        Self::new(path, what, "to read it", error)
    }

    /// The file or directory at fault.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        write!(
            f,
            "{}: {}: expected {}, found {}",
            one_line(&path),
            one_line(&self.what),
            one_line(&self.expected),
            one_line(&self.found)
        )
    }
}

impl std::error::Error for Error {}

/// Control characters would break the promise of one line, and could drive a terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text out of a file, in quotes and cut to a bearable length.
pub(crate) fn quoted(text: &str) -> String {
    let mut cut: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    format!("{cut:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_line_whatever_the_file_says() {
        let error = Error::new(Path::new("a\nb"), "key \u{1b}[2J", "x\r\ny", quoted(&"z\n".repeat(200)));
        let text = error.to_string();
        assert!(!text.chars().any(char::is_control), "{text}");
        assert!(text.len() < 400, "{text}");
    }
}
