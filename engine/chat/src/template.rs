//! Chat template of a model: renders messages into a prompt.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use llama::error::{Error, Result};
use llama::{Model, Token};
use minijinja::{Environment, ErrorKind, Value};

use super::calls::{CallFormat, Probe, derive, shows_call};
use super::environment::{self, NAME, RAISED};
use super::message::{Json, Message, ToolStyle};
use super::reasoning::{ThoughtFormat, ThoughtReader};
use super::{builtin, channels, fallback, stack, system, tool_defaults};

/// Metadata key of the template in a GGUF file.
const KEY: &str = "tokenizer.chat_template";

/// Maximum size of a template, in bytes: eight times the longest of llama.cpp's 70 templates. The size bounds the
/// depth of expressions.
const MAX_SOURCE: usize = 128 << 10;

/// Maximum size of a rendered conversation, in bytes: far more than fits into a context.
const MAX_OUTPUT: usize = 64 << 20;

/// Time limit for compiling, and for each rendering. Real templates take milliseconds. The step limit is not enough:
/// one step can compare two texts of any length, and compiling has no steps.
const TIME: Duration = Duration::from_secs(10);

/// Time limit for each trial rendering, and for all renderings of [`Template::derived`].
const TIME_OF_PROBE: Duration = Duration::from_secs(2);

/// Texts of the special tokens that templates use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specials {
    /// Text of `bos_token`. Empty if the model has none.
    pub begin: String,
    /// Text of `eos_token`. Empty if the model has none.
    pub end: String,
    /// True if the tokenizer puts `bos_token` before a text.
    pub adds_begin: bool,
}

impl Specials {
    /// Returns the special tokens of `model`.
    pub fn of_model(model: &Model) -> Self {
        Specials {
            begin: model.begin_text(),
            end: model.end_text(),
            adds_begin: model.begin_token().is_some(),
        }
    }
}

/// Text that shows what a template renders.
const NEEDLE: &str = "needle_of_anneal";

/// Inputs of a rendering.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// Messages of the conversation.
    pub messages: &'a [Message],
    /// True if the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// List of tools, in OpenAI's format.
    pub tools: Option<&'a Json>,
    /// Additional variables of the template, for example `enable_thinking`. Other servers call these variables
    /// `chat_template_kwargs`.
    pub more: &'a [(String, Json)],
}

/// Returns `source` with the line ends of Unix, as Jinja2 reads templates. Otherwise, prompts would contain carriage
/// returns that the model never saw in training.
fn with_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Tool calls in the conversations that a template renders.
#[derive(Debug)]
struct Calls {
    /// Format, if known.
    format: Option<CallFormat>,
    /// True if the template shows the calls of earlier answers.
    are_shown: bool,
}

/// Compiled chat template.
#[derive(Debug)]
pub struct Template {
    main: Arc<Environment<'static>>,
    /// Separate template for conversations with tools, if the model has one.
    tool_use: Option<Arc<Environment<'static>>>,
    /// Source of the template that renders conversations with tools.
    source: String,
    calls: OnceLock<Calls>,
    /// Format of thoughts, if the template contains its markers.
    thoughts: Option<ThoughtFormat>,
    /// True if the template names the role `developer`.
    names_developer: bool,
    shows_developer: OnceLock<bool>,
    origin: String,
    specials: Specials,
    styles: [OnceLock<ToolStyle>; 2],
    shows_tools: OnceLock<bool>,
    has_system: OnceLock<bool>,
}

impl Template {
    /// Compiles the template in the file of `model`.
    ///
    /// # Errors
    /// If the file contains no template, or a template that cannot be compiled.
    pub fn of_model(model: &Model) -> Result<Self> {
        let path = model.path();
        let Some(source) = model.metadata_text(KEY).filter(|source| !source.is_empty()) else {
            return Err(Error::NoTemplate { path: path.to_path_buf(), names: builtin::NAMES.join(", ") });
        };
        let origin = format!("{KEY} of {}", path.display());
        let mut template = Template::new(&source, &origin, Specials::of_model(model))?;
        let key = format!("{KEY}.tool_use");
        if let Some(source) = model.metadata_text(&key) {
            let source = with_newlines(&source);
            template.tool_use = Some(compile(&source, &format!("{key} of {}", path.display()))?);
            template.thoughts = template.thoughts.or(ThoughtFormat::of_template(&source));
            template.names_developer |= names_developer(&source);
            template.source = source;
        }
        // The first request must not wait for the derivation.
        template.call_format();
        Ok(template)
    }

