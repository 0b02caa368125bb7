//! Conversation: each line of standard input is a turn, and only the new part is evaluated.
//!
//! ```console
//! $ cargo run -p engine --example chat -- MODEL.gguf [TEMPLATE] [TOKENS]
//! ```

use std::io::{BufRead, Write};

use engine::{Message, Model, Options, Sampler, SamplingOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: chat MODEL.gguf [TEMPLATE] [TOKENS]")?;
    let choice = arguments.next();
    let most = arguments.next().map_or(Ok(256), |number| number.parse())?;

    let model = Model::load(path, &Options::default())?;
    let template = model.chat_template(choice.as_deref())?;
    let mut session = model.session()?;
    let mut messages = vec![Message::new("system", "Answer in one sentence.")];
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        messages.push(Message::new("user", line?));
        // The common prefix of the old and the new text is not evaluated again.
        session.set(template.tokens(&messages)?)?;
        let sampling = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
        let mut sampler = Sampler::new(&model, &sampling)?;
        let mut answer = String::new();
        for piece in session.generate(&mut sampler, most) {
            let piece = piece?;
            write!(stdout, "{}", piece.text)?;
            stdout.flush()?;
            answer.push_str(&piece.text);
        }
        writeln!(stdout)?;
        messages.push(Message::new("assistant", answer));
    }
    Ok(())
}
