//! Prints text as it is generated.
//!
//! ```console
//! $ cargo run -p engine --example generate -- MODEL.gguf "Once upon a time" [TOKENS]
//! ```

use std::io::Write;

use engine::{Model, Options, Sampler, SamplingOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: generate MODEL.gguf [PROMPT] [TOKENS]")?;
    let prompt = arguments.next().unwrap_or("Once upon a time".to_string());
    let most = arguments.next().map_or(Ok(64), |number| number.parse())?;

    // The other options depend on the machine.
    let options = Options { n_ctx: Some(2048), ..Options::default() };
    let estimate = Model::estimate(&path, &options)?;
    if !estimate.fits() {
        let room = estimate.largest_context().unwrap_or(0);
        return Err(
            format!("the model needs {}; a context of {room} tokens would fit", estimate.needed()).into()
        );
    }
    let model = Model::load(&path, &options)?;
    let mut session = model.session()?;
    session.push(&prompt)?;

    let sampling = SamplingOptions { temperature: 0.7, seed: Some(1), ..SamplingOptions::default() };
    let mut sampler = Sampler::new(&model, &sampling)?;
    let mut stdout = std::io::stdout().lock();
    let mut tokens = session.generate(&mut sampler, most);
    for piece in &mut tokens {
        write!(stdout, "{}", piece?.text)?;
        stdout.flush()?;
    }
    writeln!(stdout, "\n[{:?}]", tokens.stop())?;
    Ok(())
}
