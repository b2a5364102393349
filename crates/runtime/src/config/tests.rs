use super::*;
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Role {
    model: Option<String>,
    workers: u32,
    frontend: Frontend,
    router: Router,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Frontend {
    host: String,
    port: u16,
    body_limit_bytes: u64,
    idle_timeout_ms: Option<u64>,
    origins: Vec<String>,
    verbose: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Router {
    mode: Mode,
    temperature: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    Kv,
    RoundRobin,
}

impl Default for Role {
    fn default() -> Self {
        Self {
            model: None,
            workers: 2,
            frontend: Frontend::default(),
            router: Router::default(),
            labels: BTreeMap::new(),
        }
    }
}

impl Default for Frontend {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            body_limit_bytes: 45 << 20,
            idle_timeout_ms: None,
            origins: vec![],
            verbose: false,
        }
    }
}

fn schema() -> Schema {
    Schema::new([
        Key::new("workers", "Workers in this process.").flag("--workers"),
        Key::new("frontend.port", "Port to listen on.").flag("--port").env("DYN_HTTP_PORT"),
        Key::new("frontend.body_limit_bytes", "Largest body.").scaled_env("DYN_HTTP_BODY_LIMIT_MB", 1 << 20),
        Key::new("router.mode", "How workers are chosen: a|b.").env("DYN_ROUTER_MODE"),
    ])
    .other_env(&["DYN_LOG", "DYN_METRICS_*"])
}

fn try_load(file: Option<&str>, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded<Role>, Error> {
    let lookup = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string());
    let sources = Sources {
        file: file.map(|text| ("role.toml".into(), text.into())),
        env: &lookup,
        env_names: env.iter().map(|(name, _)| (*name).to_string()).collect(),
        flags: flags.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect(),
    };
    load(&sources, &schema())
}

fn refusal(file: Option<&str>, env: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
    let text = try_load(file, env, flags).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn origin<'a>(loaded: &'a Loaded<Role>, key: &str) -> &'a Origin {
    &loaded.effective().iter().find(|row| row.key == key).unwrap().origin
}

#[test]
fn nothing_set_gives_the_defaults() {
    let loaded = try_load(None, &[], &[]).unwrap();
    assert_eq!(loaded.value, Role::default());
    assert_eq!(loaded.effective().len(), 11);
    assert!(loaded.effective().iter().all(|row| row.origin == Origin::Default));
}

#[test]
fn later_layers_win_and_origins_are_kept() {
    let file = "workers = 3\nmodel = \"a\"\n[frontend]\nport = 1\nhost = \"h\"\n[labels]\nzone = \"b\"\n";
    let env = [("DYN_HTTP_PORT", "2"), ("DYN_ROUTER_MODE", "round-robin"), ("DYN_FRONTEND_HOST", "")];
    let flags = [("frontend.port", "3"), ("frontend.verbose", "yes")];
    let loaded = try_load(Some(file), &env, &flags).unwrap();
    let role = &loaded.value;
    assert_eq!((role.workers, role.frontend.port, role.router.mode), (3, 3, Mode::RoundRobin));
    assert_eq!((&*role.frontend.host, role.frontend.verbose, role.model.as_deref()), ("h", true, Some("a")));
    assert_eq!(role.labels["zone"], "b");
    assert_eq!(*origin(&loaded, "frontend.port"), Origin::Flag("--port".into()));
    assert_eq!(*origin(&loaded, "frontend.verbose"), Origin::Flag("--set frontend.verbose".into()));
    assert_eq!(*origin(&loaded, "router.mode"), Origin::Env("DYN_ROUTER_MODE".into()));
    assert_eq!(*origin(&loaded, "frontend.host"), Origin::File("role.toml".into()));
    assert_eq!(*origin(&loaded, "router.temperature"), Origin::Default);
}

