//! How long an answer waits for its worker, as pure functions of what was last heard of both.

use std::time::Duration;

/// An answer that rests and that nobody else could take ends after this many gaps: memory that an engine lacks for so long
/// does not come back, and every wait has an end.
const GAPS_AT_MOST: u32 = 30;

/// The limits of one frontend. None: wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// For a worker that shows no sign of life, to anybody.
    pub(crate) silence: Option<Duration>,
    /// For an answer that has begun, whatever its worker does for others.
    pub(crate) gap: Option<Duration>,
    /// For an answer that has not.
    pub(crate) first: Option<Duration>,
}

/// What quiet means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// Nothing yet.
    Usual,
    /// Another worker should go on, if there is one.
    Resting(Duration),
    /// The worker failed this answer.
    Stalled(Duration),
    /// The worker is gone or hangs.
    Silent(Duration),
}

impl Patience {
    /// Of an answer that got its last token `quiet` ago (or was sent then, if it has not `begun`), from a worker that was
    /// last heard of `worker_quiet` ago.
    pub(crate) fn judge(&self, begun: bool, quiet: Duration, worker_quiet: Duration) -> Quiet {
        if let Some(timeout) = self.silence
            && quiet.min(worker_quiet) >= timeout
        {
            return Quiet::Silent(timeout);
        }
        match (begun, self.gap, self.first) {
            (true, Some(gap), _) if quiet >= gap.saturating_mul(GAPS_AT_MOST) => Quiet::Stalled(quiet),
            (true, Some(gap), _) if quiet >= gap => Quiet::Resting(gap),
            (false, _, Some(first)) if quiet >= first => Quiet::Stalled(first),
            _ => Quiet::Usual,
        }
    }

    /// The shortest limit that can be met by an answer that is being served. None: there is none.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        [self.silence, self.gap, self.first].into_iter().flatten().min()
    }

    /// When to look again, from now, at answers of which one got a token `quiet` ago. None: never.
    pub(crate) fn look_again(&self, quiet: Duration) -> Option<Duration> {
        let limits = [self.silence, self.gap, self.first].into_iter().flatten();
        limits.map(|limit| left(limit, quiet)).min()
    }

    /// When to look again, from now, at an answer that has not begun. None: never.
    pub(crate) fn look_again_at_first(&self, quiet: Duration, worker_quiet: Duration) -> Option<Duration> {
        let silence = self.silence.map(|limit| left(limit, quiet.min(worker_quiet)));
        silence.into_iter().chain(self.first.map(|limit| left(limit, quiet))).min()
    }
}

/// Until a limit may be met. If it is met already, what else it takes may be true soon.
fn left(limit: Duration, quiet: Duration) -> Duration {
    Some(limit.saturating_sub(quiet)).filter(|left| !left.is_zero()).unwrap_or(limit / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const ALL: Patience = Patience { silence: Some(s(30)), gap: Some(s(10)), first: Some(s(600)) };

    #[test]
    fn a_worker_that_lives_may_let_an_answer_rest_for_a_while() {
        let judge = |quiet| ALL.judge(true, s(quiet), s(1));
        assert_eq!(
            [0, 9, 10, 299].map(judge),
            [Quiet::Usual, Quiet::Usual, Quiet::Resting(s(10)), Quiet::Resting(s(10))]
        );
        assert_eq!(judge(300), Quiet::Stalled(s(300)));
    }

    #[test]
    fn what_has_not_begun_may_be_queued() {
        assert_eq!(ALL.judge(false, s(599), s(1)), Quiet::Usual);
        assert_eq!(ALL.judge(false, s(600), s(1)), Quiet::Stalled(s(600)));
    }

    #[test]
    fn a_silent_worker_is_left_whatever_it_did_before() {
        for begun in [false, true] {
            assert_eq!(ALL.judge(begun, s(30), s(30)), Quiet::Silent(s(30)));
            assert_ne!(ALL.judge(begun, s(30), s(29)), Quiet::Silent(s(30)));
            assert_ne!(ALL.judge(begun, s(29), s(30)), Quiet::Silent(s(30)));
        }
    }

    #[test]
    fn limits_that_are_off_are_never_met() {
        let off = Patience { silence: None, gap: None, first: None };
        for begun in [false, true] {
            assert_eq!(off.judge(begun, s(1 << 40), s(1 << 40)), Quiet::Usual);
        }
        assert_eq!((off.shortest(), off.look_again(s(9))), (None, None));
    }

    #[test]
    fn one_looks_again_when_the_next_limit_may_be_met_and_never_at_once() {
        assert_eq!(ALL.look_again(s(4)), Some(s(6)));
        assert_eq!(ALL.look_again_at_first(s(590), s(1)), Some(s(10)));
        for quiet in 0..2000 {
            let waits = [ALL.look_again(s(quiet)), ALL.look_again_at_first(s(quiet), s(quiet % 31))];
            assert!(waits.iter().all(|wait| wait.unwrap() >= s(1)), "{quiet}: {waits:?}");
        }
    }
}
