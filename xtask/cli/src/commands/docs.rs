//! Command `docs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use build::process::{self, Log, Run};
use build::scratch::Scratch;
use build::setup::ensure;
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;
use toolchain::setup::{Needs, Requirement};

/// Version of mdBook.
const MDBOOK: &str = "0.5.4";

/// Pip requirement of lychee, with the hashes of its wheels.
const LYCHEE: &str = "xtask/python/lychee.txt";

/// Options of `docs`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for the book; its previous contents are deleted [default: target/anneal/book]
    #[arg(short, long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Also check links to other sites, not only links inside the book
    #[arg(long)]
    online: bool,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
}

impl Args {
    /// Returns the options for continuous integration.
    pub fn unattended() -> Self {
        Self { out: None, online: false, yes: true }
    }
}

/// Builds the book from docs/src with mdBook and checks its links with lychee.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let needs = Needs { required: vec![Requirement::Pip], recommended: Vec::new() };
    ensure(&workspace, &needs, args.yes, ui)?;
    let log = Log::new(workspace.anneal().join("docs.log"), ui.verbose());
    let tools = workspace.anneal().join("tools");
    std::fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
    let mdbook = mdbook(&tools, &log, ui)?;
    let lychee = lychee(&workspace, &log, ui)?;

    let out = args.out.unwrap_or_else(|| workspace.anneal().join("book"));
    if out.exists() && !out.join("print.html").exists() && std::fs::read_dir(&out)?.next().is_some() {
        bail!(
            "cannot replace {}: it is not a book\nhint: specify an empty or new folder with --out",
            out.display()
        );
    }
    let scratch = Scratch::make(&workspace, "book")?;
    gather(workspace.root(), scratch.path())?;
    let book = scratch.path().join("book");
    let progress = ui.progress("book");
    Run::new(mdbook, &log).args(["build"]).dir(scratch.path()).watch(|_, _| {}).context("mdBook failed")?;
    progress.finish();

    let progress = ui.progress("links");
    let mut check = vec!["--no-progress", "--include-fragments", "--root-dir"];
    if !args.online {
        check.insert(0, "--offline");
    }
    Run::new(lychee, &log)
        .args(check)
        .args([&book])
        // print.html contains all pages, so it repeats their links, whose anchors are in other files.
        .args(["--exclude-path", "print\\.html", "--exclude-path", "404\\.html"])
        .args([&book])
        .watch(|_, _| {})
        // In errors, show pages by their path in docs/src.
        .map_err(|error| anyhow!(format!("{error:#}").replace(&format!("{}/", book.display()), "")))
        .context("the book has broken links")?;
    progress.finish();

    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(base::folder_of(&out))?;
    std::fs::rename(&book, &out)
        .or_else(|_| copy_folder(&book, &out))
        .with_context(|| format!("cannot write {}", out.display()))?;
    let index = out.join("index.html");
    ui.result(&serde_json::json!({ "index": index }), index.display())
}

/// Returns the path of the required version of mdBook, after compiling it if it is missing.
fn mdbook(tools: &Path, log: &Log, ui: &Ui) -> Result<PathBuf> {
    let folder = tools.join(format!("mdbook-{MDBOOK}"));
    let program = folder.join("bin/mdbook");
    if !program.is_file() {
        let progress = ui.progress("mdBook");
        Run::new(process::cargo(), log)
            // An unoptimised mdBook renders a hundred pages in seconds, but compiling an optimised mdBook takes
            // minutes.
            .args(["install", "mdbook", "--version", MDBOOK, "--locked", "--debug"])
            .args(["--no-default-features", "--features", "search", "--root"])
            .args([&folder])
            .watch(|_, line| progress.message(line.trim()))
            .context("cannot install mdBook from crates.io")?;
        progress.finish();
    }
    Ok(program)
}

/// Returns the program lychee, installed from the Python package index if it is missing.
fn lychee(workspace: &Workspace, log: &Log, ui: &Ui) -> Result<PathBuf> {
    let progress = ui.progress("lychee");
    let folder = tools::pip_tool(workspace, "lychee", LYCHEE, log)
        .context("cannot install lychee, which checks the links in the book")?;
    progress.finish();
    Ok(folder.join("bin/lychee"))
}

