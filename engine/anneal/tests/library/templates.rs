//! Tests of chat templates: ten families compared with jinja2, templates in model files, and tokenisation.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{tiny, with_text};
use chat::{Inputs, Json, Message, Specials, Template};
use llama::{Model, ModelOptions};
use serde::Deserialize;

#[derive(Deserialize)]
struct Conversation {
    name: String,
    messages: Vec<Message>,
    tools: Option<Json>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    more: BTreeMap<String, Json>,
}

#[test]
fn ten_families_are_rendered_as_jinja2_renders_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
    let conversations: Vec<Conversation> =
        serde_json::from_str(&read("conversations.json")).expect("conversations");
    // Contains the prompt for each template and conversation, or null if the template rejects the conversation.
    let expected: BTreeMap<String, BTreeMap<String, Option<String>>> =
        serde_json::from_str(&read("expected.json")).expect("jinja2's prompts");
    let templates = fs::read_dir(folder.join("families")).expect("a folder").flatten();
    let templates =
        templates.filter(|file| file.path().extension().is_some_and(|extension| extension == "jinja"));
    assert_eq!(templates.count(), expected.len(), "run compare.py --write");
    assert!(expected.len() >= 10);
    for (name, prompts) in &expected {
        let specials = Specials { begin: "<BOS>".to_string(), end: "<EOS>".to_string(), adds_begin: true };
        let template = Template::new(&read(&format!("families/{name}")), name, specials).expect(name);
        assert_eq!(prompts.len(), conversations.len(), "{name}");
        for conversation in &conversations {
            let more: Vec<(String, Json)> = conversation.more.clone().into_iter().collect();
            let found = template.render_with(&Inputs {
                messages: &conversation.messages,
                add_generation_prompt: conversation.add_generation_prompt,
                tools: conversation.tools.as_ref(),
                more: &more,
            });
            let at = format!("{name}, {}", conversation.name);
            // jinja2's prompt contains no tools, and the template may reject calls and results that are not text.
            if conversation.tools.is_some() && !template.shows_tools() {
                match found {
                    Ok(found) => {
                        assert!(found.contains("# Tools") && found.contains("\"weather\""), "{at}: {found}");
                    }
                    Err(error) => assert_eq!(prompts[&conversation.name], None, "{at}: {error}"),
                }
                continue;
            }
            match (found, &prompts[&conversation.name]) {
                (Ok(found), Some(expected)) => assert_eq!(&found, expected, "{at}"),
                // A template that rejects system messages gets the text at the start of the user's message.
                (Ok(found), None) if conversation.messages[0].role == "system" => {
                    let (system, rest) = conversation.messages.split_first().expect("a system message");
                    let mut merged = rest.to_vec();
                    let texts =
                        [&system.content, &merged[0].content].map(|text| text.as_deref().expect("a text"));
                    merged[0].content = Some(texts.join("\n\n"));
                    let add_generation_prompt = conversation.add_generation_prompt;
                    let inputs =
                        Inputs { messages: &merged, add_generation_prompt, tools: None, more: &more };
                    assert_eq!(found, template.render_with(&inputs).expect("no system message"), "{at}");
                }
                (Err(error), None) => {
                    assert!(error.to_string().contains("rejects these messages"), "{at}: {error}")
                }
                (found, expected) => panic!("{at}: {found:?} where jinja2 rendered {expected:?}"),
            }
        }
    }
}

#[test]
fn a_template_comes_out_of_the_models_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    let load = |path: &Path| {
        Model::load(path, &ModelOptions { vocab_only: true, ..ModelOptions::default() }).expect("a model")
    };
    let error = Template::of_model(&load(tiny())).expect_err("no template");
    assert!(error.to_string().contains("--chat-template NAME|FILE"), "{error}");

    // The text is longer than any buffer that it passes through.
    let long = format!("main {{# {} #}}{{{{ tools }}}}", "x".repeat(100_000));
    with_text(tiny(), &path, &[("tokenizer.chat_template", &long)]);
    let asked = [Message::new("user", "a")];
    let tools: Json = serde_json::from_str("[1]").expect("JSON");
    let template = Template::of_model(&load(&path)).expect("a template");
    assert_eq!(template.render(&asked, true, Some(&tools)).expect("a prompt"), "main [1]");

    with_text(
        tiny(),
        &path,
        &[("tokenizer.chat_template", "main"), ("tokenizer.chat_template.tool_use", "tools")],
    );
    let template = Template::of_model(&load(&path)).expect("a template");
    assert_eq!(template.render(&asked, true, None).expect("a prompt"), "main");
    assert_eq!(template.render(&asked, true, Some(&tools)).expect("a prompt"), "tools");

    for (source, words) in [("a\n{% if %}", "line 2"), ("{% for x in", "line 1")] {
        with_text(tiny(), &path, &[("tokenizer.chat_template", source)]);
        let error = Template::of_model(&load(&path)).expect_err(source).to_string();
        assert!(error.contains("tokenizer.chat_template of") && error.contains(words), "{error}");
    }
}

#[test]
fn special_tokens_are_one_token_and_the_first_comes_once() {
    let options = ModelOptions { vocab_only: true, ..ModelOptions::default() };
    let model = Model::load(tiny(), &options).expect("the tiny model");
    let (begin, end) = (model.begin_text(), model.end_text());
    assert!(!begin.is_empty() && !end.is_empty(), "the tiny model's vocabulary has both");
    let end_token = model.tokenize_with(&end, false).expect("tokens");
    assert_eq!(end_token.len(), 1, "{end}");
    assert!(
        model.is_special(end_token[0])
            && !model.is_special(model.tokenize_with("a", false).expect("tokens")[0])
    );
    let begin_token = model.tokenize_with(&begin, false).expect("tokens")[0];

    let asked = [Message::new("user", "hello")];
    let plain = "{{ messages[0].content }}{{ eos_token }}";
    let tokens = |source: &str, adds_begin: bool| {
        let specials = Specials { adds_begin, ..Specials::of_model(&model) };
        let template = Template::new(source, "a test", specials).expect(source);
        let prompt = template.render(&asked, true, None).expect(source);
        template.tokenize(&model, &prompt).expect(source)
    };
    let [without, with] = [plain.to_string(), format!("{{{{ bos_token }}}}{plain}")];
    let adds = model.begin_token().is_some();
    let count = |tokens: &[i32]| tokens.iter().filter(|&&token| token == begin_token).count();
    assert_eq!(count(&tokens(&with, adds)), 1, "written by the template");
    assert_eq!(count(&tokens(&without, adds)), usize::from(adds), "not written by the template");
    assert_eq!(tokens(&without, adds).last(), end_token.last());
    // A special token in a user's message is tokenised as a special token, as in llama.cpp.
    let said = [Message::new("user", end.as_str())];
    let template =
        Template::new("{{ messages[0].content }}", "a test", Specials::of_model(&model)).expect("compiled");
    let prompt = template.render(&said, true, None).expect("a prompt");
    assert_eq!(template.tokenize(&model, &prompt).expect("tokens").last(), end_token.last());
}
