//! A parsed grammar.

/// Index of a part in [`Gbnf::nodes`].
pub(super) type Id = usize;

/// A part of a rule. Its children precede it in [`Gbnf::nodes`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// One character in these ranges, which are sorted and disjoint.
    Class(Vec<(char, char)>),
    /// A literal text.
    Text(String),
    /// The token `id` or, with `not`, any other token.
    Token { id: u32, not: bool },
    /// Rule with the given number.
    Rule(usize),
    /// All of the given parts, one after the other.
    Seq(Vec<Id>),
    /// One of the given parts. An empty list matches nothing, not even the empty text.
    Any(Vec<Id>),
    /// A repeated part, with the minimum and the maximum number of repetitions; `None` for no maximum.
    Repeat(Id, u32, Option<u32>),
}

/// A parsed grammar.
pub struct Gbnf {
    pub(super) nodes: Vec<Node>,
    /// Body of each rule.
    pub(super) rules: Vec<Id>,
    pub(super) root: usize,
}

impl Gbnf {
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}