    /// Compiles the template that `choice` selects: one of [`BUILTIN_NAMES`](super::BUILTIN_NAMES) or a file. Without a
    /// choice, compiles the template in the file of `model`.
    ///
    /// # Errors
    /// If the template does not exist, or cannot be read or compiled.
    pub fn choose(choice: Option<&str>, model: &Model) -> Result<Self> {
        let Some(choice) = choice else { return Template::of_model(model) };
        let specials = Specials::of_model(model);
        let template = match builtin::source(choice) {
            Some(source) => Template::new(source, &format!("the built-in template {choice}"), specials)?,
            None => Template::new(&read(choice)?, choice, specials)?,
        };
        template.call_format();
        Ok(template)
    }

    /// Compiles the template `source`. Error messages call the template `origin`.
    ///
    /// # Errors
    /// If the template cannot be compiled.
    pub fn new(source: &str, origin: &str, specials: Specials) -> Result<Self> {
        let source = &with_newlines(source);
        Ok(Template {
            main: compile(source, origin)?,
            tool_use: None,
            calls: OnceLock::new(),
            thoughts: ThoughtFormat::of_template(source),
            names_developer: names_developer(source),
            shows_developer: OnceLock::new(),
            origin: origin.to_string(),
            source: source.clone(),
            specials,
            styles: [OnceLock::new(), OnceLock::new()],
            shows_tools: OnceLock::new(),
            has_system: OnceLock::new(),
        })
    }

    /// Returns the template's name in messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the format of tool calls in answers to prompts from this template. `None` if the format is unknown. If
    /// the template does not support tools, the prompt asks the model to use the Hermes format. The first call renders
    /// the template; later calls return the same result.
    pub fn call_format(&self) -> Option<&CallFormat> {
        self.calls().format.as_ref()
    }

    /// True if the template shows the calls of earlier answers. Otherwise, [`render_with`](Self::render_with) adds them
    /// to the text of the answers.
    pub fn shows_calls(&self) -> bool {
        self.calls().are_shown
    }

    fn calls(&self) -> &Calls {
        self.calls.get_or_init(|| {
            let mut calls = self.derived().unwrap_or(Calls { format: None, are_shown: true });
            calls.format = match self.shows_tools() {
                true => calls.format.or_else(|| CallFormat::of_template(&self.source)),
                false => Some(CallFormat::hermes()),
            };
            calls
        })
    }

    /// Derives the format of tool calls by rendering calls. `None` if that fails or takes too long.
    fn derived(&self) -> Option<Calls> {
        let probe = Probe::new();
        let begin = Instant::now();
        let render = |messages: &[Message]| {
            let inputs = Inputs { messages, tools: Some(&probe.tools), ..Inputs::default() };
            let environment = self.tool_use.as_ref().unwrap_or(&self.main);
            let style = *self.styles[usize::from(self.tool_use.is_some())]
                .get_or_init(|| self.tool_style(environment));
            let left = TIME_OF_PROBE.checked_sub(begin.elapsed())?;
            self.render_in(environment, &inputs, style, left).ok()
        };
        let text = render(&probe.text)?;
        let one = render(&probe.one)?;
        Some(Calls { format: derive(&self.source, &text, &one), are_shown: shows_call(&one) })
    }

    /// Returns the format of thoughts in answers to prompts from this template. If the template contains no markers,
    /// the model may still write `<think>`.
    pub fn thought_format(&self) -> ThoughtFormat {
        self.thoughts.unwrap_or_default()
    }

    /// Returns a reader of an answer to `prompt`, a conversation in this template. `has_begun` is true if the prompt
    /// contains the beginning of the answer proper.
    pub fn thought_reader(&self, prompt: &str, has_begun: bool) -> ThoughtReader {
        // A template without thoughts does not open thoughts, even if a message ends with an opening marker.
        let prompt = if self.thoughts.is_some() { prompt } else { "" };
        self.thought_format().reader(prompt, has_begun)
    }

    /// Appends to `prompt`, a conversation in this template, the `thoughts` of an answer, which may be empty, and the
    /// text that begins the answer proper. A template without thoughts needs no such text.
    pub fn begin_answer(&self, prompt: &mut String, thoughts: &str) {
        if let Some(format) = self.thoughts {
            format.begin_answer(prompt, thoughts);
        }
    }

