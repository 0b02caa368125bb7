//! Requests text from `anneal serve` over its Unix socket and prints it as it arrives.
//!
//! ```console
//! $ cargo run -p engine --example client -- "Once upon a time" [SOCKET]
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let prompt = arguments.next().unwrap_or("Once upon a time".to_string());
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_default());
    let path = arguments.next().map_or(runtime.join("anneal").join("anneal.sock"), PathBuf::from);

    let mut connection = UnixStream::connect(path)?;
    writeln!(connection, "{}", json!({ "prompt": prompt, "stream": true, "max_tokens": 64 }))?;
    let mut stdout = std::io::stdout().lock();
    for line in BufReader::new(connection).lines() {
        let answer: Value = serde_json::from_str(&line?)?;
        if let Some(message) = answer["error"]["message"].as_str() {
            anyhow::bail!("{message}");
        }
        write!(stdout, "{}", answer["text"].as_str().unwrap_or_default())?;
        stdout.flush()?;
        if answer["done"] == true {
            writeln!(stdout, "\n{}", answer["timings"])?;
            break;
        }
    }
    Ok(())
}
