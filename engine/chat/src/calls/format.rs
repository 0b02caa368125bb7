//! Data that describes a format of tool calls.

use std::collections::BTreeSet;

use super::tags::{self, TagNotation};

/// Format in which a model writes tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFormat {
    /// Markers that may come before a call, in any number and order. White space around markers is ignored.
    pub(super) openers: Vec<String>,
    /// Markers that may come after a call.
    pub(super) closers: Vec<String>,
    /// Opening marker that precedes an ID, if any.
    pub(super) before_id: Option<String>,
    /// Text at the start of an answer without calls, if the prompt ends with the marker before a name.
    pub(super) before_text: Option<String>,
    pub(super) form: CallForm,
}

/// Structure of a call between its markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallForm {
    /// JSON object with the name and the arguments, alone or in a list.
    Json {
        /// Key of the name. `None` if the name is itself the key of the arguments.
        name: Option<String>,
        /// Key of the arguments. The reader also accepts `arguments` and `parameters`.
        arguments: String,
    },
    /// The name, then an object with the arguments.
    Named {
        /// Marker before the name.
        open: String,
        /// First character between the name and the arguments, if any.
        after_name: Option<char>,
        /// Marker around strings if the arguments are not JSON, as in `{city:<|"|>Linz<|"|>}`.
        quote: Option<String>,
    },
    /// The name and each argument between tags.
    Tags(TagNotation),
    /// List of Python calls: `[name(city="Linz", days=3)]`.
    Python,
}

impl CallFormat {
    /// Returns the Hermes format: `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times. If a
    /// template cannot show tools, the description of the tools asks the model for this format.
    pub fn hermes() -> Self {
        CallFormat::json("<tool_call>", "</tool_call>", "arguments")
    }

    pub(super) fn json(open: &str, close: &str, arguments: &str) -> Self {
        let marks = |mark: &str| Vec::from_iter((!mark.is_empty()).then(|| mark.to_string()));
        let form = CallForm::Json { name: Some("name".to_string()), arguments: arguments.to_string() };
        CallFormat::new(marks(open), marks(close), form)
    }

    pub(super) fn new(openers: Vec<String>, closers: Vec<String>, form: CallForm) -> Self {
        CallFormat { openers, closers, before_id: None, before_text: None, form }
    }

    /// Returns the format whose markers the template `source` contains. `None` if the template contains no known
    /// marker.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        let texts = |marks: &[&str]| marks.iter().map(|mark| mark.to_string()).collect();
        let tags = |marks: [&str; 6]| CallForm::Tags(TagNotation::new(marks.map(str::to_string)));
        let none = Vec::new;
        Some(match () {
            () if has("<tool_call>") && has("<function=") && has("<parameter=") => {
                let form = tags(["<function=", ">", "<parameter=", ">", "</parameter>", "</function>"]);
                CallFormat::new(texts(&["<tool_call>"]), texts(&["</tool_call>"]), form)
            }
            () if has("<tool_call>") && has("<arg_key>") && has("<arg_value>") => {
                let value = "</arg_key><arg_value>";
                let form = tags(["<tool_call>", "", "<arg_key>", value, "</arg_value>", "</tool_call>"]);
                CallFormat::new(none(), none(), form)
            }
            // The template may lack the text between these markers, so the markers alone select Hermes. Content that is
            // not JSON stays text.
            () if has("<tool_call>") => CallFormat::hermes(),
            () if has("[TOOL_CALLS]") => {
                let open = "[TOOL_CALLS]".to_string();
                CallFormat::new(none(), none(), CallForm::Named { open, after_name: Some('['), quote: None })
            }
            () if has(PYTHON_TAG) => CallFormat::json(PYTHON_TAG, "", "parameters"),
            // Llama 3.2's template has no marker.
            () if has("\"parameters\": dictionary of argument name") => {
                CallFormat::json("", "", "parameters")
            }
            // Granite 3 and Phi-4-mini.
            () if has("<|tool_call|>") || has("<|/tool_call|>") => {
                CallFormat::json("<|tool_call|>", "<|/tool_call|>", "arguments")
            }
            // LFM2's templates do not render calls.
            () if has("<|tool_list_start|>") || has("<|tool_call_start|>") || has("List of tools: [") => {
                let [open, close] = ["<|tool_call_start|>", "<|tool_call_end|>"];
                CallFormat::new(texts(&[open]), texts(&[close]), CallForm::Python)
            }
            () => return None,
        })
    }

    /// Returns the name of the format: `json`, `named`, `tags` or `python`.
    pub fn kind(&self) -> &'static str {
        match &self.form {
            CallForm::Json { .. } => "json",
            CallForm::Named { .. } => "named",
            CallForm::Tags(_) => "tags",
            CallForm::Python => "python",
        }
    }

    /// Returns the tags in the markers of this format, for example `<tool_call>`. In some models they are special
    /// tokens, which are not rendered as text unless requested.
    pub fn markers(&self) -> BTreeSet<&str> {
        let form = match &self.form {
            CallForm::Json { .. } | CallForm::Python => Vec::new(),
            CallForm::Named { open, quote, .. } => vec![open.as_str(), quote.as_deref().unwrap_or_default()],
            CallForm::Tags(tags) => tags.marks(),
        };
        let marks = self.openers.iter().chain(&self.closers).map(String::as_str).chain(form);
        marks.flat_map(|mark| tags::ranges(mark).into_iter().map(move |range| &mark[range])).collect()
    }

    /// Adds the marker that Llama's models may write before a call, although their templates do not.
    pub(super) fn with_python_tag(mut self, source: &str) -> Self {
        if self.openers.is_empty()
            && source.contains(PYTHON_TAG)
            && matches!(self.form, CallForm::Json { .. })
        {
            self.openers.push(PYTHON_TAG.to_string());
        }
        self
    }

    /// Returns the marker directly before the name of a call; `None` if the format has no such marker.
    pub(super) fn open(&self) -> Option<&str> {
        match &self.form {
            CallForm::Named { open, .. } => Some(open),
            CallForm::Tags(tags) => Some(&tags.open),
            CallForm::Json { .. } | CallForm::Python => None,
        }
    }

    /// Returns the markers that may begin a call.
    pub(super) fn marks(&self) -> impl Iterator<Item = &str> {
        self.openers.iter().map(String::as_str).chain(self.open())
    }
}

const PYTHON_TAG: &str = "<|python_tag|>";
