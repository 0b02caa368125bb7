//! Example and table of variants in docs/src/tune/recommend.md.

use super::{host, presets, profiles, root, shape};
use crate::recommend::{Question, recommend, variant};

/// Writes the example and the table of variants in docs/src/tune/recommend.md, and checks that they are up to date.
#[test]
fn the_example_and_the_table_of_variants_in_docs_are_those_of_the_program() {
    let path = root().join("docs/src/tune/recommend.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    let there = build::profile::names(&root().join("profiles/build")).unwrap();
    let mut table = String::from("| profile | for | runs on | why | |\n| --- | --- | --- | --- | --- |\n");
    for status in variant::statuses(&there) {
        let variant = status.variant;
        let there = if status.there { "" } else { "planned" };
        let row = [&format!("`{}`", variant.profile), variant.models, variant.runs_on, variant.why, there];
        table.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    let example = recommend(&Question {
        model: &shape("llama-3.1-8b", "Q4_K_M"),
        path: "MODEL.gguf",
        host: &host("i3-6100"),
        roofline: None,
        presets: &presets(),
        profiles: &profiles(),
        n_ctx: None,
    });
    let example = format!("```text\n{example}\n```\n");
    for (name, content) in [("example", example), ("variants", table)] {
        page = generated::with_part(&page, name, &format!("\n{content}\n"));
    }
    generated::check(&path, &page);
}