    /// True if the template shows the tools of a conversation. Otherwise, [`render_with`](Self::render_with) describes
    /// the tools in a message.
    pub fn shows_tools(&self) -> bool {
        // A separate template for tools shows them.
        self.tool_use.is_some()
            || *self.shows_tools.get_or_init(|| {
                let tools = serde_json::json!([{ "type": "function", "function": {
                    "name": NEEDLE, "description": "d", "parameters": { "type": "object", "properties": {} },
                }}]);
                let tools = Json::from(&tools);
                let (system, user) = (Message::new("system", "s"), Message::new("user", "hello"));
                // Some templates show tools only in a system message, and others have no system role.
                [&[user.clone()][..], &[system, user]].into_iter().any(|messages| {
                    let inputs =
                        Inputs { messages, tools: Some(&tools), add_generation_prompt: true, more: &[] };
                    let text = self.render_in(&self.main, &inputs, ToolStyle::default(), TIME_OF_PROBE);
                    text.is_ok_and(|text| text.contains(NEEDLE))
                })
            })
    }

    /// True if the template shows `text`, a part of `messages`.
    fn shows(&self, messages: &[Message], text: &str) -> bool {
        let inputs = Inputs { messages, ..Inputs::default() };
        let rendered = self.render_in(&self.main, &inputs, ToolStyle::default(), TIME_OF_PROBE);
        rendered.is_ok_and(|rendered| rendered.contains(text))
    }

    /// True if the template shows the text of a system message.
    fn has_system(&self) -> bool {
        *self.has_system.get_or_init(|| {
            let messages = [Message::new("system", NEEDLE), Message::new("user", "hello")];
            // A template that also fails without the system message needs something else.
            self.shows(&messages, NEEDLE) || !self.shows(&system::in_user_messages(&messages, false), NEEDLE)
        })
    }

    /// True if the template shows the text of a message with OpenAI's role `developer`.
    fn has_developer(&self) -> bool {
        self.names_developer
            && *self.shows_developer.get_or_init(|| {
                self.shows(&[Message::new("developer", NEEDLE), Message::new("user", "hello")], NEEDLE)
            })
    }

    /// Returns `messages` for this template. The role `developer` becomes `system` unless the template shows it.
    fn with_known_roles<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let is_developer = |message: &Message| message.role == "developer";
        if !messages.iter().any(is_developer) || self.has_developer() {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for message in messages.iter_mut().filter(|message| is_developer(message)) {
            message.role = "system".to_string();
        }
        Cow::Owned(messages)
    }

    /// Returns the messages of `inputs` in a form in which the template shows all system messages. `None` if the
    /// template shows the messages unchanged, or in no such form.
    fn with_shown_system(&self, inputs: &Inputs<'_>) -> Option<Vec<Message>> {
        let last = inputs.messages.iter().rposition(system::is_system)?;
        if !self.has_system() {
            return Some(system::in_user_messages(inputs.messages, false));
        }
        if last == 0 {
            return None;
        }
        let (marked, marks) = system::marked(inputs.messages);
        let shows_all = |messages: &[Message]| {
            let rendered = self.render_adapted(&Inputs { messages, ..*inputs }, TIME_OF_PROBE);
            rendered.is_ok_and(|text| marks.iter().all(|mark| text.contains(mark)))
        };
        if shows_all(&marked) {
            return None;
        }
        let form = system::FORMS.into_iter().find(|form| shows_all(&form(&marked)))?;
        Some(form(inputs.messages))
    }

