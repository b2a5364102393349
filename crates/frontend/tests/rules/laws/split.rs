//! R13-R19 over every parser family, every API for conversations, and random cuts.

use super::cases::{Draws, cases};
use super::fixtures::{Fixture, fixtures, models, tools};
use super::stage::{Stage, answer, model, template};
use crate::client::{Client, Reply};
use crate::harness::{Ending, ask, config, eventually};
use crate::said::{CONVERSATIONS, Said, message_of, tools as named_tools};
use dynamo_types::FinishReason::{Length, Stop};
use serde_json::{Value, json};

const STOPPED: Ending = Ending::Finish(Stop);

/// Content, reasoning, calls with their arguments as values, finish reason.
type Same = (String, String, Vec<(String, Value)>, String);

/// What can be compared between APIs: Anthropic's arguments are values, and a cut text of them is none.
fn same(said: Said) -> Same {
    let calls = said
        .calls
        .into_iter()
        .map(|(name, arguments)| (name, serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}))));
    (said.content, said.reasoning, calls.collect(), said.finish)
}

async fn both(stage: &Stage, draws: &mut Draws, fixture: &Fixture, route: &str) -> [(Reply, Same); 2] {
    let mut list = Vec::new();
    for stream in [false, true] {
        let ending = Ending::Finish(fixture.finish);
        stage.say(draws, &fixture.text, ending);
        let mut fields = json!({"model": fixture.model, "tools": tools(route)});
        // Asking for log-probabilities changes nothing else.
        if route.contains("chat") && draws.one_in(2) {
            fields["logprobs"] = json!(true);
        }
        let reply = stage.ask(route, stream, fields).await;
        let said = same(answer(route, &reply));
        list.push((reply, said));
    }
    let [unary, streamed] = list.try_into().ok().unwrap();
    assert!(
        agree(route, &unary.1, &streamed.1),
        "{} on {route}: {}\n{:?}\n{:?}",
        fixture.title,
        streamed.0.text(),
        unary.1,
        streamed.1
    );
    [unary, streamed]
}

/// Anthropic's whole answers keep of cut arguments what its SDKs keep of a stream; the text itself is no value.
fn agree(route: &str, one: &Same, other: &Same) -> bool {
    let is_cut = |value: &Value| route == "/v1/messages" && *value == json!({});
    let calls = one.2.iter().zip(&other.2);
    (&one.0, &one.1, &one.3, one.2.len()) == (&other.0, &other.1, &other.3, other.2.len())
        && calls.into_iter().all(|((name, one), (same, other))| {
            name == same && (one == other || is_cut(one) || is_cut(other))
        })
}

/// What the fixture says is right.
fn expected(fixture: &Fixture) -> Same {
    let text = |name: &str| fixture.expected[name].as_str().unwrap_or("").to_owned();
    let calls = fixture.expected["tool_calls"].as_array().unwrap().iter().map(|call| {
        let arguments = match call["arguments_text"].as_str() {
            Some(text) => serde_json::from_str(text).unwrap_or_else(|_| json!({})),
            None => call["arguments"].clone(),
        };
        (call["name"].as_str().unwrap().to_owned(), arguments)
    });
    let finish = match fixture.expected["finish_reason"].as_str() {
        Some(reason) => reason.to_owned(),
        None if fixture.finish == Length => "length".into(),
        None => "stop".into(),
    };
    (text("content"), text("reasoning"), calls.collect(), finish)
}

async fn stage(fixtures: &[Fixture]) -> Stage {
    Stage::with(config(), models(fixtures)).await
}

