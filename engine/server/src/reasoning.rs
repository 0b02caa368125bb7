//! Fields of a request that control its thoughts, under the names of several APIs.

use serde_json::{Map, Value};

use super::api_error::ApiError;
use super::conversation::Conversation;
use super::fields::{Fields, wrong};

/// Settings of a request for its thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// True if thoughts are returned separately from the text.
    pub is_separate: bool,
    /// Maximum number of thought tokens. `None` for no limit.
    pub budget: Option<u32>,
}

/// Names of the field with the maximum number of tokens, from llama-server and vLLM.
const BUDGETS: [&str; 2] = ["thinking_budget_tokens", "thinking_token_budget"];

impl Reasoning {
    /// Returns the settings for a request without messages, whose answer is returned as the model wrote it.
    pub fn none() -> Self {
        Reasoning { is_separate: false, budget: None }
    }

    /// Takes the fields of a request, and sets the variables of the template that they imply. A variable that the
    /// request sets explicitly takes precedence. `default_budget` applies if the request has no budget.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn take(
        fields: &mut Fields,
        conversation: &mut Conversation,
        default_budget: Option<u32>,
    ) -> Result<Self, ApiError> {
        // The name and the values come from llama-server.
        let is_separate = match fields.text("reasoning_format")?.as_deref() {
            None | Some("auto" | "deepseek") => true,
            Some("none") => false,
            Some(other) => {
                return Err(wrong("reasoning_format", "use auto, deepseek or none", &other.into()));
            }
        };
        let mut wish = ReasoningWish::default();
        wish.read_effort("reasoning_effort", fields.take("reasoning_effort"))?;
        if let Some(reasoning) = object(fields, "reasoning")? {
            wish.read_reasoning(&reasoning)?;
        }
        wish.is_on = fields.bool("enable_thinking")?.or(wish.is_on);
        if let Some(thinking) = object(fields, "thinking")? {
            wish.read_thinking(&thinking)?;
        }
        for name in BUDGETS {
            wish.budget = budget(name, fields.take(name))?.or(wish.budget);
        }
        wish.set_variables(conversation);
        let budget = match (wish.budget, wish.is_on) {
            (Some(ThoughtBudget::Unlimited), _) => None,
            (Some(ThoughtBudget::Tokens(tokens)), _) => Some(tokens),
            // Some templates and models cannot turn thoughts off, so thoughts are closed as soon as they open.
            (None, Some(false)) => Some(0),
            (None, _) => default_budget,
        };
        Ok(Reasoning { is_separate, budget })
    }
}

/// Maximum number of thought tokens, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThoughtBudget {
    Unlimited,
    Tokens(u32),
}

/// Requested settings. Later fields override earlier fields.
#[derive(Debug, Default)]
struct ReasoningWish {
    /// True if the model should think; `None` if the request leaves this to the template.
    is_on: Option<bool>,
    effort: Option<String>,
    budget: Option<ThoughtBudget>,
}

impl ReasoningWish {
    /// Reads `value`, the effort in the field `name`.
    fn read_effort(&mut self, name: &str, value: Option<Value>) -> Result<(), ApiError> {
        match value {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(effort)) if effort == "none" => {
                (self.is_on, self.effort) = (Some(false), None);
                Ok(())
            }
            Some(Value::String(effort)) => {
                (self.is_on, self.effort) = (Some(true), Some(effort));
                Ok(())
            }
            Some(other) => Err(wrong(name, "use a string", &other)),
        }
    }

    /// Reads the field `reasoning` of OpenAI's Responses API and of OpenRouter.
    fn read_reasoning(&mut self, reasoning: &Map<String, Value>) -> Result<(), ApiError> {
        self.read_effort("reasoning.effort", reasoning.get("effort").cloned())?;
        match reasoning.get("enabled") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(is_on)) => self.is_on = Some(*is_on),
            Some(other) => return Err(wrong("reasoning.enabled", "use true or false", other)),
        }
        let tokens = budget("reasoning.max_tokens", reasoning.get("max_tokens").cloned())?;
        self.budget = tokens.or(self.budget);
        Ok(())
    }

    /// Reads the field `thinking` of Anthropic's Messages API, which other chat APIs also use.
    fn read_thinking(&mut self, thinking: &Map<String, Value>) -> Result<(), ApiError> {
        let kind = thinking.get("type").unwrap_or(&Value::Null);
        let is_on = match kind.as_str() {
            Some("enabled" | "adaptive" | "auto") => true,
            Some("disabled") => false,
            _ => return Err(wrong("thinking.type", "use enabled, adaptive, auto or disabled", kind)),
        };
        self.is_on = Some(is_on);
        if is_on {
            let tokens = budget("thinking.budget_tokens", thinking.get("budget_tokens").cloned())?;
            self.budget = tokens.or(self.budget);
        }
        Ok(())
    }

    /// Sets the variables of the template.
    fn set_variables(&self, conversation: &mut Conversation) {
        for (name, value) in chat::thought_variables(self.is_on, self.effort.as_deref()) {
            conversation.set_default(name, &value);
        }
    }
}

