//! Readers and counters of the thoughts in answers.

use chat::{Offered, ThoughtReader};
use engine_core::thought_counter::ThoughtCounter;

use super::Server;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::client::Client;
use crate::request::{Generate, Prompt};

impl Server {
    /// Returns the reader that separates the thoughts from the rest of an answer to `generate`; `None` if the answer
    /// contains no thoughts. If answers consist of channels, the reader also finds calls to the functions in `offered`.
    ///
    /// # Errors
    /// If the model has no template.
    pub async fn thought_reader(
        &self,
        client: &Client,
        generate: &Generate,
        offered: Vec<Offered>,
    ) -> Result<Option<ThoughtReader>, ApiError> {
        let Prompt::Messages(conversation) = &generate.prompt else { return Ok(None) };
        if generate.has_schema() {
            return Ok(None);
        }
        let template = self.template()?;
        if !template.has_thoughts() {
            return Ok(Some(conversation.thought_reader(&template, "", offered)));
        }
        // Only the prompt shows if the template opens the thoughts, for example because of `enable_thinking`. Errors are
        // reported when the request's prompt is rendered.
        let conversation = conversation.clone();
        let reader = self.aside(client, move || {
            let prompt = conversation.prompt(&template).unwrap_or_default();
            conversation.thought_reader(&template, &prompt, offered)
        });
        reader.await.map(Some)
    }

    /// Returns the counter of the thoughts in an answer that `reader` reads. `may_call` is true if the request offers tools.
    pub(super) fn thought_counter(
        &self,
        reader: ThoughtReader,
        budget: Option<u32>,
        may_call: bool,
    ) -> Result<ThoughtCounter, ApiError> {
        let closing = match budget {
            Some(_) => self.model.tokenize_with(self.template()?.thought_format().closing(may_call), false),
            None => Ok(Vec::new()),
        };
        let closing = closing.map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))?;
        Ok(ThoughtCounter::new(reader, budget, closing))
    }
}
