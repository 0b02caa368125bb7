//! Lists of names with one or two sentences each, wrapped to the terminal's width.

/// Number of columns to use if the terminal's width is unknown.
const PAGE: usize = 80;

/// Maximum length of a name that shares a line with its reason.
const LONGEST: usize = 26;

/// Returns the number of columns to use: the terminal's, or 80 if standard output is not a terminal.
pub fn page_width() -> usize {
    super::width().map_or(PAGE, |width| width.clamp(40, 120))
}

/// Formats `rows` of a name and a reason below `header`. Reasons are broken between words. A line is longer than
/// `width` only if it contains a single word, such as a path, which must stay in one piece for copying.
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

/// Breaks `text` between words into lines of at most `width` columns, keeping existing line breaks.
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
        // A long name is on a separate line, with its reason below in the usual column.
        let at = lines.iter().position(|line| line.trim() == long).unwrap();
        assert!(lines[at + 1].starts_with("             did not come"), "{text}");
        let at = lines.iter().position(|line| line.starts_with(" bolt")).unwrap();
        assert_eq!(lines[at..at + 2], [" bolt        line one", "             line two"]);
        assert!(text.contains(path), "{text}");
    }
}