/// Takes the object in the field `name`.
fn object(fields: &mut Fields, name: &'static str) -> Result<Option<Map<String, Value>>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(wrong(name, "use an object", &other)),
    }
}

/// Reads `value`, a number of tokens in the field `name`. -1 means no limit.
fn budget(name: &str, value: Option<Value>) -> Result<Option<ThoughtBudget>, ApiError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let tokens = sampling::whole(&value);
    match tokens.map(u32::try_from) {
        _ if tokens == Some(-1) => Ok(Some(ThoughtBudget::Unlimited)),
        Some(Ok(tokens)) => Ok(Some(ThoughtBudget::Tokens(tokens))),
        _ => {
            let range = format!("use a whole number from 0 to {}, or -1 for no limit", u32::MAX);
            Err(wrong(name, range, &value))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the choices in `more`, and the variables of the template.
    fn read(more: Value, default_budget: Option<u32>) -> Result<(Reasoning, Value), ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let mut fields = Fields::read(body.to_string().as_bytes())?;
        let messages = fields.raw("messages").expect("messages");
        let mut conversation = Conversation::take(&mut fields, messages)?;
        let reasoning = Reasoning::take(&mut fields, &mut conversation, default_budget)?;
        fields.finish()?;
        Ok((reasoning, conversation.variables()))
    }

    #[test]
    fn every_name_turns_thoughts_on_and_off() {
        let on = json!({ "enable_thinking": true, "thinking": true });
        let off = json!({ "enable_thinking": false, "thinking": false });
        let effort = json!({ "enable_thinking": true, "thinking": true, "reasoning_effort": "high" });
        for (more, variables, budget) in [
            (json!({}), json!({}), None),
            (json!({ "reasoning_effort": "high" }), effort.clone(), None),
            (json!({ "reasoning": { "effort": "high", "summary": "auto" } }), effort, None),
            (json!({ "reasoning_effort": "none" }), off.clone(), Some(0)),
            (json!({ "reasoning": { "effort": "none" } }), off.clone(), Some(0)),
            (json!({ "reasoning": { "enabled": false } }), off.clone(), Some(0)),
            (json!({ "reasoning": { "max_tokens": 9 } }), json!({}), Some(9)),
            (json!({ "enable_thinking": false }), off.clone(), Some(0)),
            (json!({ "enable_thinking": true }), on.clone(), None),
            (json!({ "thinking": { "type": "enabled", "budget_tokens": 7 } }), on.clone(), Some(7)),
            (json!({ "thinking": { "type": "adaptive" } }), on.clone(), None),
            (json!({ "thinking": { "type": "disabled", "budget_tokens": 7 } }), off, Some(0)),
            (json!({ "thinking_budget_tokens": 5.0 }), json!({}), Some(5)),
            (json!({ "thinking_token_budget": 5, "thinking_budget_tokens": null }), json!({}), Some(5)),
            (
                json!({ "reasoning_effort": "none", "thinking_budget_tokens": -1, "enable_thinking": true }),
                on,
                None,
            ),
            // Variables that the request sets explicitly take precedence.
            (
                json!({ "reasoning_effort": "none", "chat_template_kwargs": { "enable_thinking": true } }),
                json!({ "enable_thinking": true, "thinking": false }),
                Some(0),
            ),
        ] {
            let found = read(more.clone(), None).expect("a request");
            assert_eq!((found.0.budget, &found.1), (budget, &variables), "{more}");
        }
    }

    #[test]
    fn the_server_has_a_default_budget() {
        for (more, budget) in [
            (json!({}), Some(8)),
            (json!({ "reasoning_effort": "low" }), Some(8)),
            (json!({ "thinking_budget_tokens": 9 }), Some(9)),
            (json!({ "thinking_budget_tokens": -1 }), None),
            (json!({ "reasoning_effort": "none" }), Some(0)),
        ] {
            assert_eq!(read(more.clone(), Some(8)).expect("a request").0.budget, budget, "{more}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (more, expected) in [
            (json!({ "reasoning_effort": 1 }), "reasoning_effort: use a string, not 1"),
            (json!({ "reasoning": "high" }), "reasoning: use an object"),
            (json!({ "reasoning": { "enabled": 1 } }), "reasoning.enabled: use true or false"),
            (
                json!({ "reasoning": { "max_tokens": "x" } }),
                "reasoning.max_tokens: use a whole number from 0",
            ),
            (json!({ "thinking": true }), "thinking: use an object, not true"),
            (json!({ "thinking": {} }), "thinking.type: use enabled, adaptive, auto or disabled"),
            (json!({ "enable_thinking": "no" }), "enable_thinking: use true or false"),
            (json!({ "thinking_budget_tokens": -2 }), "thinking_budget_tokens: use a whole number from 0"),
            (
                json!({ "thinking_token_budget": 4_294_967_296_u64 }),
                "thinking_token_budget: use a whole number",
            ),
            (json!({ "reasoning_format": "xml" }), "reasoning_format: use auto, deepseek or none"),
        ] {
            let found = read(more.clone(), None).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(found.starts_with(expected), "{more}: {found}");
        }
    }
}
