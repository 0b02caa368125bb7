//! Counters of the thoughts in answers.

use chat::ThoughtReader;
use engine_core::thought_counter::ThoughtCounter;

use super::Server;
use crate::api_error::{ApiError, ApiErrorKind};

impl Server {
    /// Returns the counter of the thoughts in an answer that `reader` reads. `may_call` is true if the request offers
    /// tools.
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
