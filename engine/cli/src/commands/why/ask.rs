//! Requests to the server under diagnosis: its metrics, and a short completion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use diagnosis::{SeenSpeed, speeds};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::remote::ServerAddress;

/// Time limit for requests that need no model.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum size of the metrics in bytes.
const LARGEST: usize = 1 << 20;
/// Maximum number of tokens to generate. If the time limit is reached first, the connection is closed.
const TOKENS: u32 = 512;
/// Minimum number of tokens from which a speed is computed.
const LEAST: u32 = 4;
/// Prompt that leads to a long answer.
const PROMPT: &str =
    "Count from one to one thousand in words: one, two, three, four, five, six, seven, eight,";

/// Measured speed, or the reason why it is unknown.
#[derive(Debug, Default)]
pub struct AskedSpeed {
    pub seen: Option<SeenSpeed>,
    pub why: String,
}

/// Thread that sends the requests while the process is observed.
pub struct Asker {
    thread: JoinHandle<AskedSpeed>,
    has_text: Arc<AtomicBool>,
}

impl Asker {
    /// Starts the requests to `address`. If `completes` is true, generates text for at most `seconds`.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be started.
    pub fn start(address: ServerAddress, completes: bool, seconds: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the asynchronous runtime")?;
        let has_text = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_text);
        let work = move || runtime.block_on(ask(&address, completes, seconds, &told));
        let thread = std::thread::Builder::new().name("ask".to_string()).spawn(work);
        Ok(Self { thread: thread.context("cannot start a thread")?, has_text })
    }

    /// True if the server has generated text, and all requests have ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished() && self.has_text.load(Ordering::Relaxed)
    }

    /// Waits for the end of the requests.
    pub fn finish(self) -> AskedSpeed {
        self.thread
            .join()
            .unwrap_or_else(|_| AskedSpeed { seen: None, why: "the request failed".to_string() })
    }
}

async fn ask(
    address: &ServerAddress,
    completes: bool,
    seconds: Duration,
    has_text: &AtomicBool,
) -> AskedSpeed {
    let begun = Instant::now();
    let before = metrics(address).await;
    let why = match completes {
        true => match complete(address, seconds).await {
            Ok(seen) => {
                has_text.store(true, Ordering::Relaxed);
                return AskedSpeed { seen: Some(seen), why: String::new() };
            }
            Err(why) => why,
        },
        false => "its metrics show no speed; measure it with --request".to_string(),
    };
    if before.is_none() {
        return AskedSpeed { seen: None, why };
    }
    tokio::time::sleep(seconds.saturating_sub(begun.elapsed())).await;
    let after = metrics(address).await;
    let seen = before.zip(after).and_then(|(before, after)| speeds(&before, &after));
    AskedSpeed { seen, why }
}

/// Returns the server's metrics, if it has any.
async fn metrics(address: &ServerAddress) -> Option<String> {
    let mut text = String::new();
    let asked = address.text_lines("/metrics", None, |line| {
        text.push_str(line);
        text.push('\n');
        text.len() < LARGEST
    });
    timeout(PATIENCE, asked).await.ok()?.ok()?;
    Some(text)
}

/// Measures the speed with a short completion, in OpenAI's format, which all servers based on llama.cpp accept.
async fn complete(address: &ServerAddress, seconds: Duration) -> Result<SeenSpeed, String> {
    let models = timeout(PATIENCE, address.get("/v1/models")).await;
    let model =
        models.ok().and_then(Result::ok).and_then(|all| Some(all["data"][0]["id"].as_str()?.to_string()));
    let mut body = json!({ "prompt": PROMPT, "max_tokens": TOKENS, "stream": true, "temperature": 0 });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let begun = Instant::now();
    let (mut first, mut last, mut tokens) = (None, begun, 0_u32);
    let asked = address.text_lines("/v1/completions", Some(&body), |line| {
        if has_text(line) {
            last = Instant::now();
            first.get_or_insert(last);
            tokens += 1;
        }
        begun.elapsed() < seconds
    });
    // The first token of a slow server may take a long time.
    let asked = timeout(seconds, asked).await;
    match (asked, first) {
        (Ok(Err(failure)), None) => {
            let text = failure.to_string();
            Err(format!("the request failed: {}", build_info::words::without_hint(&text)))
        }
        (_, Some(first)) if tokens >= LEAST && last > first => Ok(SeenSpeed {
            decode: Some(f64::from(tokens - 1) / (last - first).as_secs_f64()),
            prefill: None,
            is_current: true,
            is_shared: false,
            source: format!("a request that generated {tokens} tokens"),
        }),
        _ => Err(format!(
            "only {tokens} tokens were generated in {:.1} s; use --seconds 20",
            begun.elapsed().as_secs_f64()
        )),
    }
}

/// True if the line is an event with text.
fn has_text(line: &str) -> bool {
    let Some(data) = line.strip_prefix("data:") else { return false };
    let event: Option<Value> = serde_json::from_str(data.trim()).ok();
    event.is_some_and(|event| event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_with_text_are_tokens() {
        let cases = [
            ("data: {\"choices\":[{\"text\":\"one\"}]}", true),
            ("data:{\"choices\":[{\"text\":\" \"}]}", true),
            ("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}", false),
            ("data: {\"choices\":[]}", false),
            ("data: [DONE]", false),
            (": comment", false),
            ("", false),
        ];
        for (line, expected) in cases {
            assert_eq!(has_text(line), expected, "{line}");
        }
    }
}