    /// Renders the prompt for `messages`. [`tokenize`](Self::tokenize) splits the prompt into tokens.
    ///
    /// # Errors
    /// If the template rejects the messages, has an error, or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        tools: Option<&Json>,
    ) -> Result<String> {
        self.render_with(&Inputs { messages, add_generation_prompt, tools, more: &[] })
    }

    /// Renders the prompt with additional variables.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render).
    pub fn render_with(&self, inputs: &Inputs<'_>) -> Result<String> {
        let mut messages = self.with_known_roles(inputs.messages);
        if self.thought_format().has_channels()
            && let Some(changed) = channels::with_thinking(&messages)
        {
            messages = Cow::Owned(changed);
        }
        let mut tools = inputs.tools;
        let has_calls = messages.iter().any(|message| message.tool_calls.is_some());
        let hides_calls = has_calls && !self.shows_calls();
        if !self.shows_tools() && (tools.is_some() || hides_calls) {
            messages = Cow::Owned(fallback::with_tools(&messages, tools, self.has_system()));
            tools = None;
        } else if hides_calls {
            let hermes = CallFormat::hermes();
            let format = self.call_format().unwrap_or(&hermes);
            messages = Cow::Owned(fallback::with_calls(&messages, |calls| format.write(calls)));
        }
        let inputs = Inputs { messages: &messages, tools, ..*inputs };
        let shown = self.with_shown_system(&inputs);
        self.render_adapted(&Inputs { messages: shown.as_deref().unwrap_or(&messages), ..inputs }, TIME)
    }

    /// Renders `inputs`, whose messages and tools have a form that the template supports. If rendering fails, renders
    /// again with values that are optional in OpenAI's API, but that the template may need.
    fn render_adapted(&self, inputs: &Inputs<'_>, time: Duration) -> Result<String> {
        let begin = Instant::now();
        let with_tools = inputs.tools.is_some() && self.tool_use.is_some();
        let environment = self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.main);
        let has_calls = inputs.messages.iter().any(|message| message.tool_calls.is_some());
        let style = match has_calls {
            true => *self.styles[usize::from(with_tools)].get_or_init(|| self.tool_style(environment)),
            false => ToolStyle::default(),
        };
        let first = self.render_in(environment, inputs, style, time);
        if first.is_ok() {
            return first;
        }
        let lacks_content =
            !style.empty_content && inputs.messages.iter().any(|message| message.content.is_none());
        let with_content = ToolStyle { empty_content: true, ..style };
        let defaults = inputs.tools.and_then(tool_defaults::with_defaults);
        for (is_useful, style, tools) in [
            (lacks_content, with_content, inputs.tools),
            (defaults.is_some(), style, defaults.as_ref()),
            (lacks_content && defaults.is_some(), with_content, defaults.as_ref()),
        ] {
            let Some(left) = time.checked_sub(begin.elapsed()).filter(|_| is_useful) else { continue };
            let again = self.render_in(environment, &Inputs { tools, ..*inputs }, style, left);
            if again.is_ok() {
                return again;
            }
        }
        first
    }

    fn render_in(
        &self,
        environment: &Arc<Environment<'static>>,
        inputs: &Inputs<'_>,
        style: ToolStyle,
        time: Duration,
    ) -> Result<String> {
        let variables = self.variables(inputs, style);
        let (environment, origin) = (Arc::clone(environment), self.origin.clone());
        stack::with_time(&self.origin, time, move || rendered(&environment, variables, &origin))?
    }

    /// Builds the variables of the template.
    fn variables(&self, inputs: &Inputs<'_>, style: ToolStyle) -> Value {
        let messages: Value = inputs.messages.iter().map(|message| message.value(style)).collect();
        let mut variables = vec![
            ("messages", messages),
            ("tools", inputs.tools.map_or(Value::from(()), |tools| tools.0.clone())),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(inputs.add_generation_prompt)),
            ("bos_token", Value::from(self.specials.begin.as_str())),
            ("eos_token", Value::from(self.specials.end.as_str())),
        ];
        variables.extend(inputs.more.iter().map(|(name, value)| (name.as_str(), value.0.clone())));
        Value::from_pairs(variables)
    }

    /// Splits `prompt` into tokens, special tokens included. If the tokenizer adds a BOS token and the template also
    /// writes it, the token still appears only once.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn tokenize(&self, model: &Model, prompt: &str) -> Result<Vec<Token>> {
        let begins = self.specials.adds_begin && !self.specials.begin.is_empty();
        let text = if begins { prompt.strip_prefix(&*self.specials.begin).unwrap_or(prompt) } else { prompt };
        model.tokenize(text)
    }

    /// Returns the tokens of `model` whose texts are in `marks`. Markers that consist of several tokens are ordinary
    /// text.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn tokens_of_marks<'a>(model: &Model, marks: impl Iterator<Item = &'a str>) -> Result<Vec<Token>> {
        let all = marks.map(|mark| model.tokenize_with(mark, false)).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|tokens| tokens.len() == 1).flatten().collect())
    }

    /// Determines the form in which the template expects tool calls. As in llama.cpp, renders a trial call and
    /// searches the output for its argument.
    fn tool_style(&self, environment: &Arc<Environment<'static>>) -> ToolStyle {
        let user = Message::new("user", "hello");
        let probe = |style: ToolStyle| -> Option<String> {
            let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function",
                "function":{"name":"f","arguments":"{\"needle\": \"x\"}"}}]}"#;
            let call: Message = serde_json::from_str(call).ok()?;
            let inputs = Inputs { messages: &[user.clone(), call], ..Inputs::default() };
            self.render_in(environment, &inputs, style, TIME_OF_PROBE).ok()
        };
        let shows = |text: &Option<String>| {
            text.as_ref().is_some_and(|text| {
                ["\"needle\":", "'needle':", "<parameter=needle>"].iter().any(|needle| text.contains(needle))
            })
        };
        // Some templates render missing content as `None` or `null`.
        let nothings = |text: &str| text.matches("None").count() + text.matches("null").count();
        for empty_content in [false, true] {
            let [texts, objects] = [false, true].map(|objects| probe(ToolStyle { objects, empty_content }));
            // Some templates add braces around arguments, whatever their form.
            let has_two_braces = texts.as_ref().is_some_and(|text| text.contains("{{\"needle\""));
            let are_texts = shows(&texts) && !(has_two_braces && objects.is_some()) || objects.is_none();
            let Some(rendered) = (if are_texts { texts } else { objects }) else { continue };
            let style = ToolStyle { objects: !are_texts, empty_content };
            let empty = ToolStyle { empty_content: true, ..style };
            let is_better = |text: String| nothings(&text) < nothings(&rendered);
            let with_empty = !empty_content && nothings(&rendered) > 0 && probe(empty).is_some_and(is_better);
            return if with_empty { empty } else { style };
        }
        ToolStyle::default()
    }
}

