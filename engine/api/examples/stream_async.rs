//! Two simultaneous answers in one thread of an async runtime. Any runtime works.
//!
//! ```console
//! $ cargo run -p engine --example stream_async -- MODEL.gguf [TOKENS]
//! ```

use std::time::Duration;

use engine::{Model, Options, Sampler, SamplingOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: stream_async MODEL.gguf [TOKENS]")?;
    let most = arguments.next().map_or(Ok(32), |number| number.parse())?;

    // Each session has its own threads. With one thread each, the sessions do not wait for each other.
    let options = Options { n_ctx: Some(512), decode_threads: Some(1), ..Options::default() };
    let model = Model::load(path, &options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let (first, second) =
            tokio::join!(answer(&model, "Once upon a time", most), answer(&model, "In the end", most));
        println!("1: {:?}\n2: {:?}", first?, second?);

        // Dropping the stream stops it within one token.
        let mut session = model.session()?;
        session.push("And so on")?;
        let mut stream = session.stream(Sampler::greedy(&model)?, usize::MAX);
        let _ = tokio::time::timeout(Duration::from_millis(50), async {
            while let Some(Ok(_)) = stream.next().await {}
        })
        .await;
        let finished = stream.finish().await?;
        println!("stopped after {} tokens", finished.session.tokens().len());
        Ok(())
    })
}

async fn answer(model: &Model, prompt: &str, most: usize) -> engine::Result<String> {
    let mut session = model.session()?;
    session.push(prompt)?;
    let sampling = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
    let mut stream = session.stream(Sampler::new(model, &sampling)?, most);
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        text.push_str(&piece?.text);
    }
    Ok(text)
}