/// Copies docs into `to`. Other files of the repository that a page links to are copied into `src/files`, because
/// links that leave the book would be broken.
fn gather(root: &Path, to: &Path) -> Result<()> {
    copy_folder(&root.join("docs/src"), &to.join("src"))?;
    std::fs::copy(root.join("docs/book.toml"), to.join("book.toml"))?;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(to.join("src").join(&folder))? {
            let name = folder.join(entry?.file_name());
            let path = to.join("src").join(&name);
            if path.is_dir() {
                folders.push(name);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path)?;
                std::fs::write(&path, inside(&text, &name, root, to)?)?;
            }
        }
    }
    Ok(())
}

/// Returns the `text` of the page `name` with links to files outside docs/src replaced by links to their copies.
fn inside(text: &str, name: &Path, root: &Path, to: &Path) -> Result<String> {
    let mut out = String::new();
    let mut parts = text.split("](");
    out.push_str(parts.next().unwrap_or_default());
    let depth = name.components().count() - 1;
    for part in parts {
        out.push_str("](");
        let target = part.split([')', '#']).next().unwrap_or_default();
        let elsewhere = outside(name, target).filter(|path| root.join(path).is_file());
        match elsewhere {
            Some(mut path) => {
                let from = root.join(&path);
                // mdBook turns links to Markdown files into links to pages, but these copies are not pages of the
                // book.
                if path.extension().is_some_and(|extension| extension == "md") {
                    path.set_extension("txt");
                }
                let copy = to.join("src/files").join(&path);
                std::fs::create_dir_all(base::folder_of(&copy))?;
                std::fs::copy(from, &copy)?;
                out.push_str(&format!("{}files/{}", "../".repeat(depth), path.display()));
                out.push_str(&part[target.len()..]);
            }
            None => out.push_str(part),
        }
    }
    Ok(out)
}

/// Returns the path in the repository of the link `target` in the page `name` of docs/src, or `None` if the link
/// stays in docs/src.
fn outside(name: &Path, target: &str) -> Option<PathBuf> {
    if target.contains("://") {
        return None;
    }
    let mut path = PathBuf::new();
    for part in Path::new("docs/src").join(name).parent()?.join(target).components() {
        match part {
            std::path::Component::ParentDir => path.pop().then_some(())?,
            other => path.push(other),
        }
    }
    (!path.starts_with("docs/src")).then_some(path)
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let destination = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &destination)?;
        } else {
            std::fs::copy(entry.path(), destination)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_book_are_found() {
        for (page, target, expected) in [
            ("run/serving.md", "../../examples/client.py", Some("docs/examples/client.py")),
            ("introduction.md", "../../README.md", Some("README.md")),
            ("run/serving.md", "../tune/tuning.md", None),
            ("run/serving.md", "https://a.example/../../..", None),
            ("run/serving.md", "../../../../../etc/passwd", None),
        ] {
            assert_eq!(outside(Path::new(page), target), expected.map(PathBuf::from), "{page} {target}");
        }
    }

    #[test]
    fn linked_files_come_along() {
        let folder = tempfile::tempdir().unwrap();
        let (root, to) = (folder.path().join("root"), folder.path().join("to"));
        std::fs::create_dir_all(root.join("docs/src/run")).unwrap();
        std::fs::write(root.join("docs/book.toml"), "").unwrap();
        std::fs::write(root.join("LICENSE"), "MIT").unwrap();
        std::fs::write(root.join("README.md"), "").unwrap();
        let text = "[l](../../../LICENSE) [r](../../../README.md) [b](b.md#x)";
        std::fs::write(root.join("docs/src/run/a.md"), text).unwrap();
        gather(&root, &to).unwrap();
        let page = std::fs::read_to_string(to.join("src/run/a.md")).unwrap();
        assert_eq!(page, "[l](../files/LICENSE) [r](../files/README.txt) [b](b.md#x)");
        assert_eq!(std::fs::read_to_string(to.join("src/files/LICENSE")).unwrap(), "MIT");
    }
}
