use super::*;
use proptest::prelude::*;

fn read_in(pieces: &[&[u8]]) -> (Vec<Event>, Result<(), Error>) {
    let mut reader = Reader::new(1 << 16);
    let mut events = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = reader.push(piece);
        events.extend(std::iter::from_fn(|| reader.next_event()));
    }
    (events, result)
}

fn read(text: &str) -> Vec<Event> {
    read_in(&[text.as_bytes()]).0
}

fn data(text: &str) -> Event {
    Event { data: text.into(), ..Event::default() }
}

#[test]
fn follows_the_standard() {
    assert_eq!(read("data: a\n\ndata:b\r\n\r\ndata:  c\r\r"), [data("a"), data("b"), data(" c")]);
    assert_eq!(read("data: 1\ndata: 2\ndata\n\n"), [data("1\n2\n")]);
    assert_eq!(read("\u{feff}data: a\n\n"), [data("a")]);
    assert_eq!(read(": comment\n\nretry: 5\nevent: x\n\n"), []);
    assert_eq!(read("data: unfinished\n"), []);
    assert_eq!(read("data\n\n"), [data("")]);
    let named = Event { event: Some("tick".into()), id: Some("7".into()), data: "x".into() };
    let later = Event { event: None, id: Some("7".into()), data: "y".into() };
    assert_eq!(read("event: tick\nid: 7\ndata: x\n\ndata: y\n\n"), [named, later]);
}

#[test]
fn long_lines_and_events_are_errors_for_good() {
    let mut reader = Reader::new(10);
    assert_eq!(reader.push(b"data: 12345678"), Err(Error::LineTooLong { limit: 10 }));
    assert_eq!(reader.push(b"\n\ndata: 1\n\n"), Err(Error::LineTooLong { limit: 10 }));
    assert_eq!(reader.next_event(), None);
    let mut reader = Reader::new(10);
    assert_eq!(reader.push(b"data: 123\ndata: 456\ndata: 789\n"), Err(Error::EventTooLong { limit: 10 }));
}

#[test]
fn empty_data_lines_cannot_grow_without_limit() {
    let mut reader = Reader::new(100);
    let result = (0..1000).try_for_each(|_| reader.push(b"data\n"));
    assert_eq!(result, Err(Error::EventTooLong { limit: 100 }));
}

fn stream() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "data: ",
        "data:",
        "data",
        "event: e",
        "id: 1",
        ":",
        ": note",
        "x",
        "é😀",
        " ",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        "\r\n\r\n",
        "\u{feff}",
        "{\"a\":1}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(text in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let bytes = text.as_bytes();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let whole = read_in(&[bytes]);
        prop_assert_eq!(&read_in(&pieces), &whole);
        prop_assert_eq!(&read_in(&single), &whole);
    }

    #[test]
    fn comments_are_never_events(text in any::<String>(), name in any::<String>()) {
        let mut out = BytesMut::new();
        comment(&mut out, &text);
        event(&mut out, &name, &serde_json::json!({"text": text}));
        let (events, result) = read_in(&[&out]);
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(events.len(), 1);
        let value: serde_json::Value = serde_json::from_str(&events[0].data).unwrap();
        prop_assert_eq!(value["text"].as_str(), Some(text.as_str()));
    }
}