/// True if the template `source` contains the role `developer` as a text.
fn names_developer(source: &str) -> bool {
    ["'developer'", "\"developer\""].iter().any(|role| source.contains(role))
}

/// Template variables that depend on other fields of a request and on the model.
pub const VARIABLES: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// Renders the template.
fn rendered(environment: &Environment<'_>, variables: Value, origin: &str) -> Result<String> {
    let mut output = Limited::default();
    let rendered = environment
        .get_template(NAME)
        .and_then(|template| template.render_captured_to(variables, &mut output).map(|_| ()));
    match rendered {
        Err(_) if output.full => Err(Error::Template {
            origin: origin.to_string(),
            why: format!("the output has more than {MAX_OUTPUT} bytes"),
            mend: MEND,
        }),
        Err(error) => Err(failed(origin, &error)),
        // The renderer writes whole strings only, so the bytes are valid UTF-8.
        Ok(()) => Ok(String::from_utf8_lossy(&output.bytes).into_owned()),
    }
}

fn compile(source: &str, origin: &str) -> Result<Arc<Environment<'static>>> {
    if source.len() > MAX_SOURCE {
        return Err(Error::Template {
            origin: origin.to_string(),
            why: format!("the template has {} bytes, more than the maximum of {MAX_SOURCE}", source.len()),
            mend: MEND,
        });
    }
    // Compiling folds constants and can be slow, for example when it compares two deeply nested lists.
    let (source, name) = (source.to_string(), origin.to_string());
    stack::with_time(origin, TIME, move || {
        environment::with_template(NAME, &source).map(Arc::new).map_err(|error| failed(&name, &error))
    })?
}

/// Reads the template in the file `path`.
fn read(path: &str) -> Result<String> {
    let failed = |why: String| {
        let names = builtin::NAMES.join(", ");
        Error::Usage(format!(
            "cannot read the chat template \"{path}\": {why}\nhint: use the path of a file, or one of the names {names}"
        ))
    };
    let mut bytes = Vec::new();
    let file = File::open(Path::new(path)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed("it is neither a file nor the name of a template".to_string()),
        _ => failed(error.to_string()),
    })?;
    // A device or a pipe may be endless.
    file.take(MAX_SOURCE as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(format!("the file is not UTF-8: {error}")))
}

const MEND: &str = "choose another template with --chat-template NAME|FILE, or fix a copy of this one";

fn failed(origin: &str, error: &minijinja::Error) -> Error {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let said = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| match detail.strip_prefix(RAISED) {
            Some(why) => format!("the template rejects these messages: {why}"),
            None => format!("{}: {detail}", error.kind()),
        },
    );
    let raised = error.detail().is_some_and(|detail| detail.starts_with(RAISED));
    let why = match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("{line}the template did not finish within {} steps", environment::FUEL)
        }
        _ => format!("{line}{said}"),
    };
    let mend = if raised {
        "change the messages, or choose another template with --chat-template NAME|FILE"
    } else {
        MEND
    };
    Error::Template { origin: origin.to_string(), why, mend }
}

/// Writer that accepts at most [`MAX_OUTPUT`] bytes.
#[derive(Default)]
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for &mut Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
