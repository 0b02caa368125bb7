//! Prints the tool-call format of each chat template in a folder, and checks that Anneal can parse rendered calls.
//!
//! `tool_formats FOLDER` renders calls with each `.jinja` file, and parses the rendered answers in small pieces. A
//! check passes if the parser returns the same calls. The columns are the template, the format, one call, two calls,
//! and a text before a call; `-` means that the template does not render such an answer.

use std::error::Error;
use std::path::Path;

use chat::{CallFormat, CallReader, Inputs, Json, Message, Offered, Part, Specials, Template};
use serde_json::{Value, json};

/// Names and arguments of calls.
type Calls = Vec<(String, Value)>;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: tool_formats FOLDER")?;
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "jinja"));
    paths.sort();
    let mut counts = [0; 4];
    println!("| template | format | one call | two calls | text first |\n| --- | --- | --- | --- | --- |");
    for path in &paths {
        let row = row(path);
        for (count, cell) in counts.iter_mut().zip(&row[1..]) {
            *count += usize::from(cell != "none" && (cell == "yes" || !cell.starts_with(['n', '-'])));
        }
        println!("| {} |", row.join(" | "));
    }
    let [_, one, two, text] = counts;
    println!("\n{} templates; one call: {one}, two calls: {two}, text before a call: {text}", paths.len());
    Ok(())
}

/// Returns the cells of the row of the template `path`.
fn row(path: &Path) -> [String; 5] {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let specials = Specials { begin: "<BOS>".to_string(), end: "<EOS>".to_string(), adds_begin: true };
    let source = std::fs::read_to_string(path).unwrap_or_default();
    let template = match Template::new(&source, &name, specials) {
        Ok(template) => template,
        Err(error) => return [name, format!("none ({error})"), "no".into(), "no".into(), "no".into()],
    };
    let call = |name: &str, arguments: Value| (name.to_string(), arguments);
    let first = call("get_weather", json!({ "city": "Linz an der \"Donau\"", "days": 3 }));
    let second = call("stop", json!({}));
    let third = call("get_weather", json!({ "city": "7", "days": 12 }));
    let check = |text: Option<&str>, calls: &[(String, Value)]| match round_trip(&template, text, calls) {
        Ok(true) => "yes".to_string(),
        Ok(false) => "-".to_string(),
        Err(why) => format!("no: {why}"),
    };
    let kind = template.call_format().map_or("none", CallFormat::kind);
    let shown = match (template.shows_tools(), template.shows_calls()) {
        (false, _) => " (fallback)",
        (true, false) => " (as text)",
        (true, true) => "",
    };
    if std::env::var_os("VERBOSE").is_some() {
        eprintln!("{name}: {:?}", template.call_format());
    }
    let one = check(None, std::slice::from_ref(&first));
    let two = check(None, &[first.clone(), second]);
    let two = if two == "yes" { check(None, &[first.clone(), third]) } else { two };
    [name, format!("{kind}{shown}"), one, two, check(Some("Let me look."), &[first])]
}

