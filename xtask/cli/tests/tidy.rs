//! Tests for defects in the repository that readers would notice.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[path = "common/pages.rs"]
mod pages;

use pages::{pages, readme_and_book, root};

/// Returns the targets of `[text](target)` that are files.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()).filter(|target| {
        !target.is_empty() && !target.contains("://") && !target.contains(char::is_whitespace)
    })
}

#[test]
fn links_in_readme_and_docs_lead_somewhere() {
    let all = readme_and_book();
    assert!(all.len() > 10);
    let mut seen = 0;
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in links(&text) {
            seen += 1;
            let path = page.parent().unwrap().join(target);
            assert!(path.exists(), "{}: {target} does not exist", page.display());
        }
    }
    assert!(seen > 20, "only {seen} links were found");
}

/// Returns the lines of `text` outside fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Returns the number of columns in a row of a table; 0 for any other line. A `|` inside code counts only if it is
/// not escaped.
fn columns(line: &str) -> usize {
    let line = line.trim();
    match line.starts_with('|') && line.ends_with('|') && line.len() > 1 {
        true => line.replace("\\|", "").matches('|').count() - 1,
        false => 0,
    }
}

#[test]
fn no_table_is_wider_than_six_columns() {
    let all = readme_and_book();
    let mut rows = 0;
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in prose(&text).filter(|line| columns(line) > 0) {
            rows += 1;
            assert!(columns(line) <= 6, "{}: more than six columns: {line}", page.display());
        }
    }
    assert!(rows > 200, "only {rows} rows of tables were found");
}

#[test]
fn readme_is_short() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 160, "README has {} lines of at most 160", text.lines().count());
    let tables = prose(&text).collect::<Vec<_>>().split(|line| columns(line) == 0).map(<[_]>::len).max();
    assert!(tables <= Some(8), "a table of README has more than six rows: {tables:?} lines with its heading");
}

#[test]
fn the_book_has_four_doors_with_ten_entries_at_most() {
    let summary = std::fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let doors: Vec<&str> = summary.split("\n# ").skip(1).collect();
    let names: Vec<&str> = doors.iter().filter_map(|door| door.lines().next()).collect();
    assert_eq!(names, ["Run models", "Tune and measure", "Build and ship", "Develop"]);
    for door in doors {
        let entries = door.lines().filter(|line| line.starts_with("- [")).count();
        assert!((1..=10).contains(&entries), "{entries} entries behind {door}");
    }
}

/// Readers copy the systemd unit from the page, so both copies must be equal.
/// Returns the text of an SVG picture's `<text>` elements.
fn words_of_picture(svg: &str) -> impl Iterator<Item = String> {
    let texts = svg.split("<text").skip(1).filter_map(|rest| rest.split_once('>')?.1.split("</text").next());
    texts.map(|text| {
        text.replace("&#160;", " ")
            .replace("&#x27;", "'")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .trim()
            .to_owned()
    })
}

#[test]
fn pictures_of_help_texts_are_current() {
    for (picture, page) in [("anneal-help", "run/anneal.md"), ("xtask-help", "build/commands.md")] {
        let page = std::fs::read_to_string(root().join("docs/src").join(page)).unwrap();
        let svg = root().join(format!("docs/src/images/{picture}.svg"));
        let shown: Vec<_> = words_of_picture(&std::fs::read_to_string(svg).unwrap()).collect();
        let commands = page.split("```").nth(1).unwrap().lines().filter(|line| {
            line.starts_with("  ") && line.trim_start().starts_with(|first: char| first.is_ascii_lowercase())
        });
        let mut seen = 0;
        for line in commands {
            seen += 1;
            let (name, about) = line.trim().split_once("  ").unwrap();
            for word in [name, about.trim()] {
                assert!(shown.iter().any(|text| text == word), "{picture}.svg does not show {word:?}");
            }
        }
        assert!(seen > 10, "{picture}: {seen} commands");
    }
}

