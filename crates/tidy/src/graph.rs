//! A picture of the crates: a box for each, in rows by layers, and lines to the crates that it depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::Member;

/// In pixels: width of a box, with the space beside it, height of a box, with the space below it.
const BOX: usize = 112;
const COLUMN: usize = 122;
const HEIGHT: usize = 26;
const ROW: usize = 74;

const STYLE: &str = "text{font:13px sans-serif;text-anchor:middle;fill:#1f2328}\
                     rect{fill:#fff;stroke:#57606a}path{fill:none;stroke:#8c959f}";

/// Dependencies of each crate without those that another of its dependencies has too.
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

/// Draws `members` as SVG, the highest of `layers` on top.
///
/// # Panics
/// If `layers` do not name all crates.
pub fn draw(members: &[Member], layers: &[&[&str]]) -> String {
    let edges = reduced(members);
    let mut rows: Vec<Vec<&str>> = layers.iter().rev().map(|layer| layer.to_vec()).collect();
    let widest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = widest * COLUMN;
    // Each row is sorted by the middle of what its crates are connected with, downwards and upwards in turns.
    for _ in 0..8 {
        let at = places(&rows, width);
        for row in &mut rows {
            let middle = |name: &str| {
                let below = edges[name].iter().map(|other| at[other].0);
                let above = edges.iter().filter(|(_, all)| all.contains(&name)).map(|(other, _)| at[other].0);
                let all: Vec<usize> = below.chain(above).collect();
                all.iter().sum::<usize>().checked_div(all.len()).unwrap_or(width)
            };
            row.sort_by_key(|name| middle(name));
        }
    }
    let at = places(&rows, width);
    let height = rows.len() * ROW - (ROW - HEIGHT) + 2;
    let mut body = String::new();
    for (name, others) in &edges {
        let (x, y) = at[name];
        for other in others {
            let (to_x, to_y) = at[other];
            let (from_y, bend) = (y + HEIGHT, ROW - HEIGHT);
            let _ = writeln!(
                body,
                "<path d=\"M{x} {from_y}C{x} {} {to_x} {} {to_x} {to_y}\"/>",
                from_y + bend,
                to_y - bend
            );
        }
    }
    for (name, (x, y)) in &at {
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

/// Middle of the upper side of each box.
fn places<'a>(rows: &[Vec<&'a str>], width: usize) -> BTreeMap<&'a str, (usize, usize)> {
    let mut all = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        let column = width / row.len().max(1);
        for (place, name) in row.iter().enumerate() {
            all.insert(*name, (column * place + column / 2, number * ROW + 1));
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
