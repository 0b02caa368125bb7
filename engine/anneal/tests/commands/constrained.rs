//! Tests of output from a model with random weights that must follow a schema or a grammar.

use crate::common::{anneal, parts, tiny};
use serde_json::{Value, json};

/// Runs `anneal run --json` on the tiny model.
fn run(arguments: &[&str]) -> Value {
    let mut all = vec!["run", "--json", "-p", "hello", "-t", "1", "-m", tiny().to_str().expect("UTF-8")];
    all.extend(arguments);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{all:?}: {stderr}");
    serde_json::from_str(&stdout).expect("one JSON object")
}

/// Returns exit code and stderr of a run that must be refused.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let mut all = vec!["run", "-p", "hello", "-n", "4", "-m", tiny().to_str().expect("UTF-8")];
    all.extend(arguments);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(stdout, "", "{all:?} printed text");
    assert!(stderr.starts_with("error: ") && !stderr.contains("panicked"), "{all:?}: {stderr}");
    (code, stderr)
}

#[test]
fn a_text_that_ends_is_json_as_the_schema_has_it() {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "colour": {"enum": ["red", "green"]},
        },
        "required": ["name", "age", "colour"],
        "additionalProperties": false,
    })
    .to_string();
    let mut ended = 0;
    for seed in 0..8 {
        for more in [&["--temp", "1.5", "--top-k", "0"][..], &["--greedy"], &["--mirostat", "2"]] {
            let seed = seed.to_string();
            let result = run(&[&["-n", "120", "--json-schema", &person, "--seed", &seed], more].concat());
            let text = result["text"].as_str().expect("a text");
            match result["stop"].as_str() {
                Some("end") => {
                    ended += 1;
                    let value: Value =
                        serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"));
                    let object = value.as_object().expect("an object");
                    assert_eq!(object.len(), 3, "{text}");
                    assert!(object["name"].as_str().is_some_and(|name| name.chars().count() <= 10), "{text}");
                    assert!(object["age"].as_u64().is_some_and(|age| age <= 150), "{text}");
                    assert!(object["colour"] == "red" || object["colour"] == "green", "{text}");
                }
                Some("length") => assert_eq!(result["tokens"].as_array().map(Vec::len), Some(120)),
                other => panic!("{other:?}: {result}"),
            }
        }
    }
    assert!(ended >= 8, "only {ended} of 24 texts ended");
}

#[test]
fn a_text_that_is_cut_is_the_beginning_of_json() {
    let list = r#"{"type": "array", "items": {"type": "boolean"}, "minItems": 50}"#;
    let result = run(&["-n", "9", "--json-schema", list, "--seed", "3"]);
    assert_eq!(result["stop"], "length", "{result}");
    let text = result["text"].as_str().expect("a text");
    let characters: String = text.chars().filter(|character| !character.is_whitespace()).collect();
    assert!(serde_json::from_str::<Value>(text).is_err_and(|why| why.is_eof()), "{text}");
    assert!(characters.starts_with('['), "{text}");
}

