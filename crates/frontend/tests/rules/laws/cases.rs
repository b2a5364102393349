//! Generated cases: each is a function of one number, so that a failure can be repeated.

use dynamo_types::draw;

/// What all draws start from, unless `DYNAMO_TEST_SEED` says otherwise.
const SEED: u64 = 0x2026_1130;

/// Text of all kinds that has ever been cut, escaped or counted wrongly.
const WORDS: [&str; 30] = [
    "plain",
    " words",
    " and",
    ".",
    "12",
    "한국어",
    "日本語",
    " é",
    "e\u{301}",
    "😀",
    "👩‍👩‍👧‍👦",
    "🇰🇷",
    "\"",
    "\\",
    "\\n",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{0}",
    "\u{1b}",
    "\u{7f}",
    "\u{2028}",
    "\u{feff}",
    "data: x",
    "<b>",
    "{\"a\": 1}",
    "שלום",
    "\u{10ffff}",
    "/",
];

/// The cases of one test. All of them are run, or the test fails.
pub(crate) struct Cases {
    name: &'static str,
    seed: u64,
    count: u64,
    next: u64,
}

/// `count` cases for the test `name`.
pub(crate) fn cases(name: &'static str, count: u64) -> Cases {
    let seed = std::env::var("DYNAMO_TEST_SEED").map_or(SEED, |text| text.parse().expect("a number"));
    Cases { name, seed, count, next: 0 }
}

impl Iterator for Cases {
    type Item = Draws;

    fn next(&mut self) -> Option<Draws> {
        (self.next < self.count).then(|| {
            let number = self.next;
            self.next += 1;
            let name = self.name.bytes().fold(0, |hash, byte| draw::bits(hash, byte.into()));
            Draws { number, seed: draw::bits(self.seed ^ name, number), at: 0 }
        })
    }
}

impl Drop for Cases {
    #[expect(clippy::print_stdout, reason = "the seed belongs to the report of a test")]
    fn drop(&mut self) {
        let Self { name, seed, count, next } = self;
        if std::thread::panicking() {
            println!("{name}: case {} of {count} failed; DYNAMO_TEST_SEED={seed}", *next - 1);
        } else {
            println!("{name}: {count} cases; DYNAMO_TEST_SEED={seed}");
            assert_eq!(next, count, "{name} left out cases");
        }
    }
}

/// The random choices of one case.
pub(crate) struct Draws {
    pub(crate) number: u64,
    seed: u64,
    at: u64,
}

impl Draws {
    /// A number for a generator that draws by itself.
    pub(crate) fn bits(&mut self) -> u64 {
        self.at += 1;
        draw::bits(self.seed, self.at)
    }

    pub(crate) fn below(&mut self, len: usize) -> usize {
        self.at += 1;
        draw::index(self.seed, self.at, len)
    }

    /// `from..=to`
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    /// Up to `most` words of any kind.
    pub(crate) fn text(&mut self, most: usize) -> String {
        (0..self.below(most + 1)).map(|_| self.pick(&WORDS)).collect()
    }

    /// Words that no parser takes for more than text, at least one.
    pub(crate) fn prose(&mut self, most: usize) -> String {
        let count = self.between(1, most);
        (0..count).map(|_| self.pick(&["word", "é", "😀", "한국", "7", ",", "a<b", "</i", "<thin"])).collect()
    }

    /// Offsets at which `len` bytes are cut, in order.
    pub(crate) fn cuts(&mut self, len: usize) -> Vec<usize> {
        // Whole, byte by byte, and anything in between.
        let longest = self.pick(&[len.max(1), 1, 2, 5, 16, 64]);
        let mut at = 0;
        let mut list = Vec::new();
        while at < len {
            at += if longest == len.max(1) { longest } else { self.between(1, longest) };
            list.push(at.min(len));
        }
        list
    }
}
