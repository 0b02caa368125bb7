//! Circular imports in a graph of files: strongly connected components, and the shortest cycle in each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use crate::modules::Imports;

/// Import of one file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Importing file.
    pub from: String,
    /// Imported file.
    pub to: String,
    /// Path in the importing file that refers to the imported file.
    pub path: String,
}

/// Files that import each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// All files of the strongly connected component, in sorted order.
    pub files: Vec<String>,
    /// Shortest cycle of more than two files. If all cycles have two files, a cycle of two files.
    pub shortest: Vec<Edge>,
}

impl Circle {
    /// Returns the message of a failed test about a circle in the crate `name`, whose source files are in `source`.
    pub fn message(&self, name: &str, source: &Path) -> String {
        let ways: Vec<String> = self
            .shortest
            .iter()
            .map(|edge| format!("{} -> {} (by the path {})", edge.from, edge.to, edge.path))
            .collect();
        format!(
            "{name}, in {}: {}. At most two files of a crate may import each other, but {} do: {}. Move the shared items into \
             a file that imports none of these files, or import each item from the file that defines it",
            source.display(),
            ways.join(", "),
            self.files.len(),
            self.files.join(", ")
        )
    }
}

/// Finds the circles of more than `most` files in `imports`.
pub fn circles(imports: &Imports, most: usize) -> Vec<Circle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (file.as_str(), reachable(imports, file))).collect();
    let mut left: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
    let mut found = Vec::new();
    while let Some(file) = left.pop_first() {
        let mutual = |other: &&&str| reach[file].contains(**other) && reach[**other].contains(file);
        let mut files: Vec<&str> = left.iter().filter(mutual).copied().collect();
        left.retain(|other| !files.contains(other));
        files.push(file);
        files.sort_unstable();
        if files.len() > most {
            let shortest = shortest(imports, &files);
            found.push(Circle { files: files.into_iter().map(str::to_string).collect(), shortest });
        }
    }
    found
}

fn reachable<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<&str> = imports[from].keys().map(String::as_str).collect();
    while let Some(file) = waiting.pop() {
        if seen.insert(file) {
            waiting.extend(imports.get(file).into_iter().flat_map(|next| next.keys().map(String::as_str)));
        }
    }
    seen
}

/// Returns the shortest cycle within `files`, preferably of more than two files.
fn shortest(imports: &Imports, files: &[&str]) -> Vec<Edge> {
    let mut best: Option<Vec<String>> = None;
    for from in files {
        for to in imports[*from].keys().filter(|to| files.contains(&to.as_str())) {
            // Prefer a path back that does not use the direct import between the two files.
            let Some(back) = way(imports, files, to, from) else { continue };
            let rank = |way: &Vec<String>| (way.len() < 3, way.len());
            let way = back;
            if best.as_ref().is_none_or(|best| rank(&way) < rank(best)) {
                best = Some(way);
            }
        }
    }
    let way = best.unwrap_or_default();
    let next = way.iter().cycle().skip(1);
    let edge = |(from, to): (&String, &String)| Edge {
        from: from.clone(),
        to: to.clone(),
        path: imports[from].get(to).cloned().unwrap_or_default(),
    };
    way.iter().zip(next).map(edge).collect()
}

/// Returns the files on a path from `to` to `from`, where `from` imports `to`. The direct path is used only if it is
/// the only path.
fn way(imports: &Imports, files: &[&str], to: &str, from: &str) -> Option<Vec<String>> {
    let search = |direct: bool| {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = VecDeque::from([to]);
        while let Some(file) = waiting.pop_front() {
            for next in imports[file].keys().map(String::as_str).filter(|next| files.contains(next)) {
                let is_shortcut = file == to && next == from && !direct;
                if next == to || is_shortcut || before.contains_key(next) {
                    continue;
                }
                before.insert(next, file);
                waiting.push_back(next);
            }
        }
        before.contains_key(from).then(|| {
            let mut way = vec![from.to_string()];
            let mut at = from;
            while at != to {
                at = before[at];
                way.push(at.to_string());
            }
            way.reverse();
            way
        })
    };
    search(false).or_else(|| search(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(edges: &[(&str, &str)]) -> Imports {
        let mut all = Imports::new();
        for (from, to) in edges {
            all.entry(from.to_string()).or_default().insert(to.to_string(), format!("crate::{to}"));
            all.entry(to.to_string()).or_default();
        }
        all
    }

    #[test]
    fn three_files_that_import_each_other_are_named_with_their_paths() {
        let found = circles(&imports(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]), 2);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].files, ["a", "b", "c"]);
        let words = found[0].message("gguf", Path::new("crates/gguf/src"));
        for part in ["gguf, in crates/gguf/src: ", "c -> a (by the path crate::a)", "but 3 do: a, b, c. Move"]
        {
            assert!(words.contains(part), "{words}");
        }
    }

    #[test]
    fn two_files_may_and_lines_are_none() {
        assert!(circles(&imports(&[("a", "b"), ("b", "a"), ("b", "c")]), 2).is_empty());
        assert_eq!(circles(&imports(&[("a", "b"), ("b", "a")]), 1).len(), 1);
        assert!(circles(&imports(&[("a", "b"), ("b", "c"), ("a", "c")]), 1).is_empty());
    }

    #[test]
    fn a_parent_with_two_children_that_need_it_is_a_circle_of_three() {
        let found = circles(&imports(&[("p", "a"), ("a", "p"), ("p", "b"), ("b", "p")]), 2);
        assert_eq!((found.len(), found[0].files.len(), found[0].shortest.len()), (1, 3, 2));
    }
}
