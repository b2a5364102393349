//! Files that may change while we run.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// How often files are looked at again. A change is taken once it was seen twice alike, so a file that is just being
/// written is not believed: it counts after at most twice this.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What was last seen.
pub struct Change<T> {
    last: Option<Result<T, String>>,
    complaint: Option<String>,
}

pub enum Verdict<T> {
    Nothing,
    Take(T),
    Complain(String),
}

impl<T> Default for Change<T> {
    fn default() -> Self {
        Self { last: None, complaint: None }
    }
}

impl<T: Clone + PartialEq> Change<T> {
    /// What to do about what was `found`, with `valid` in force. Files that are gone or wrong change nothing; that is
    /// said once.
    pub fn seen(&mut self, found: Result<T, String>, valid: &T) -> Verdict<T> {
        let settled = self.last.as_ref() == Some(&found);
        self.last = Some(found.clone());
        match found {
            _ if !settled => Verdict::Nothing,
            Err(reason) if self.complaint.as_ref() == Some(&reason) => Verdict::Nothing,
            Err(reason) => {
                self.complaint = Some(reason.clone());
                Verdict::Complain(reason)
            }
            Ok(found) => {
                self.complaint = None;
                if found == *valid { Verdict::Nothing } else { Verdict::Take(found) }
            }
        }
    }
}

/// The content of a file of at most `limit` bytes.
///
/// # Errors
/// One line: it cannot be read, or is larger.
pub fn content(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(format!("{} has more than {limit} bytes", path.display()));
    }
    Ok(bytes)
}
