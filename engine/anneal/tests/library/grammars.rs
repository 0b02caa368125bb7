//! Tests of GBNF grammars in a sampler chain: the texts that each grammar allows, as whole texts or prefixes, with
//! every tokenisation.

use crate::common::the_model;
use llama::Token;
use sampling::{Chain, Constraint, SamplingOptions};

fn chain(grammar: &str) -> engine::Result<Chain> {
    let options = SamplingOptions {
        temperature: 0.0,
        constraint: Some(Constraint::Grammar(grammar.to_string())),
        ..SamplingOptions::default()
    };
    Chain::new(&options, the_model())
}

/// Returns `text` as single-byte tokens, and as tokens of the model's tokenizer.
fn ways(text: &str) -> [Vec<Token>; 2] {
    let model = the_model();
    let piece = |token| {
        let mut piece = Vec::new();
        model.piece(token, &mut piece).expect("a piece");
        piece
    };
    let single = |byte: u8| {
        let all = 0..model.n_vocab() as Token;
        all.into_iter().find(|token| piece(*token) == [byte]).expect("a token of one byte")
    };
    let tokens = model.tokenize_with(text, false).expect("tokens");
    [text.bytes().map(single).collect(), tokens]
}

/// Returns true if the chain chooses `token` when the model ranks it first.
fn takes(chain: &mut Chain, token: Token) -> engine::Result<bool> {
    let mut logits = vec![0.0; the_model().n_vocab() as usize];
    logits[token as usize] = 9.0;
    Ok(chain.choose(&logits)? == token)
}

#[derive(Debug, PartialEq)]
enum Is {
    Whole,
    Beginning,
    Refused,
}

fn is(grammar: &str, tokens: &[Token]) -> Is {
    let mut chain = chain(grammar).expect(grammar);
    for token in tokens {
        if !takes(&mut chain, *token).expect(grammar) {
            return Is::Refused;
        }
        chain.accept_generated(*token).expect(grammar);
    }
    let end = (0..the_model().n_vocab() as Token).find(|token| the_model().is_end(*token)).expect("an end");
    if takes(&mut chain, end).expect(grammar) { Is::Whole } else { Is::Beginning }
}

const JSON: &str = r#"
root ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn a_grammar_of_the_empty_text_is_refused() {
    for grammar in ["root ::= ", "root ::= \"\"", "root ::= x x\nx ::= \"\""] {
        let why = chain(grammar).err().map(|error| error.to_string());
        let expected = "cannot use the GBNF grammar: only the empty text matches it";
        assert_eq!(why.as_deref(), Some(expected), "{grammar}");
    }
}

