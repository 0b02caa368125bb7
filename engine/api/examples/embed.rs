//! Sorts texts by their similarity to a question.
//!
//! ```console
//! $ cargo run -p engine --example embed -- MODEL.gguf "a small pet" "a cat" "a ship" "the weather"
//! ```

use engine::{Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: embed MODEL.gguf QUESTION TEXT...")?;
    let mut texts: Vec<String> = arguments.collect();
    if texts.is_empty() {
        texts = ["a small pet", "a cat", "a ship", "the weather"].map(String::from).to_vec();
    }

    let model = Model::load(path, &Options::default())?;
    let mut embedder = model.embedder()?;
    let found = embedder.embed(&texts)?;
    // All embeddings have length 1, so the dot product is the cosine similarity.
    let nearness = |other: &[f32]| found[0].iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    let mut order: Vec<(f32, &String)> =
        found.iter().map(|other| nearness(other)).zip(&texts).skip(1).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{} ({} numbers each)", texts[0], embedder.width());
    for (nearness, text) in order {
        println!("{nearness:6.3}  {text}");
    }
    Ok(())
}
