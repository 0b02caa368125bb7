//! Names with a sentence or two each, which fit the terminal.

/// Columns of a page where the terminal does not tell.
const PAGE: usize = 80;

/// Names longer than this stand on a line of their own.
const LONGEST: usize = 26;

/// Columns to write for: those of the terminal, and 80 where standard output is none.
pub fn page_width() -> usize {
    super::width().map_or(PAGE, |width| width.clamp(40, 120))
}

/// `rows` of a name and a reason below `header`; reasons are broken between words, so that no line is longer than `width`
/// but for a single word (a path, which somebody will want to copy).
pub fn reasons(header: [&str; 2], rows: impl IntoIterator<Item = (String, String)>, width: usize) -> String {
    let rows: Vec<(String, String)> = rows.into_iter().collect();
    let count = |text: &str| text.chars().count();
    let names = rows.iter().map(|(name, _)| count(name)).filter(|length| *length <= LONGEST);
    let indent = names.chain([count(header[0])]).max().unwrap_or(0) + 3;
    let pad = |text: &str| format!(" {text}{}", " ".repeat(indent.saturating_sub(count(text) + 1)));
    let mut out = format!("{}{}\n", pad(header[0]), header[1]);
    for (name, why) in &rows {
        let lines = wrapped(why, width.saturating_sub(indent).max(20));
        let mut lines = lines.iter();
        let first = match count(name) + 1 < indent {
            true => lines.next().map_or("", String::as_str),
            false => "",
        };
        out.push_str(format!("{}{first}", pad(name)).trim_end());
        out.push('\n');
        for line in lines {
            out.push_str(&format!("{}{line}\n", " ".repeat(indent)));
        }
    }
    out
}

/// `text` in lines of at most `width`, broken between words; its own lines stay.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_the_page_and_no_name_is_broken() {
        let long = "native+threading:openmp+huge_pages:true";
        let path = "/a/path/that/is/longer/than/what/is/left/of/the/line/and/that/somebody/will/want/to/copy/one/day";
        let rows = [
            (
                "native-lto",
                "takes about 4 min to build, and 2 min are left of the budget that was given for all of it",
            ),
            (long, "did not come to the second heat: slower than native by 4 % after 10 rounds of the first"),
            ("bolt", "line one\nline two"),
            ("short", path),
        ];
        let text = reasons(["not ranked", "why"], rows.map(|(a, b)| (a.to_string(), b.to_string())), 80);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.iter().filter(|line| !line.contains(path)).all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.trim_end() == *line), "{text}");
        assert_eq!(lines[0], " not ranked  why");
        assert!(lines[1].starts_with(" native-lto  takes about 4 min"), "{text}");
        // The name by itself, its reason below where the others' are.
        let at = lines.iter().position(|line| line.trim() == long).unwrap();
        assert!(lines[at + 1].starts_with("             did not come"), "{text}");
        let at = lines.iter().position(|line| line.starts_with(" bolt")).unwrap();
        assert_eq!(lines[at..at + 2], [" bolt        line one", "             line two"]);
        assert!(text.contains(path), "{text}");
    }
}