#[test]
fn texts_are_allowed_as_the_grammar_has_them() {
    use Is::{Beginning, Refused, Whole};
    let arithmetic = "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n\
        term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*";
    let cases: &[(&str, &[(&str, Is)])] = &[
        (
            JSON,
            &[
                (r#"{"a": [1, -2.5e+3, "x\u00e4\n\"", {}], "b": null} "#, Whole),
                (r#"{"a": [1, -2.5e+3"#, Beginning),
                (r#"{"a" : 1}"#, Whole),
                (r#"{"a"  : 1}"#, Refused),
                (r#"[01]"#, Refused),
                (r#""\x""#, Refused),
                ("\"日本語\"", Whole),
                ("truefalse", Refused),
            ],
        ),
        // A greedy rule for the first part would leave nothing for the part after it.
        (
            "root ::= [a-z]+ \"b\"",
            &[("ab", Whole), ("abbb", Whole), ("a", Beginning), ("b", Beginning), ("a1", Refused)],
        ),
        (
            "root ::= a root \"]\" | \"x\"\na ::= \"a\" | \"ab\" | \"abc\" | \"bc\"",
            &[
                ("x", Whole),
                ("abcx]", Whole),
                ("abcx]]", Whole),
                ("aabx]]", Whole),
                ("ax", Beginning),
                ("abcx]]]", Refused),
                ("cx", Refused),
            ],
        ),
        (
            "root ::= \"a\" root \"b\" | \"\"",
            &[("", Whole), ("aabb", Whole), ("aab", Beginning), ("abb", Refused)],
        ),
        (
            "root ::= root \"-\" [0-9] | [0-9]",
            &[("1", Whole), ("1-2-3", Whole), ("1-", Beginning), ("-1", Refused)],
        ),
        (
            "root ::= list \"!\"\nlist ::= list \",\" list | [a-z]",
            &[("a,b,c!", Whole), ("a,b", Beginning), ("a,!", Refused)],
        ),
        ("root ::= [a-z] root | [0-9]", &[("abc1", Whole), ("abc", Beginning), ("a1b", Refused)]),
        (
            "root ::= (\"(\" root \")\"){0,2} x{2,3}\nx ::= \"a\" | \"<\" root \">\"",
            &[
                ("aaa", Whole),
                ("a", Beginning),
                ("aaaa", Refused),
                ("(aa)(aa)aa", Whole),
                ("(aa)(aa)(", Refused),
                ("a<aa>", Whole),
                ("<a>", Refused),
            ],
        ),
        (
            arithmetic,
            &[("a+b = 1\n", Whole), ("(a *b2)/3= x \n\n", Whole), ("a+", Beginning), ("1 2", Refused)],
        ),
        ("root ::= [^a-yä]{2} .", &[("zz\n", Whole), ("日zä", Whole), ("za", Refused), ("zä", Refused)]),
        (
            "root ::= \"\\x41\\u00e4\" [\\U0001F600-\\U0001F64F]?",
            &[("Aä", Whole), ("Aä😀", Whole), ("Aa", Refused)],
        ),
        (
            "root ::= ([a-z ]?){40} \"0\"",
            &[("ab c0", Whole), ("0", Whole), ("ab", Beginning), ("0a", Refused)],
        ),
    ];
    for (grammar, texts) in cases {
        for (text, expected) in *texts {
            for tokens in ways(text) {
                assert_eq!(is(grammar, &tokens), *expected, "{grammar}: {text:?} as {tokens:?}");
            }
        }
    }
}

#[test]
fn tokens_are_named_by_number() {
    let [_, hello] = ways("hello");
    let first = hello[0];
    let only = format!("root ::= x \"!\"\nx ::= <[{first}]> | \"(\" x \")\"");
    assert_eq!(is(&only, &[first]), Is::Beginning);
    assert_eq!(is(&only, &[first, ways("!")[0][0]]), Is::Whole);
    assert_eq!(is(&only, &ways("h")[0]), Is::Refused);
    let any_other = format!("root ::= !<[{first}]> \"!\"");
    assert_eq!(is(&any_other, &[first]), Is::Refused);
    assert_eq!(is(&any_other, &ways("h!")[0]), Is::Whole);
}

/// Each grammar is followed until it ends or fails, so an endless grammar would be noticed.
#[test]
fn no_grammar_takes_for_ever() {
    let grammars = [
        "root ::= [a-z ] root [a-z] | [a-z ] root [A-Z] | \"\"",
        "root ::= ([a-z ]?){400} \"0\"",
        "root ::= ([a-z ]? x?){400} \"0\"\nx ::= \"(\" root \")\"",
        "root ::= root root | [a-z ]",
        "root ::= (x* y*)* \"0\"\nx ::= [a-z ] | \"(\" root \")\"\ny ::= [a-z ] | \"[\" root \"]\"",
    ];
    // Deeply nested rules, and many names for one token.
    let deep = format!("root ::= \"a\"{}", "?".repeat(100_000));
    let named = format!("root ::= [a-z ] | {}", "<|im_end|> ".repeat(8000));
    let [singles, _] = ways("the quick brown fox jumps over the lazy dog");
    for grammar in grammars.into_iter().chain([deep.as_str(), named.as_str()]) {
        let followed = chain(grammar).and_then(|mut chain| {
            singles.iter().try_for_each(|token| {
                takes(&mut chain, *token)?;
                chain.accept_generated(*token)
            })
        });
        if let Err(why) = followed {
            assert!(why.to_string().contains("GBNF grammar"), "{grammar:.80}: {why}");
        }
    }
}
