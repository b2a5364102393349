//! How long to wait before a lost connection is made again.

use std::time::Duration;

/// The first pause: what is only begun anew is there again at once.
const FIRST: Duration = Duration::from_millis(20);

/// The longest, and how long a connection must have lasted to count as one that was well.
const LONGEST: Duration = Duration::from_secs(2);

/// Doubles with each failure in a row.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pause {
    /// The pause that comes next.
    pub(crate) fn next(&self) -> Duration {
        self.0
    }

    /// A connection lasted so long.
    pub(crate) fn lasted(&mut self, time: Duration) {
        if time > LONGEST {
            self.0 = FIRST;
        }
    }

    /// Counts the pause as made once it is over. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_grow_until_a_connection_lasts() {
        let mut pause = Pause::default();
        pause.wait().await;
        assert_eq!(pause.next(), FIRST * 2);
        pause.lasted(LONGEST);
        assert_eq!(pause.next(), FIRST * 2, "it broke too soon");
        pause.lasted(LONGEST * 2);
        assert_eq!(pause.next(), FIRST);
        for _ in 0..3 {
            pause.wait().await;
        }
        assert_eq!(pause.next(), FIRST * 8);
    }
}