#[test]
fn the_end_of_a_schema_is_the_end_whatever_else_is_asked() {
    for more in [&["--ignore-eos"][..], &[], &["--greedy"], &["--greedy", "--ignore-eos"]] {
        let result =
            run(&[&["-n", "400", "--json-schema", r#"{"const": [1, "a"]}"#, "--seed", "1"], more].concat());
        assert_eq!(result["stop"], "end", "{more:?}: {result}");
        let value: Value = serde_json::from_str(result["text"].as_str().expect("a text")).expect("JSON");
        assert_eq!(value, json!([1, "a"]));
    }
}

#[test]
fn grammars_of_both_kinds_are_followed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("answer.gbnf");
    std::fs::write(&path, "# an answer\nroot ::= (\"yes\" | \"no\") \", \" [0-9]{3}\n").expect("a file");
    let lark = "%llguidance {}\nstart: (\"yes\" | \"no\") \", \" /[0-9]{3}/";
    let file = path.to_str().expect("UTF-8");
    for seed in ["1", "2", "3", "4"] {
        for grammar in [["--grammar-file", file], ["--grammar", lark]] {
            for more in [&["--temp", "2", "--top-k", "0"][..], &["--greedy"], &["--top-k", "2"]] {
                let result = run(&[&["-n", "20", "--seed", seed], &grammar[..], more].concat());
                assert_eq!(result["stop"], "end", "{result}");
                let text = result["text"].as_str().expect("a text");
                let (word, digits) = text.split_once(", ").expect("two parts");
                assert!(word == "yes" || word == "no", "{text}");
                assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
            }
        }
    }
}

#[test]
fn a_constrained_text_is_the_same_for_the_same_seed() {
    let tokens =
        |seed| run(&["-n", "40", "--json-schema", "{}", "--seed", seed, "--temp", "1.2"])["tokens"].clone();
    assert_eq!(tokens("7"), tokens("7"));
    assert_ne!(tokens("7"), tokens("8"));
}

#[test]
fn what_no_text_can_match_is_wrong_usage() {
    let refs: String = (0..4001).map(|n| format!(r##","r{n}": {{"$ref": "#"}}"##)).collect();
    let many = format!(r##"{{"$defs": {{"a": {{}}{refs}}}}}"##);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("many.json");
    std::fs::write(&file, many).expect("a file");
    let wide = folder.path().join("wide.json");
    let parts = vec!["true"; 20_000].join(", ");
    let text = format!(r#"{{"properties": {{"{}": {{"anyOf": [{parts}]}}}}}}"#, "a".repeat(500_000));
    std::fs::write(&wide, text).expect("a file");
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(3000), ")".repeat(3000));
    let long = folder.path().join("long.gbnf");
    std::fs::write(&long, format!("root ::= \"{}\"", "a".repeat(130 << 10))).expect("a file");
    let cases: [(&[&str], &str); 21] = [
        (&["--json-schema", "{"], "cannot use the JSON schema: it is not JSON"),
        (&["--json-schema", "[]"], "must be an object or boolean"),
        (&["--json-schema", "false"], "schema is false"),
        (
            &["--json-schema", r#"{"type": "colour"}"#],
            "type: use string, number, integer, boolean, array, object or null, not \"colour\"",
        ),
        (&["--json-schema", r#"{"allOf": [{"type": "string"}, {"type": "number"}]}"#], "incompatible types"),
        (&["--json-schema", r##"{"$ref": "#"}"##], "no text matches it"),
        (&["--json-schema", r##"{"$ref": "#/$defs/a"}"##], "JSON schema"),
        (&["--json-schema", r#"{"$ref": "other.json"}"#], "JSON schema"),
        (
            &["--json-schema", r#"{"type": "string", "pattern": "(?=a)("}"#],
            "invalid regular expression: unclosed group",
        ),
        (&["--json-schema-file", file.to_str().expect("UTF-8")], "$refs, more than the maximum of 4000"),
        (&["--json-schema-file", wide.to_str().expect("UTF-8")], "use shorter names"),
        (&["--grammar", ""], "it is empty"),
        (&["--grammar", "root = \"a\""], "line 1, column 6: expected ::="),
        (&["--grammar", "other ::= \"a\""], "'root'"),
        (&["--grammar", "root ::= root \"a\""], "no text matches it"),
        (&["--grammar", "root ::= \"a\"{5,2}"], "less than the minimum"),
        (&["--grammar", &deep], "more than 200 nested brackets"),
        (&["--grammar-file", long.to_str().expect("UTF-8")], "more than the maximum of 131072"),
        (&["--grammar", "%llguidance {}\nstart: nothing"], "unknown name"),
        (&["--grammar", "%llguidance {}\nstart: ("], "Lark grammar"),
        (&["--grammar", "root ::= \"a\"", "--json-schema", "{}"], "cannot be used with"),
    ];
    for (arguments, words) in cases {
        let (code, stderr) = refused(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let (code, stderr) = refused(&["--grammar-file", "/no/such/file"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("cannot read the grammar /no/such/file") && stderr.contains("\nhint: check the path"),
        "{stderr}"
    );
}

#[test]
fn rules_that_lead_to_rules_are_no_reason_to_crash() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let chain = |name: &str, head: &str, is: &str, n: usize| {
        let path = folder.path().join(name);
        let rules: String = (0..n).map(|rule| format!("r{rule} {is} r{}\n", rule + 1)).collect();
        std::fs::write(&path, format!("{head}{rules}r{n} {is} \"a\"\n")).expect("a file");
        path
    };
    let grammars = [
        chain("chain.gbnf", "root ::= r0\n", "::=", 7000),
        chain("chain.lark", "%llguidance {}\nstart: r0\n", ":", 8000),
    ];
    for path in grammars {
        let result = run(&["-n", "4", "--grammar-file", path.to_str().expect("UTF-8")]);
        assert_eq!((&result["text"], &result["stop"]), (&json!("a"), &json!("end")), "{}", path.display());
    }
}
