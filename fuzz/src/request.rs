//! Fuzz target for client requests. Every invalid request must be rejected with an error message.

use std::time::Duration;

use sampling::SamplingOptions;
use server::fields::Fields;
use server::request::{Defaults, Generate, prompt_or_messages};

/// Parses `bytes` as the server parses a line of JSON.
pub fn check(bytes: &[u8]) {
    let defaults = Defaults {
        sampling: SamplingOptions::default(),
        max_tokens: 512,
        reasoning_budget: None,
        deadline: Duration::from_secs(600),
        drafts: Default::default(),
        workloads: Default::default(),
    };
    let read = || {
        let mut fields = Fields::read(bytes)?;
        let _ = fields.take("id");
        let prompt = prompt_or_messages(&mut fields)?;
        let generate = Generate::take(&mut fields, prompt, &defaults)?;
        fields.finish()?;
        Ok::<_, server::api_error::ApiError>(generate)
    };
    match read() {
        Ok(generate) => {
            assert!(generate.max_tokens > 0 && generate.deadline <= defaults.deadline, "{generate:?}");
            assert!(generate.sampling.check().is_ok(), "{:?}", generate.sampling);
        }
        Err(refusal) => {
            assert!((400..500).contains(&refusal.status()), "{refusal:?}");
            // Quoted parts of a request are shortened.
            assert!(refusal.message.len() < 3 << 10, "{} bytes", refusal.message.len());
            let error = serde_json::to_string(&refusal.error()).expect("JSON");
            assert!(error.contains("message"), "{error}");
        }
    }
}
