//! Diagram of the crates: a box for each crate, in rows by layer, and lines to its dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::Member;

/// Width of a box, in pixels.
const BOX: usize = 112;

/// Height of a box, in pixels.
const HEIGHT: usize = 26;

/// Space around each box, in pixels.
const SPACE: usize = 12;

/// Width of a line that crosses a row, in pixels.
const LINE: usize = 8;

/// Height of a row, in pixels.
const ROW: usize = 74;

const STYLE: &str = "text{font:13px sans-serif;text-anchor:middle;fill:#1f2328}\
                     rect{fill:#fff;stroke:#57606a}path{fill:none;stroke:#8c959f}";

/// Returns the dependencies of each crate, without indirect dependencies: a dependency is left out if another
/// dependency of the crate also depends on it.
fn reduced(members: &[Member]) -> BTreeMap<&str, Vec<&str>> {
    let direct: BTreeMap<&str, Vec<&str>> = members
        .iter()
        .map(|member| (member.name.as_str(), member.dependencies.iter().map(String::as_str).collect()))
        .collect();
    let below = |name: &str| -> BTreeSet<&str> {
        let mut waiting = direct[name].clone();
        let mut all = BTreeSet::new();
        while let Some(name) = waiting.pop() {
            if all.insert(name) {
                waiting.extend(&direct[name]);
            }
        }
        all
    };
    direct
        .iter()
        .map(|(name, all)| {
            let through: BTreeSet<&str> = all.iter().flat_map(|other| below(other)).collect();
            (*name, all.iter().copied().filter(|other| !through.contains(other)).collect())
        })
        .collect()
}

/// Box, or the point at which a line between two crates crosses a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node<'a> {
    Crate(&'a str),
    Passing(&'a str, &'a str),
}

impl Node<'_> {
    fn width(self) -> usize {
        match self {
            Node::Crate(_) => BOX + SPACE,
            Node::Passing(..) => LINE,
        }
    }
}

/// Node with the number of its row.
type Place<'a> = (usize, Node<'a>);

/// Draws `members` as SVG, with the highest of `layers` on top. Lines that cross a row run between its boxes.
///
/// # Panics
/// If a crate is missing in `layers`.
pub fn draw(members: &[Member], layers: &[&[&str]]) -> String {
    let mut rows: Vec<Vec<Node>> =
        layers.iter().rev().map(|layer| layer.iter().map(|name| Node::Crate(name)).collect()).collect();
    let edges = reduced(members);
    let row = |name: &str| rows.iter().position(|row| row.contains(&Node::Crate(name))).expect("a layer");
    let lines: Vec<Vec<Place>> = edges
        .iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (*from, *to)))
        .map(|(from, to)| {
            let (first, last) = (row(from), row(to));
            let between = (first + 1..last).map(|row| (row, Node::Passing(from, to)));
            [(first, Node::Crate(from))].into_iter().chain(between).chain([(last, Node::Crate(to))]).collect()
        })
        .collect();
    for (row, node) in lines.iter().flatten() {
        if let Node::Passing(..) = node {
            rows[*row].push(*node);
        }
    }
    let width = rows.iter().map(|row| row.iter().map(|node| node.width()).sum()).max().unwrap_or(0);
    let mut beside: BTreeMap<Place, Vec<Place>> = BTreeMap::new();
    for pair in lines.iter().flat_map(|line| line.windows(2)) {
        beside.entry(pair[0]).or_default().push(pair[1]);
        beside.entry(pair[1]).or_default().push(pair[0]);
    }
    // Each row is sorted by the mean position of the connected nodes, alternately in the row above and the row below.
    for turn in 0..24 {
        let mut numbers: Vec<usize> = (0..rows.len()).collect();
        if turn % 2 == 1 {
            numbers.reverse();
        }
        for number in numbers {
            let at = middles(&rows, width);
            rows[number].sort_by_key(|node| {
                let own = (number, *node);
                let others = beside.get(&own).into_iter().flatten();
                let others = others.filter(|(row, _)| (*row < number) == (turn % 2 == 0));
                let (sum, count) = others.fold((0, 0), |(sum, count), other| (sum + at[other], count + 1));
                sum.checked_div(count).unwrap_or(at[&own])
            });
        }
    }
    let at = middles(&rows, width);
    let height = rows.len() * ROW - (ROW - HEIGHT) + 2;
    let mut body = String::new();
    for line in &lines {
        let mut path = String::new();
        for pair in line.windows(2) {
            let (x, to_x) = (at[&pair[0]], at[&pair[1]]);
            let (y, to_y) = (pair[0].0 * ROW + 1 + HEIGHT, pair[1].0 * ROW + 1);
            let middle = (y + to_y) / 2;
            let start = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{start}{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}");
        }
        let _ = writeln!(body, "<path d=\"{path}\"/>");
    }
    for ((row, node), x) in &at {
        let Node::Crate(name) = node else { continue };
        let y = row * ROW + 1;
        let _ = writeln!(
            body,
            "<rect x=\"{}\" y=\"{y}\" width=\"{BOX}\" height=\"{HEIGHT}\" rx=\"4\"/><text x=\"{x}\" y=\"{}\">{name}</text>",
            x - BOX / 2,
            y + 17
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {width} {height}\" width=\"{width}\">\n\
         <title>Crates of the workspace, and the crates that each depends on</title>\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

/// Returns the horizontal centre of each node. The free width of a row is divided evenly among its nodes.
fn middles<'a>(rows: &[Vec<Node<'a>>], width: usize) -> BTreeMap<Place<'a>, usize> {
    let mut all = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        let taken: usize = row.iter().map(|node| node.width()).sum();
        let spare = width.saturating_sub(taken) / row.len().max(1);
        let mut left = 0;
        for node in row {
            let own = node.width() + spare;
            all.insert((number, *node), left + own / 2);
            left += own;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_dependency_has_too_is_not_drawn() {
        let member = |name: &str, dependencies: &[&str]| Member {
            name: name.to_string(),
            folder: name.into(),
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
        };
        let members = [member("top", &["middle", "base"]), member("middle", &["base"]), member("base", &[])];
        assert_eq!(reduced(&members)["top"], ["middle"]);
        let picture = draw(&members, &[&["base"], &["middle"], &["top"]]);
        assert_eq!(picture.matches("<rect").count(), 3);
        assert_eq!(picture.matches("<path").count(), 2);
    }
}
