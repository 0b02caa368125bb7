//! Chat templates, which render messages as a prompt.

use chat::{Inputs, Message, Template};
use llama::Token;
use llama::error::Result;

use crate::caught::caught;
use crate::model::Model;

/// A parsed chat template.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Message, Model, Options};
///
/// let model = Model::load(path, &Options::default())?;
/// let template = model.chat_template(Some("chatml"))?;
/// let prompt = template.render(&[Message::new("user", "Hello")])?;
/// assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    model: Model,
}

impl ChatTemplate {
    pub(super) fn new(model: &Model, choice: Option<&str>) -> Result<Self> {
        Ok(ChatTemplate { template: Template::choose(choice, model.raw())?, model: model.clone() })
    }

    /// Renders `messages` as a prompt, up to the beginning of the answer.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or does not finish.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        self.render_with(&Inputs { messages, add_generation_prompt: true, ..Inputs::default() })
    }

    /// Renders `inputs`: messages, optionally with tools, further variables, or no generation prompt.
    ///
    /// # Errors
    /// Errors of [`render`](Self::render).
    pub fn render_with(&self, inputs: &Inputs<'_>) -> Result<String> {
        caught("render a chat template", || self.template.render_with(inputs))
    }

    /// Renders `messages` as the tokens of a prompt, for [`Session::set`](crate::Session::set).
    ///
    /// # Errors
    /// Errors of [`render`](Self::render) and of the tokenizer.
    pub fn tokens(&self, messages: &[Message]) -> Result<Vec<Token>> {
        let prompt = self.render(messages)?;
        caught("tokenise a prompt", || self.template.tokenize(self.model.raw(), &prompt))
    }
}

impl Model {
    /// Returns the chat template that `choice` selects: a built-in template (`chatml`, `gemma`, `llama3`, `mistral`,
    /// `plain`) or the path of a Jinja file. Without `choice`, returns the template in the model's file.
    ///
    /// # Errors
    /// [`Error::NoTemplate`](crate::Error::NoTemplate) if the model's file has no template,
    /// [`Error::Template`](crate::Error::Template) for a template that cannot be read.
    pub fn chat_template(&self, choice: Option<&str>) -> Result<ChatTemplate> {
        caught("read a chat template", || ChatTemplate::new(self, choice))
    }
}