#[test]
fn the_systemd_unit_is_that_of_its_page() {
    let page = std::fs::read_to_string(root().join("docs/src/run/systemd.md")).unwrap();
    let unit = std::fs::read_to_string(root().join("deploy/systemd/anneal.service")).unwrap();
    let lines = |text: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(String::from).collect::<Vec<_>>()
    };
    let mut shown = page.split("```ini\n").skip(1).filter_map(|rest| rest.split("```").next());
    assert!(shown.any(|block| lines(block) == lines(&unit)), "docs/src/run/systemd.md shows another unit");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let book = root().join("docs/src");
    let summary = std::fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> = links(&summary).map(|target| book.join(target)).collect();
    for page in pages("docs/src") {
        assert!(
            page.ends_with("SUMMARY.md") || listed.contains(&page),
            "{} is not in any chapter",
            page.display()
        );
    }
}

#[test]
fn every_profile_is_explained_in_the_reference() {
    let reference = std::fs::read_to_string(root().join("docs/src/build/profiles.md")).unwrap();
    for entry in std::fs::read_dir(root().join("profiles/build")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // `base` only serves as a parent.
        if name == "base" {
            continue;
        }
        assert!(reference.contains(&format!("| `{name}` |")), "{name} is not in docs/src/build/profiles.md");
    }
}

/// Administrators follow this page when they clean up a store, so it must be correct.
#[test]
fn the_layout_of_a_store_is_as_the_page_says() {
    let paths = |file: &str| {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let lines = text.lines().map(|line| line.trim_start_matches("//! "));
        let first = lines.filter(|line| line.starts_with("v1/")).filter_map(|line| line.split("  ").next());
        first.map(String::from).collect::<Vec<_>>()
    };
    let page = paths("docs/src/build/store.md");
    assert!(page.len() > 4, "{page:?}");
    assert_eq!(page, paths("crates/store/src/layout.rs"));
}

#[test]
fn versions_of_actions_are_commits() {
    for entry in std::fs::read_dir(root().join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in
            text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "))
        {
            let name = line.split_whitespace().next().unwrap_or("");
            let version = name.split('@').nth(1).unwrap_or("");
            let is_commit = version.len() == 40 && version.bytes().all(|byte| byte.is_ascii_hexdigit());
            // For a workflow of this repository, GitHub uses the version in the commit that runs.
            let pinned = is_commit || name.starts_with("./") && root().join(name).is_file();
            assert!(pinned, "{}: {line} is not pinned by commit", path.display());
        }
    }
}

/// Checks that every row of the page contains the name of a test, and that the test exists.
#[test]
fn tests_of_the_security_page_exist() {
    let page = std::fs::read_to_string(root().join("docs/src/run/security.md")).unwrap();
    let mut seen = 0;
    for row in page.lines().skip_while(|line| !line.starts_with("| kind |")).skip(2) {
        let Some(cell) =
            row.trim_end().trim_end_matches('|').rsplit('|').next().filter(|_| row.starts_with('|'))
        else {
            break;
        };
        let mut source = None;
        for name in cell.split('`').skip(1).step_by(2) {
            if name.ends_with(".rs") {
                source = Some(
                    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}")),
                );
                continue;
            }
            let source = source.as_ref().unwrap_or_else(|| panic!("no file before {name}"));
            assert!(source.contains(&format!("fn {name}(")), "the test {name} is not in its file: {cell}");
            seen += 1;
        }
        assert!(source.is_some(), "no test: {row}");
    }
    assert!(seen > 15, "only {seen} tests are named");
}

/// Contributors start from the diffs on these pages, so the diffs must apply.
#[test]
fn worked_diffs_apply() {
    let found = pages("docs/src/develop");
    let mut diffs = 0;
    for page in found {
        let text = std::fs::read_to_string(&page).unwrap();
        for diff in text.split("```diff\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let mut git = Command::new("git")
                .args(["apply", "--check", "-"])
                .current_dir(root())
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            git.stdin.take().unwrap().write_all(diff.as_bytes()).unwrap();
            let output = git.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "the diff in {} does not apply; apply it manually, and replace it with the output of `git diff`: {why}",
                page.display()
            );
            diffs += 1;
        }
    }
    assert!(diffs >= 3, "{diffs}");
}