#[tokio::test]
async fn r13_every_family_says_the_same_streamed_and_whole_on_every_route() {
    let fixtures = fixtures();
    let stage = stage(&fixtures).await;
    for mut draws in cases("r13", 1500) {
        // Each at least once, then any.
        let fixture = fixtures.get(draws.number as usize).cloned().unwrap_or_else(|| draws.pick(&fixtures));
        let route = draws.pick(&CONVERSATIONS);
        let [unary, _] = both(&stage, &mut draws, &fixture, route).await;
        let (mut found, mut wanted) = (unary.1, expected(&fixture));
        if route == "/v1/responses" {
            // It has no word for the end of a call that broke.
            (found.3, wanted.3) = (String::new(), String::new());
        }
        assert!(agree(route, &found, &wanted), "{} on {route}: {found:?}, not {wanted:?}", fixture.title);
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r14_any_number_of_adjacent_calls_are_all_calls() {
    let fixtures: Vec<Fixture> =
        fixtures().into_iter().filter(|fixture| fixture.title.ends_with("/parallel")).collect();
    let stage = stage(&fixtures).await;
    for mut draws in cases("r14", 600) {
        let route = draws.pick(&CONVERSATIONS);
        if draws.one_in(2) {
            let fixture = draws.pick(&fixtures);
            let [unary, _] = both(&stage, &mut draws, &fixture, route).await;
            assert_eq!(unary.1.2, expected(&fixture).2, "{}", fixture.title);
            continue;
        }
        let count = draws.between(1, 9);
        let one = |number: usize| {
            format!(
                "<tool_call>{{\"name\": \"get_weather\", \"arguments\": {{\"days\": {number}}}}}</tool_call>"
            )
        };
        let text: Vec<String> = (0..count).map(one).collect();
        let fixture = Fixture {
            model: "+hermes".into(),
            title: format!("{count} calls"),
            text: text.join(draws.pick(&["", "\n", " "])),
            finish: Stop,
            expected: Value::Null,
            markers: vec![],
        };
        // Ids that differ and indexes without gaps are what reading an answer insists on.
        let [unary, _] = both(&stage, &mut draws, &fixture, route).await;
        let calls: Vec<(String, Value)> =
            (0..count).map(|number| ("get_weather".into(), json!({"days": number}))).collect();
        assert_eq!((unary.1.2, &*unary.1.3), (calls, "tool_calls"));
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r15_answers_cut_anywhere_leak_no_markup_and_stay_cut() {
    let fixtures: Vec<Fixture> = fixtures()
        .into_iter()
        .filter(|fixture| !fixture.title.ends_with("malformed") && !fixture.markers.is_empty())
        .collect();
    let stage = stage(&fixtures).await;
    for mut draws in cases("r15", 1200) {
        let (mut fixture, route) = (draws.pick(&fixtures), draws.pick(&CONVERSATIONS));
        let whole = expected(&fixture);
        let mut end = draws.below(fixture.text.len() + 1);
        while !fixture.text.is_char_boundary(end) {
            end += 1;
        }
        fixture.text.truncate(end);
        fixture.finish = Length;
        let [unary, _] = both(&stage, &mut draws, &fixture, route).await;
        let (content, _, calls, finish) = unary.1;
        assert_eq!(finish, "length", "{}", fixture.title);
        // A marker that the whole answer shows is text there.
        for marker in fixture.markers.iter().filter(|marker| !whole.0.contains(marker.as_str())) {
            assert!(!content.contains(marker.as_str()), "{} at {end}: {content:?}", fixture.title);
        }
        let told: Vec<&String> = calls.iter().map(|(name, _)| name).collect();
        let wanted: Vec<&String> = whole.2.iter().map(|(name, _)| name).take(told.len()).collect();
        assert_eq!(told, wanted, "{} at {end}", fixture.title);
    }
    stage.harness.balanced().await;
}

/// The engine stops in the middle of a long argument: all but the last few words have reached the client.
#[tokio::test]
async fn r16_long_arguments_are_told_as_they_come() {
    const PLACE: &str = "brace } ] tag";
    let fixtures: Vec<Fixture> = fixtures()
        .into_iter()
        .filter(|fixture| fixture.title.ends_with("/parallel") && fixture.text.contains(PLACE))
        .collect();
    let stage = stage(&fixtures).await;
    for mut draws in cases("r16", 200) {
        let (fixture, route) = (draws.pick(&fixtures), draws.pick(&CONVERSATIONS));
        let words = draws.between(40, 1500);
        let (before, _) = fixture.text.split_once(PLACE).unwrap();
        let long: String = (0..words).map(|number| format!("w{number}w ")).collect();
        stage.say_words(&format!("{before}{long}"));
        let fields = json!({"model": fixture.model, "tools": tools(route)});
        let mut client = Client::connect(stage.harness.address).await;
        client.send("POST", route, &[], ask(route, true, "x", fields).to_string().as_bytes()).await;
        client.read_until(&format!("w{}w", words - 12)).await;
        drop(client);
        eventually("the engine is told", || stage.workers.iter().all(|worker| worker.open() == 0)).await;
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r17_markers_are_markers_however_they_are_cut() {
    const FAMILIES: [(&str, &str, &str); 3] = [
        ("qwen3", "<think>", "</think>"),
        ("deepseek_r1", "<think>", "</think>"),
        ("mistral", "[THINK]", "[/THINK]"),
    ];
    let models = FAMILIES.map(|(name, _, _)| {
        let mut card = model(name);
        card.reasoning_parser = Some(name.into());
        card
    });
    let stage = Stage::with(config(), models.to_vec()).await;
    for mut draws in cases("r17", 900) {
        let (family, open, close) = draws.pick(&FAMILIES);
        let route = draws.pick(&CONVERSATIONS);
        let (mut text, mut reasoning, mut content) = (String::new(), String::new(), String::new());
        for _ in 0..draws.between(1, 5) {
            let (thought, said) = (draws.prose(5), draws.prose(5));
            text.push_str(&format!("{open}{thought}{close}{said}"));
            reasoning.push_str(&thought);
            content.push_str(&said);
        }
        for stream in [false, true] {
            stage.say(&mut draws, &text, STOPPED);
            let reply = stage.ask(route, stream, json!({"model": family})).await;
            let said = answer(route, &reply);
            assert_eq!((&said.reasoning, &said.content), (&reasoning, &content), "{family} {route}: {text}");
        }
    }
    stage.harness.balanced().await;
}

/// A template that shows earlier answers as they were generated.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\
                        {% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

#[tokio::test]
async fn r18_reasoning_is_split_once_and_comes_back_as_it_was() {
    let mut card = model("m");
    card.reasoning_parser = Some("qwen3".into());
    card.chat_template = template(TEMPLATE);
    let stage = Stage::with(config(), vec![card]).await;
    for mut draws in cases("r18", 600) {
        let (thought, said) = (draws.prose(8), draws.prose(8));
        let text = format!("<think>{thought}</think>{said}");
        for route in CONVERSATIONS {
            stage.say(&mut draws, &text, STOPPED);
            let reply = stage.ask(route, false, json!({})).await;
            let found = answer(route, &reply);
            assert_eq!((&found.reasoning, &found.content), (&thought, &said), "{route}");
            let (first, last) =
                (json!({"role": "user", "content": "x"}), json!({"role": "user", "content": "y"}));
            let whole = reply.json();
            let (field, answers) = match route {
                "/v1/messages" => {
                    ("messages", vec![json!({"role": "assistant", "content": whole["content"]})])
                }
                "/v1/responses" => ("input", whole["output"].as_array().unwrap().clone()),
                _ => ("messages", vec![whole["choices"][0]["message"].clone()]),
            };
            let turns = [vec![first], answers, vec![last]].concat();
            let reply = stage.ask(route, true, json!({field: turns})).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let requests = stage.workers[0].requests();
            let [.., before, after] = requests.as_slice() else { panic!("two requests") };
            let mut told = before.tokens.to_vec();
            told.extend(text.bytes().map(u32::from));
            assert!(after.tokens.starts_with(&told), "{route}: {text}");
        }
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r19_blocks_of_a_message_come_one_after_the_other() {
    let mut card = model("m");
    (card.tool_parser, card.reasoning_parser) = (Some("hermes".into()), Some("qwen3".into()));
    let stage = Stage::with(config(), vec![card]).await;
    let route = "/v1/messages";
    for mut draws in cases("r19", 700) {
        let (mut text, mut blocks) = (String::new(), Vec::<Value>::new());
        if draws.one_in(2) {
            let thought = draws.prose(4);
            text = format!("<think>{thought}</think>");
            blocks.push(json!({"type": "thinking", "thinking": thought}));
        }
        for _ in 0..draws.between(1, 6) {
            if draws.one_in(2) {
                let (name, input) = (draws.pick(&["a", "b"]), json!({"p": draws.prose(3)}));
                let call = json!({"name": name, "arguments": input});
                text.push_str(&format!("<tool_call>{call}</tool_call>"));
                blocks.push(json!({"type": "tool_use", "name": name, "input": input}));
                continue;
            }
            let said = draws.prose(4);
            text.push_str(&said);
            match blocks.last_mut() {
                Some(last) if last["type"] == "text" => {
                    last["text"] = json!(format!("{}{said}", last["text"].as_str().unwrap()));
                }
                _ => blocks.push(json!({"type": "text", "text": said})),
            }
        }
        for stream in [false, true] {
            stage.say(&mut draws, &text, STOPPED);
            let reply = stage.ask(route, stream, json!({"tools": named_tools(route, &["a", "b"])})).await;
            // Reading the events insists on their order.
            let message = if stream { message_of(&reply) } else { reply.json() };
            let mut content = message["content"].clone();
            for block in content.as_array_mut().unwrap() {
                let block = block.as_object_mut().unwrap();
                block.remove("id");
                block.remove("signature");
            }
            assert_eq!(content, json!(blocks), "{text}");
        }
    }
    stage.harness.balanced().await;
}
