//! A grammar that was read.

/// The place of a part in [`Gbnf::nodes`].
pub(super) type Id = usize;

/// A part of a rule. What it is made of comes before it in [`Gbnf::nodes`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// One character of these ranges, which are sorted and apart.
    Class(Vec<(char, char)>),
    /// These characters, one after the other.
    Text(String),
    /// The token, or any other one.
    Token { id: u32, not: bool },
    /// The rule of this number.
    Rule(usize),
    /// One after the other.
    Seq(Vec<Id>),
    /// One of them; none matches nothing, not even the empty text.
    Any(Vec<Id>),
    /// So often at least, and at most where there is a bound.
    Repeat(Id, u32, Option<u32>),
}

/// A grammar that was read.
pub struct Gbnf {
    pub(super) nodes: Vec<Node>,
    /// What each rule is.
    pub(super) rules: Vec<Id>,
    pub(super) root: usize,
}

impl Gbnf {
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}
