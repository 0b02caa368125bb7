//! Removal of the server's folders from errors that clients see. The log contains the full paths.

use std::path::Path;

/// Returns `text` with each of `paths` shortened to its file name.
pub fn hide_folders<'a>(text: &str, paths: impl IntoIterator<Item = &'a Path>) -> String {
    let mut folders: Vec<String> = paths
        .into_iter()
        .filter_map(Path::parent)
        .filter(|folder| folder.parent().is_some())
        .map(|folder| format!("{}/", folder.display()))
        .collect();
    // If one folder contains another, the inner folder must be removed first.
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    folders.iter().fold(text.to_string(), |text, folder| hide_folder(&text, folder))
}

/// Removes `folder` from each path in `text` that begins with it.
fn hide_folder(text: &str, folder: &str) -> String {
    let is_inside_path = |last: char| last.is_alphanumeric() || "/._-".contains(last);
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.match_indices(folder).filter(|(at, _)| !text[..*at].ends_with(is_inside_path)) {
        out.push_str(&text[done..at]);
        done = at + folder.len();
    }
    out + &text[done..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_at_the_beginning_of_a_path() {
        for (text, folder, expected) in [
            ("cannot read /srv/m/a.gguf: gone", "/srv/m/", "cannot read a.gguf: gone"),
            ("\"/a/x\" and /a/y", "/a/", "\"x\" and y"),
            ("/srv/a/x", "/a/", "/srv/a/x"),
            ("models/models/x", "models/", "models/x"),
            ("/m/a and /m/", "/m/", "a and "),
            ("", "/m/", ""),
        ] {
            assert_eq!(hide_folder(text, folder), expected, "{text} without {folder}");
        }
    }

    #[test]
    fn a_folder_inside_another_is_removed_whole() {
        let paths = ["/srv/a.gguf", "/srv/m/b.gguf"].map(Path::new);
        assert_eq!(hide_folders("/srv/m/b.gguf beside /srv/a.gguf", paths), "b.gguf beside a.gguf");
    }
}
