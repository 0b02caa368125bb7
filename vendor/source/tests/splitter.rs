//! Comparison of the matcher in patch 0009 with `std::regex`, which the matcher replaces. A separate program
//! (`splitter/main.cpp`) compares them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use llama_source::Origin;

/// Lines of `llama-vocab.cpp` before and after the expressions of all pre-tokenizers.
const BEGIN: &str = "        switch (vocab.get_pre_type()) {\n";
const END: &str = "        }\n    }\n\n    std::vector<std::string> regex_exprs;";

#[test]
fn the_matcher_splits_as_std_regex_does() -> Result<()> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let tree = llama_source::ensure(&Origin::Crate, &target.join("anneal"), &mut |_| {})?;
    let folder = tempfile::tempdir()?;
    let source = tree.path.join("src");
    let vocabulary = fs::read_to_string(source.join("llama-vocab.cpp"))?;
    let (_, rest) = vocabulary.split_once(BEGIN).context("llama-vocab.cpp has no list of expressions")?;
    let (expressions, _) = rest.split_once(END).context("the list of expressions has no end")?;
    fs::write(folder.path().join("pre_types.inc"), expressions)?;

    let program = folder.path().join("splitter");
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/splitter/main.cpp");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-w", "-I"])
        .arg(folder.path())
        .arg("-I")
        .arg(&source)
        .arg("-I")
        .arg(tree.path.join("include"))
        .arg("-I")
        .arg(tree.path.join("ggml/include"))
        .args([&main, &source.join("unicode-data.cpp")])
        .arg("-o")
        .arg(&program)
        .output()
        .with_context(|| format!("cannot run {compiler}"))?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    // Arguments: seed, number of texts, number of expressions.
    let output = Command::new(&program).args(["1", "300", "2000"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
