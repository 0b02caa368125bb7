//! Renders conversations with a chat template, for `engine/anneal/tests/chat/compare.py`.
//!
//! `render_template TEMPLATE CONVERSATIONS` reads a Jinja file and a JSON file in the format of the files in
//! `engine/anneal/tests/chat`. The program prints one JSON object that maps the name of each conversation to its
//! prompt or its error.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use chat::{Inputs, Json, Message, Specials, Template};
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

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, template, conversations] = arguments.as_slice() else {
        return Err("usage: render_template TEMPLATE CONVERSATIONS".into());
    };
    let source = std::fs::read_to_string(Path::new(template))?;
    let specials = Specials { begin: "<BOS>".to_string(), end: "<EOS>".to_string(), adds_begin: true };
    let conversations: Vec<Conversation> = serde_json::from_str(&std::fs::read_to_string(conversations)?)?;
    let mut results = BTreeMap::new();
    let template = Template::new(&source, template, specials);
    for conversation in conversations {
        let rendered = match &template {
            Ok(template) => template.render_with(&Inputs {
                messages: &conversation.messages,
                add_generation_prompt: conversation.add_generation_prompt,
                tools: conversation.tools.as_ref(),
                more: &conversation.more.into_iter().collect::<Vec<_>>(),
            }),
            Err(error) => Err(llama::error::Error::Usage(error.to_string())),
        };
        let result = match rendered {
            Ok(text) => serde_json::json!({ "text": text }),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        results.insert(conversation.name, result);
    }
    println!("{}", serde_json::to_string(&results)?);
    Ok(())
}
