use super::*;
use proptest::prelude::*;

/// A piece that owns its text.
#[derive(Clone, Debug)]
pub(crate) enum Owned {
    Text(String),
    Reasoning(String),
    Start(String),
    Arguments(String),
    End,
}

impl Owned {
    pub(crate) fn piece(&self) -> Piece<'_> {
        match self {
            Self::Text(text) => Piece::Text(text),
            Self::Reasoning(text) => Piece::Reasoning(text),
            Self::Start(name) => Piece::ToolStart { id: name, name },
            Self::Arguments(text) => Piece::ToolArguments(text),
            Self::End => Piece::ToolEnd,
        }
    }
}

/// Pieces in any order, whole JSON and broken JSON among the arguments.
pub(crate) fn any_pieces() -> impl Strategy<Value = Vec<Owned>> {
    let json = prop::sample::select(vec![
        "{}",
        "{\"p\":",
        "1}",
        "{\"a\\\"}\":[",
        "]}",
        "\"x\"",
        "{\"k\":\"}",
        "\"}",
        " ",
    ]);
    let piece = prop_oneof![
        any::<String>().prop_map(Owned::Text),
        "[a-z\n]{0,3}".prop_map(Owned::Text),
        "[a-z\n]{0,3}".prop_map(Owned::Reasoning),
        "[a-z]{1,3}".prop_map(Owned::Start),
        json.prop_map(|text| Owned::Arguments(text.into())),
        Just(Owned::End),
    ];
    prop::collection::vec(piece, 0..24)
}

#[derive(Clone, Debug, PartialEq)]
struct Shown {
    kind: Kind,
    text: String,
    is_whole: bool,
}

/// Checks the promise of [`Blocks`] as it goes.
#[derive(Default)]
struct Checked {
    done: Vec<Shown>,
    open: Option<Shown>,
}

impl Blocks for Checked {
    fn open(&mut self, index: u32, block: Block<'_>) {
        assert_eq!(self.open, None, "a block opens inside another");
        assert_eq!(index as usize, self.done.len());
        let kind = match block {
            Block::Text => Kind::Text,
            Block::Reasoning => Kind::Reasoning,
            Block::Tool { .. } => Kind::Tool,
        };
        self.open = Some(Shown { kind, text: String::new(), is_whole: false });
    }

    fn extend(&mut self, index: u32, kind: Kind, text: &str) {
        assert_eq!(index as usize, self.done.len());
        assert!(!text.is_empty());
        let open = self.open.as_mut().unwrap();
        assert_eq!(open.kind, kind);
        open.text.push_str(text);
    }

    fn close(&mut self, index: u32, kind: Kind, is_whole: bool) {
        assert_eq!(index as usize, self.done.len());
        let mut open = self.open.take().unwrap();
        assert_eq!(open.kind, kind);
        open.is_whole = is_whole;
        self.done.push(open);
    }
}

fn shown(pieces: &[Owned], is_cut: bool) -> Vec<Shown> {
    let mut sequencer = Sequencer::default();
    let mut out = Checked::default();
    for piece in pieces {
        sequencer.push(piece.piece(), &mut out);
    }
    sequencer.end(is_cut, &mut out);
    assert_eq!(out.open, None, "a block stays open");
    assert!(sequencer.held.is_empty(), "text is lost");
    out.done
}

fn joined<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.collect()
}

proptest! {
    #[test]
    fn r19_any_order_of_pieces_gives_an_orderly_row_of_blocks(pieces in any_pieces(), is_cut in any::<bool>()) {
        let blocks = shown(&pieces, is_cut);
        for (kind, given) in [
            (Kind::Text, joined(pieces.iter().filter_map(|p| if let Owned::Text(t) = p { Some(t.as_str()) } else { None }))),
            (Kind::Reasoning, joined(pieces.iter().filter_map(|p| if let Owned::Reasoning(t) = p { Some(t.as_str()) } else { None }))),
        ] {
            let text = joined(blocks.iter().filter(|block| block.kind == kind).map(|block| block.text.as_str()));
            prop_assert_eq!(text, given, "nothing is lost, doubled or moved");
        }
        let calls = pieces.iter().filter(|piece| matches!(piece, Owned::Start(_))).count();
        prop_assert_eq!(blocks.iter().filter(|block| block.kind == Kind::Tool).count(), calls);
        for block in &blocks {
            prop_assert!(block.kind == Kind::Tool || !block.text.is_empty());
        }
    }

    #[test]
    fn r13_blocks_do_not_depend_on_chunking(pieces in any_pieces(), cut in 0usize..8) {
        let mut chopped = Vec::new();
        for piece in &pieces {
            let (make, text): (fn(String) -> Owned, &str) = match piece {
                Owned::Text(text) => (Owned::Text, text),
                Owned::Reasoning(text) => (Owned::Reasoning, text),
                Owned::Arguments(text) => (Owned::Arguments, text),
                other => {
                    chopped.push(other.clone());
                    continue;
                }
            };
            let at = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
            chopped.push(make(text[..at].to_owned()));
            chopped.push(make(text[at..].to_owned()));
        }
        // Arguments that arrive after their call was closed are lost either way, but a cut may let some of them in
        // before text that waits is released.
        let orderly = |blocks: Vec<Shown>| blocks.into_iter().filter(|block| block.kind != Kind::Tool).collect::<Vec<_>>();
        prop_assert_eq!(orderly(shown(&chopped, false)), orderly(shown(&pieces, false)));
    }

    #[test]
    fn arguments_are_whole_exactly_at_their_end(key in any::<String>(), value in any::<String>(), cut in any::<prop::sample::Index>()) {
        let text = serde_json::json!({key: [value, {"{": "}"}]}).to_string();
        let at = cut.index(text.len());
        let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap();
        let mut extent = Extent::default();
        extent.push(&text[..at]);
        prop_assert!(!extent.is_whole);
        extent.push(&text[at..]);
        prop_assert!(extent.is_whole);
    }
}

#[test]
fn r19_the_reported_case() {
    let start = |name: &str| Owned::Start(name.into());
    let arguments = |text: &str| Owned::Arguments(text.into());
    let text = |text: &str| Owned::Text(text.into());
    let pieces = [
        text("ok"),
        start("a"),
        arguments("{\"p\":"),
        arguments("1}"),
        text("\n"),
        start("b"),
        arguments("{}"),
    ];
    let whole = |kind, text: &str| Shown { kind, text: text.into(), is_whole: true };
    let expected = [
        whole(Kind::Text, "ok"),
        whole(Kind::Tool, "{\"p\":1}"),
        whole(Kind::Text, "\n"),
        whole(Kind::Tool, "{}"),
    ];
    assert_eq!(shown(&pieces, false), expected);
    // The same with the text in the middle of the first call.
    let pieces = [
        text("ok"),
        start("a"),
        arguments("{\"p\":"),
        text("\n"),
        arguments("1}"),
        start("b"),
        arguments("{}"),
    ];
    assert_eq!(shown(&pieces, false), expected);
}

#[test]
fn what_is_cut_off_is_not_whole() {
    let pieces = [Owned::Start("a".into()), Owned::Arguments("{\"p\":".into())];
    assert!(!shown(&pieces, true)[0].is_whole);
    assert!(!shown(&pieces, false)[0].is_whole, "arguments that never ended");
    let pieces = [Owned::Text("a".into()), Owned::Reasoning("b".into())];
    let ends: Vec<bool> = shown(&pieces, true).iter().map(|block| block.is_whole).collect();
    assert_eq!(ends, [true, false]);
}