#[test]
fn texts_become_what_the_key_holds() {
    let flags = [
        ("model", "123"),
        ("frontend.idle_timeout_ms", "250"),
        ("frontend.origins", "a, b"),
        ("router.temperature", "1"),
        ("labels", "{\"x\":\"y\"}"),
    ];
    let role = try_load(None, &[("DYN_HTTP_BODY_LIMIT_MB", "3")], &flags).unwrap().value;
    assert_eq!(role.model.as_deref(), Some("123"));
    assert_eq!(role.frontend.idle_timeout_ms, Some(250));
    assert_eq!(role.frontend.origins, ["a", "b"]);
    assert_eq!(role.frontend.body_limit_bytes, 3 << 20);
    assert_eq!(role.router.temperature, 1.0);
    assert_eq!(role.labels["x"], "y");
    let both = [("DYN_HTTP_PORT", "2"), ("DYN_FRONTEND_PORT", "4")];
    assert_eq!(try_load(None, &both, &[]).unwrap().value.frontend.port, 4, "the derived name wins");
}

#[test]
fn unknown_keys_name_the_nearest_one() {
    let cases = [
        (refusal(Some("[frontend]\nprot = 1\n"), &[], &[]), "frontend.prot", "frontend.port"),
        (refusal(Some("[frontent]\nport = 1\n"), &[], &[]), "frontent", "frontend."),
        (refusal(Some("wrokers = 1\n"), &[], &[]), "file role.toml", "\"workers\""),
        (refusal(None, &[], &[("port", "1")]), "--set port", "frontend.port"),
        (refusal(None, &[], &[("frontend", "1")]), "--set frontend", "frontend."),
    ];
    for (text, named, nearest) in cases {
        assert!(text.contains("unknown key") && text.contains(named) && text.contains(nearest), "{text}");
    }
}

#[test]
fn wrong_values_say_key_expected_found_and_origin() {
    let cases = [
        (
            refusal(None, &[("DYN_HTTP_PORT", "http")], &[]),
            "frontend.port (environment DYN_HTTP_PORT): expected a whole number from 0 to 65535, found \"http\"",
        ),
        (
            refusal(None, &[], &[("frontend.port", "70000")]),
            "frontend.port (flag --port): expected a whole number from 0 to 65535, found 70000",
        ),
        (
            refusal(Some("[frontend]\nport = \"80\"\n"), &[], &[]),
            "frontend.port (file role.toml): expected a whole number from 0 to 65535, found \"80\"",
        ),
        (
            refusal(None, &[], &[("frontend.verbose", "maybe")]),
            "frontend.verbose (flag --set frontend.verbose): expected true or false, found \"maybe\"",
        ),
        (
            refusal(None, &[], &[("router.mode", "rr")]),
            "router.mode (flag --set router.mode): expected `kv` or `round-robin`, found \"rr\"",
        ),
        (refusal(Some("frontend = 3\n"), &[], &[]), "frontend (file role.toml): expected a table, found 3"),
        (
            refusal(None, &[], &[("router.temperature", "hot")]),
            "router.temperature (flag --set router.temperature): expected a number, found \"hot\"",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(text, expected);
    }
    let text = refusal(Some("workers = 1\nport = = 2\n"), &[], &[]);
    assert!(text.contains("role.toml, line 2"), "{text}");
}

#[test]
fn unknown_variables_are_warned_about() {
    let env = [("DYN_HTTP_PROT", "1"), ("DYN_LOG", "x"), ("DYN_METRICS_TTFT_MIN", "1"), ("PATH", "x")];
    let warnings = try_load(None, &env, &[]).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("DYN_HTTP_PROT") && warnings[0].contains("DYN_HTTP_PORT"), "{warnings:?}");
}

#[test]
fn what_is_printed_can_be_loaded() {
    let flags = [("frontend.origins", "a,b"), ("labels", "{\"x y\":\"z\"}"), ("model", "a\"b")];
    let loaded = try_load(None, &[], &flags).unwrap();
    let text = loaded.print();
    assert!(text.contains("# frontend.idle_timeout_ms is not set"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("frontend.port = 8000 ") && line.ends_with("# default"))
    );
    assert_eq!(try_load(Some(&text), &[], &[]).unwrap().value, loaded.value);
}

#[test]
fn the_reference_lists_every_key() {
    let text = reference::<Role>(&schema()).unwrap();
    assert_eq!(text.lines().count(), 2 + 11);
    let port =
        "| `frontend.port` | `8000` | `DYN_FRONTEND_PORT`, `DYN_HTTP_PORT` | `--port` | Port to listen on. |";
    assert!(text.lines().any(|line| line == port), "{text}");
    let wrong = Schema::new([Key::new("frontend.prot", "")]);
    assert!(matches!(reference::<Role>(&wrong), Err(Error::Schema(_))));
}