/// Renders an answer with `calls`, and parses it. Returns false if the template does not show the text and all calls.
fn round_trip(template: &Template, text: Option<&str>, calls: &[(String, Value)]) -> Result<bool, String> {
    let weather = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" } }, "required": ["city"] });
    let tools = json!([
        { "type": "function", "function": { "name": "get_weather", "description": "d", "parameters": weather } },
        { "type": "function", "function": { "name": "stop", "description": "d",
            "parameters": { "type": "object", "properties": {} } } },
    ]);
    let (json, format) = (Json::from(&tools), template.call_format().ok_or("the format is unknown")?);
    let render = |messages: &[Message], add_generation_prompt: bool| {
        let inputs = Inputs { messages, tools: Some(&json), add_generation_prompt, more: &[] };
        let rendered = template.render_with(&inputs);
        rendered.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_string())
    };
    let user = Message::new("user", "hello");
    let written: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(index, (name, arguments))| {
            json!({
        "id": format!("call0000{index}"), "type": "function",
        "function": { "name": name, "arguments": arguments.to_string() } })
        })
        .collect();
    let answer = json!({ "role": "assistant", "content": text, "tool_calls": written });
    let answer: Message = serde_json::from_value(answer).map_err(|error| error.to_string())?;
    let whole = match render(&[user.clone(), answer], false) {
        Ok(whole) => whole,
        Err(why) if calls.len() > 1 && why.contains("rejects") => return Ok(false),
        Err(why) => return Err(why),
    };
    let prompt = render(std::slice::from_ref(&user), true)?;
    let plain = render(&[user, Message::new("assistant", "Z")], false)?;
    // The answer is the part that differs from an answer without calls, with complete markers.
    let common = whole.chars().zip(plain.chars()).take_while(|(left, right)| left == right);
    let begin: usize = common.map(|(character, _)| character.len_utf8()).sum();
    let is_open = |at: usize| whole[..at].rfind('<').is_some_and(|open| !whole[open..at].contains('>'));
    let begin = if is_open(begin) { whole[..begin].rfind('<').unwrap_or(begin) } else { begin };
    let begin = if whole.starts_with(&prompt) { begin.max(prompt.len()) } else { begin };
    let common =
        whole[begin..].chars().rev().zip(plain.chars().rev()).take_while(|(left, right)| left == right);
    let mut end = whole.len() - common.map(|(character, _)| character.len_utf8()).sum::<usize>();
    if is_open(end) {
        end += whole[end..].find('>').map_or(0, |at| at + 1);
    }
    let answer = whole[begin..end].trim_start();
    // The server separates thoughts from the answer before it looks for calls.
    let answer = answer.rsplit("</think>").next().unwrap_or(answer).trim_start();
    if calls.iter().any(|(name, _)| !answer.contains(name.as_str())) {
        return Ok(false);
    }
    if text.is_some_and(|text| !answer.contains(text)) {
        return Ok(false);
    }
    for size in [1, 2, 5, 100] {
        let mut reader = CallReader::new(format.clone(), offered(&tools));
        let characters: Vec<char> = answer.chars().collect();
        let mut parts = Vec::new();
        for piece in characters.chunks(size) {
            parts.extend(reader.push(&piece.iter().collect::<String>()));
        }
        parts.extend(reader.finish());
        let found = merged(parts)?;
        if found.0 != calls {
            return Err(format!("{answer:?} was parsed as {found:?}"));
        }
        if found.1.trim() != text.unwrap_or_default() {
            return Err(format!("the text of {answer:?} was parsed as {:?}", found.1));
        }
    }
    Ok(true)
}

fn offered(tools: &Value) -> Vec<Offered> {
    let function = |tool: &Value| Offered {
        name: tool["function"]["name"].as_str().unwrap_or_default().to_string(),
        parameters: tool["function"]["parameters"].as_object().cloned(),
    };
    tools.as_array().into_iter().flatten().map(function).collect()
}

/// Returns the calls and the text of `parts`.
fn merged(parts: Vec<Part>) -> Result<(Calls, String), String> {
    let (mut calls, mut text) = (Vec::<(String, String)>::new(), String::new());
    for part in parts {
        match part {
            Part::Call(name) => calls.push((name, String::new())),
            Part::Arguments(more) => calls.last_mut().ok_or("arguments without a call")?.1.push_str(&more),
            Part::Text(more) | Part::Thought(more) => text.push_str(&more),
        }
    }
    let parse = |(name, json): (String, String)| match serde_json::from_str(&json) {
        Ok(arguments) => Ok((name, arguments)),
        Err(error) => Err(format!("{json:?} is not JSON: {error}")),
    };
    Ok((calls.into_iter().map(parse).collect::<Result<_, _>>()?, text))
}
