//! Tests of sampling: each sampler against a simple reference implementation, on rows of random logits.

use crate::common::the_model;
use engine::Error;
use llama::Token;
use sampling::{Bias, Chain, Constraint, SamplingOptions};

/// Returns options that remove no tokens, with a temperature of 1.
fn open() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingOptions::default() }
}

fn chain(options: SamplingOptions) -> Chain {
    Chain::new(&options.with_seed(1), the_model()).expect("a chain")
}

/// Generator of rows of logits that resemble a model's: a few likely tokens and many unlikely tokens. The rows are
/// the same in every run.
struct Rows(u64);

impl Rows {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn row(&mut self) -> Vec<f32> {
        let spread = 1.0 + 7.0 * self.uniform();
        let n = the_model().n_vocab();
        // The distribution is approximately normal.
        (0..n).map(|_| (spread * ((0..4).map(|_| self.uniform()).sum::<f64>() - 2.0)) as f32).collect()
    }
}

/// Returns the tokens with their probabilities at `temperature`, the most likely first.
fn softmax(row: &[(Token, f64)], temperature: f64) -> Vec<(Token, f64)> {
    let best = row.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let mut all: Vec<(Token, f64)> =
        row.iter().map(|(token, logit)| (*token, ((logit - best) / temperature).exp())).collect();
    let sum: f64 = all.iter().map(|(_, p)| p).sum();
    all.iter_mut().for_each(|(_, p)| *p /= sum);
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

fn tokens(row: &[f32]) -> Vec<(Token, f64)> {
    row.iter().enumerate().map(|(token, logit)| (token as Token, f64::from(*logit))).collect()
}

/// Returns the candidates of `chain`, the most likely first.
fn candidates(chain: &mut Chain, row: &[f32]) -> Vec<(Token, f64)> {
    let token = chain.choose(row).expect("a token");
    let mut all: Vec<(Token, f64)> =
        chain.candidates().iter().map(|candidate| (candidate.id, f64::from(candidate.p))).collect();
    assert!(all.iter().any(|(other, _)| *other == token), "{token} is not a candidate");
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

/// Asserts that tokens and probabilities are equal. If a sum in single precision decides which tokens remain, the
/// last token may differ.
fn assert_same(found: &[(Token, f64)], expected: &[(Token, f64)], slack: usize, what: &str) {
    let common = found.len().min(expected.len());
    assert!(
        found.len().abs_diff(expected.len()) <= slack && common > 0,
        "{what}: {} candidates in place of {}",
        found.len(),
        expected.len()
    );
    for ((token, p), (expected_token, expected_p)) in found.iter().zip(expected) {
        assert!(
            (p - expected_p).abs() < 1e-3 * expected_p + 1e-7,
            "{what}: {token} {p}, {expected_token} {expected_p}"
        );
    }
}

fn renormalised(mut kept: Vec<(Token, f64)>) -> Vec<(Token, f64)> {
    let sum: f64 = kept.iter().map(|(_, p)| p).sum();
    kept.iter_mut().for_each(|(_, p)| *p /= sum);
    kept
}

fn up_to(all: &[(Token, f64)], p: f64) -> Vec<(Token, f64)> {
    let mut sum = 0.0;
    let n = all.iter().position(|(_, one)| {
        sum += one;
        sum >= p
    });
    all[..n.map_or(all.len(), |last| last + 1)].to_vec()
}

#[test]
fn cuts_are_where_the_definitions_have_them() {
    let mut rows = Rows(7);
    for round in 0..60 {
        let row = rows.row();
        let all = softmax(&tokens(&row), 1.0);
        let p = rows.uniform();
        let k = 1 + (rows.uniform() * 100.0) as usize;

        let found = candidates(&mut chain(SamplingOptions { top_k: k as u32, ..open() }), &row);
        assert_same(&found, &renormalised(all[..k].to_vec()), 0, &format!("top_k {k} in round {round}"));

        let found = candidates(&mut chain(SamplingOptions { top_p: p as f32, ..open() }), &row);
        let expected = up_to(&all, f64::from(p as f32));
        assert_same(&found, &renormalised(expected), 1, &format!("top_p {p} in round {round}"));

        let found = candidates(&mut chain(SamplingOptions { min_p: p as f32, ..open() }), &row);
        let expected: Vec<_> = all.iter().copied().filter(|(_, one)| *one >= p * all[0].1).collect();
        assert_same(&found, &renormalised(expected), 1, &format!("min_p {p} in round {round}"));

        // All three samplers are applied, each to the result of the previous sampler, and the temperature is applied
        // last.
        let options = SamplingOptions {
            top_k: 40,
            top_p: 0.8,
            min_p: 0.1,
            temperature: 0.7,
            ..SamplingOptions::default()
        };
        let found = candidates(&mut chain(options), &row);
        let expected = up_to(&renormalised(all[..40].to_vec()), 0.8);
        let least = 0.1 * expected[0].1;
        let kept: Vec<_> =
            expected.iter().filter(|(_, one)| *one >= least).map(|(token, p)| (*token, p.ln())).collect();
        assert_same(&found, &softmax(&kept, 0.7), 1, &format!("all in round {round}"));
    }
}

#[test]
fn typical_n_sigma_and_xtc_are_as_their_papers_have_them() {
    let mut rows = Rows(11);
    for round in 0..40 {
        let row = rows.row();
        let all = softmax(&tokens(&row), 1.0);
        let p = 0.05 + 0.9 * rows.uniform();

        let entropy: f64 = all.iter().map(|(_, p)| -p * p.ln()).sum();
        let mut typical = all.clone();
        typical.sort_by(|a, b| (-a.1.ln() - entropy).abs().total_cmp(&(-b.1.ln() - entropy).abs()));
        let mut expected = up_to(&typical, p);
        expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let found = candidates(&mut chain(SamplingOptions { typical_p: p as f32, ..open() }), &row);
        // Rounding may decide which of two tokens is closer to the entropy, and which token is last.
        let known: std::collections::HashSet<Token> = expected.iter().map(|(token, _)| *token).collect();
        let strange = found.iter().filter(|(token, _)| !known.contains(token)).count();
        let sizes = found.len().abs_diff(expected.len());
        assert!(strange <= 2 && sizes <= 2, "typical {p} in round {round}: {strange}, {sizes}");

        let mean = row.iter().map(|logit| f64::from(*logit)).sum::<f64>() / row.len() as f64;
        let deviation = (row.iter().map(|logit| (f64::from(*logit) - mean).powi(2)).sum::<f64>()
            / row.len() as f64)
            .sqrt();
        let best = row.iter().copied().fold(f32::MIN, f32::max);
        let kept: Vec<_> =
            tokens(&row).into_iter().filter(|(_, logit)| *logit >= f64::from(best) - deviation).collect();
        let found = candidates(&mut chain(SamplingOptions { top_n_sigma: 1.0, ..open() }), &row);
        let found: Vec<_> = found.into_iter().filter(|(_, p)| *p > 0.0).collect();
        assert_same(&found, &softmax(&kept, 1.0), 1, &format!("top_n_sigma in round {round}"));

        let threshold = all[4].1 * 1.0001;
        let options = SamplingOptions { xtc_probability: 1.0, xtc_threshold: threshold as f32, ..open() };
        let found = candidates(&mut chain(options), &row);
        let expected = if threshold > 0.5 { all.clone() } else { all[3..].to_vec() };
        assert_same(&found, &renormalised(expected), 0, &format!("xtc in round {round}"));
    }
}

#[test]
fn temperature_zero_and_one_candidate_are_greedy() {
    let mut rows = Rows(3);
    let mut greedy = chain(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() });
    let mut one = chain(SamplingOptions { top_k: 1, temperature: 5.0, ..open() });
    let mut none_left = chain(SamplingOptions { top_p: 0.0, temperature: 5.0, ..open() });
    for _ in 0..100 {
        let row = rows.row();
        let best = softmax(&tokens(&row), 1.0)[0].0;
        for (chain, what) in
            [(&mut greedy, "temperature 0"), (&mut one, "top_k 1"), (&mut none_left, "top_p 0")]
        {
            assert_eq!(chain.choose(&row).expect("a token"), best, "{what}");
        }
    }
    // Of equally likely tokens, the first is chosen.
    let mut row = vec![0.0; the_model().n_vocab() as usize];
    (row[70], row[50]) = (3.0, 3.0);
    assert_eq!(greedy.choose(&row).expect("a token"), 50);
}

#[test]
fn draws_come_as_often_as_they_should() {
    let mut row = vec![-50.0; the_model().n_vocab() as usize];
    let weights = [0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005_f64];
    for (token, weight) in weights.iter().enumerate() {
        row[token * 3 + 1] = weight.ln() as f32;
    }
    let mut chain = chain(open());
    let n = 20_000;
    let mut seen = [0_u32; 8];
    for _ in 0..n {
        let token = chain.choose(&row).expect("a token");
        seen[(token as usize - 1) / 3] += 1;
    }
    let chi: f64 = weights
        .iter()
        .zip(seen)
        .map(|(weight, seen)| (f64::from(seen) - weight * f64::from(n)).powi(2) / (weight * f64::from(n)))
        .sum();
    // With 7 degrees of freedom, one in a thousand fair results exceeds 24.3.
    assert!(chi < 24.3, "{chi}: {seen:?}");
}

#[test]
fn a_seed_gives_the_same_tokens_and_another_one_others() {
    let kinds = [
        open(),
        SamplingOptions::default(),
        SamplingOptions { mirostat: 1, ..SamplingOptions::default() },
        SamplingOptions { mirostat: 2, ..SamplingOptions::default() },
        SamplingOptions { xtc_probability: 0.5, ..SamplingOptions::default() },
    ];
    for kind in kinds {
        let drawn = |seed| {
            let options = SamplingOptions { seed: Some(seed), ..kind.clone() };
            let mut chain = Chain::new(&options, the_model()).expect("a chain");
            assert_eq!(chain.seed(), seed);
            let mut rows = Rows(5);
            (0..100).map(|_| chain.choose(&rows.row()).expect("a token")).collect::<Vec<_>>()
        };
        assert_eq!(drawn(7), drawn(7), "{kind:?}");
        assert_ne!(drawn(7), drawn(8), "{kind:?}");
    }
}

#[test]
fn a_bias_adds_and_bans() {
    let mut rows = Rows(13);
    for _ in 0..20 {
        let row = rows.row();
        let all = softmax(&tokens(&row), 1.0);
        let (first, second, last) = (all[0].0, all[1].0, all[all.len() - 1].0);
        let bias = |token, bias| Bias { token, bias };
        let logit_bias = vec![bias(first, f32::NEG_INFINITY), bias(last, 4.0), bias(second, -2.0)];
        let found = candidates(&mut chain(SamplingOptions { logit_bias, ..open() }), &row);
        let mut changed = tokens(&row);
        changed[last as usize].1 += 4.0;
        changed[second as usize].1 -= 2.0;
        changed.remove(first as usize);
        assert_same(&found, &softmax(&changed, 1.0), 0, "biases");
        assert!(!found.iter().any(|(token, _)| *token == first), "a banned token is a candidate");
        let logit_bias = vec![bias(first, f32::NEG_INFINITY)];
        let mut greedy = chain(SamplingOptions { logit_bias, temperature: 0.0, ..open() });
        assert_eq!(greedy.choose(&row).expect("a token"), second);
    }
}

#[test]
fn penalties_take_from_tokens_that_were_seen() {
    let options = SamplingOptions {
        repeat_penalty: 1.5,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        repeat_last_n: 4,
        ..open()
    };
    let mut rows = Rows(17);
    for _ in 0..20 {
        let row = rows.row();
        let mut chain = chain(options.clone());
        // When all tokens have been accepted, the first token is outside the window.
        chain.accept_prompt(&[1, 9, 9, 700, 11]).expect("accepted");
        let mut changed = tokens(&row);
        for (token, count) in [(9, 2.0), (700, 1.0), (11, 1.0)] {
            let logit = &mut changed[token].1;
            *logit = if *logit > 0.0 { *logit / 1.5 } else { *logit * 1.5 } - count * 0.5 - 0.25;
        }
        assert_same(&candidates(&mut chain, &row), &softmax(&changed, 1.0), 0, "penalties");
    }
    // With a window of 0, no tokens are penalised.
    let row = rows.row();
    let mut chain = chain(SamplingOptions { repeat_last_n: 0, ..options });
    chain.accept_prompt(&[1, 9]).expect("accepted");
    assert_same(&candidates(&mut chain, &row), &softmax(&tokens(&row), 1.0), 0, "no window");
}

#[test]
fn dry_takes_from_what_would_repeat_a_sequence() {
    let options = SamplingOptions {
        dry_multiplier: 0.8,
        dry_base: 2.0,
        dry_allowed_length: 2,
        dry_sequence_breakers: Vec::new(),
        ..open()
    };
    let row = Rows(19).row();
    // 21 22 23 24 … 21 22 23: three tokens are repeated, and 24 would be the fourth.
    let text = [21, 22, 23, 24, 90, 21, 22, 23];
    let mut repeating = chain(options.clone());
    repeating.accept_prompt(&text).expect("accepted");
    let mut changed = tokens(&row);
    changed[24].1 -= 0.8 * 2.0;
    assert_same(&candidates(&mut repeating, &row), &softmax(&changed, 1.0), 0, "dry");
    // The text contains a breaker, which ends repetitions.
    let mut piece = Vec::new();
    the_model().piece(22, &mut piece).expect("a piece");
    let breaker = String::from_utf8(piece).expect("UTF-8");
    let mut broken = chain(SamplingOptions { dry_sequence_breakers: vec![breaker], ..options });
    broken.accept_prompt(&text).expect("accepted");
    assert_same(&candidates(&mut broken, &row), &softmax(&tokens(&row), 1.0), 0, "dry with a breaker");
}

#[test]
fn mirostat_finds_the_surprise_it_aims_at() {
    let row = Rows(23).row();
    let all = softmax(&tokens(&row), 1.0);
    for (mirostat, tau) in [(2, 3.0), (2, 6.0), (1, 4.0)] {
        let options = SamplingOptions {
            mirostat,
            mirostat_tau: tau,
            mirostat_eta: 0.1,
            temperature: 1.0,
            ..SamplingOptions::default()
        };
        let mut chain = chain(options);
        let mut sum = 0.0;
        for draw in 0..3000 {
            let token = chain.choose(&row).expect("a token");
            let chosen =
                chain.candidates().iter().find(|candidate| candidate.id == token).expect("a candidate");
            // The sampler measures the information content among the tokens that it kept.
            sum += if draw >= 1000 { -f64::from(chosen.p).log2() } else { 0.0 };
        }
        let mean = sum / 2000.0;
        assert!(
            (mean - f64::from(tau)).abs() < 0.3,
            "mirostat {mirostat} at {tau}: {mean}; {} tokens",
            all.len()
        );
    }
}

#[test]
fn a_chain_may_be_made_by_one_thread_and_used_by_another() {
    let made = std::thread::spawn(|| {
        let constraint = Some(Constraint::JsonSchema(serde_json::json!({})));
        chain(SamplingOptions { constraint, ..open() })
    });
    made.join().expect("a chain").choose(&Rows(1).row()).expect("a token");
}

#[test]
fn temperatures_and_targets_at_their_ends_are_no_reason_for_nan() {
    let mut row = Rows(31).row();
    let best = softmax(&tokens(&row), 1.0)[0].0;
    for temperature in [1e-45, 1e-38, 1e-30, 1e-7] {
        for mirostat in [0, 1, 2] {
            let mut chain = chain(SamplingOptions { temperature, mirostat, ..open() });
            for _ in 0..3 {
                assert_eq!(chain.choose(&row).expect("a token"), best, "{temperature} mirostat {mirostat}");
            }
        }
    }
    let n = row.len();
    row[n - 1] = 3e38;
    for temperature in [1e-45, 0.5, 100.0] {
        assert_eq!(
            chain(SamplingOptions { temperature, ..open() }).choose(&row).expect("a token"),
            n as Token - 1
        );
    }
    // No token reaches the target, so all tokens are kept.
    let row = Rows(33).row();
    for mirostat in [1, 2] {
        let mut chain = chain(SamplingOptions { mirostat, mirostat_tau: 100.0, mirostat_eta: 1.0, ..open() });
        for _ in 0..300 {
            chain.choose(&row).expect("a token");
        }
        assert!(chain.candidates().len() > 100, "mirostat {mirostat}: {}", chain.candidates().len());
    }
}

#[test]
fn candidates_are_those_of_the_last_token() {
    let row = Rows(35).row();
    let mut drawn = chain(open());
    drawn.choose(&row).expect("a token");
    assert!(!drawn.candidates().is_empty());
    drawn.choose(&vec![f32::NAN; row.len()]).expect_err("no numbers");
    assert!(drawn.candidates().is_empty(), "the candidates of the previous token remain");
    let mut greedy = chain(SamplingOptions { temperature: 0.0, repeat_penalty: 1.5, ..open() });
    greedy.choose(&row).expect("a token");
    assert!(greedy.candidates().is_empty());
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let n = the_model().n_vocab() as usize;
    for (bad, words) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinite")] {
        let mut row = vec![0.0; n];
        row[n / 2] = bad;
        for options in [open(), SamplingOptions { temperature: 0.0, ..open() }, SamplingOptions::default()] {
            let error = chain(options).choose(&row).expect_err("no usable logits");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    let error = chain(open()).choose(&[0.0; 3]).expect_err("three logits");
    assert!(error.to_string().contains("3 logits"), "{error}");
    // Impossible tokens are omitted, because typical sampling and mirostat would otherwise produce NaN.
    let mut row = vec![f32::NEG_INFINITY; n];
    (row[4], row[9]) = (1.0, -200.0);
    for options in [
        SamplingOptions { typical_p: 0.5, ..open() },
        SamplingOptions { mirostat: 1, ..open() },
        SamplingOptions { mirostat: 2, ..open() },
        open(),
    ] {
        assert_eq!(chain(options).choose(&row).expect("a token"), 4);
    }
}

#[test]
fn what_cannot_be_meant_makes_no_chain() {
    let cases: [(SamplingOptions, &str); 4] = [
        (SamplingOptions { top_p: f32::NAN, ..open() }, "top_p NaN: use 0 to 1"),
        (SamplingOptions { dry_base: 0.5, ..open() }, "dry_base 0.5: use 1 to 100"),
        (SamplingOptions { logit_bias: vec![Bias { token: -1, bias: 1.0 }], ..open() }, "token -1"),
        (
            SamplingOptions { logit_bias: vec![Bias { token: 1 << 20, bias: 1.0 }], ..open() },
            "tokens are 0 to",
        ),
    ];
    for (options, words) in cases {
        match Chain::new(&options, the_model()) {
            Err(Error::Usage(why)) => assert!(why.contains(words), "{why}"),
            Err(other) => panic!("{options:?}: {other}"),
            Ok(_) => panic!("{options:?} was accepted"),
        }
    }
}

/// Returns the tokens that consist of a single character of `characters`.
fn single(characters: &str) -> Vec<Token> {
    let mut piece = Vec::new();
    (0..the_model().n_vocab().cast_signed())
        .filter(|token| {
            piece.clear();
            the_model().piece(*token, &mut piece).expect("a piece");
            piece.len() == 1 && characters.as_bytes().contains(&piece[0])
        })
        .collect()
}

#[test]
fn a_grammar_leaves_what_it_allows_with_its_probabilities() {
    let allowed = single("abcdefghijklm");
    assert!(allowed.len() >= 13, "{allowed:?}");
    let grammars = ["root ::= [a-m]", "%llguidance {}\nstart: /[a-m]/"];
    let mut rows = Rows(29);
    for _ in 0..20 {
        let row = rows.row();
        let logits: Vec<(Token, f64)> =
            allowed.iter().map(|token| (*token, f64::from(row[*token as usize]))).collect();
        let all = softmax(&logits, 1.0);
        for grammar in grammars {
            let constraint = Some(Constraint::Grammar(grammar.to_string()));
            let found =
                candidates(&mut chain(SamplingOptions { constraint: constraint.clone(), ..open() }), &row);
            assert_same(&found, &all, 0, grammar);
            // The sampler keeps the three best of the allowed tokens, rather than the allowed ones among the three
            // best tokens.
            let options = SamplingOptions { constraint: constraint.clone(), top_k: 3, ..open() };
            assert_same(&candidates(&mut chain(options), &row), &renormalised(all[..3].to_vec()), 0, grammar);
            let mut greedy =
                chain(SamplingOptions { constraint: constraint.clone(), temperature: 0.0, ..open() });
            assert_eq!(greedy.choose(&row).expect("a token"), all[0].0, "{grammar}");
            // A banned token is never chosen.
            let logit_bias = vec![Bias { token: all[0].0, bias: f32::NEG_INFINITY }];
            let mut banned = chain(SamplingOptions { constraint, logit_bias, temperature: 0.0, ..open() });
            assert_eq!(banned.choose(&row).expect("a token"), all[1].0, "{grammar}");
        }
    }
}

#[test]
fn both_kinds_of_grammar_allow_the_same_tokens_all_along_a_text() {
    let pair = [
        "root ::= item (\", \" item)* \".\"\nitem ::= [a-z] [a-z] [a-z]* | [0-9] [0-9]?",
        "%llguidance {}\nstart: item (\", \" item)* \".\"\nitem: /[a-z][a-z][a-z]*/ | /[0-9][0-9]?/",
    ];
    let [mut gbnf, mut lark] = pair.map(|grammar| {
        chain(SamplingOptions { constraint: Some(Constraint::Grammar(grammar.to_string())), ..open() })
    });
    let mut rows = Rows(31);
    let ids = |chain: &mut Chain, row: &[f32]| {
        let mut ids: Vec<Token> = candidates(chain, row).into_iter().map(|(token, _)| token).collect();
        ids.sort_unstable();
        ids
    };
    let mut text = Vec::new();
    for step in 0..60 {
        let row = rows.row();
        let (of_gbnf, of_lark) = (ids(&mut gbnf, &row), ids(&mut lark, &row));
        assert_eq!(of_gbnf, of_lark, "after {:?}", String::from_utf8_lossy(&text));
        let token = of_lark[(rows.uniform() * of_lark.len() as f64) as usize];
        if the_model().is_end(token) {
            assert!(step > 0);
            break;
        }
        the_model().piece(token, &mut text).expect("a piece");
        gbnf.accept_generated(token).expect("allowed");
        lark.accept_generated(token).expect("allowed");
    }
}

#[test]
fn a_ban_on_all_that_a_grammar_allows_is_an_error() {
    for grammar in ["root ::= \"a\"", "%llguidance {}\nstart: \"a\""] {
        for temperature in [0.0, 1.0] {
            let ban = |token| Bias { token, bias: f32::NEG_INFINITY };
            let options = SamplingOptions {
                logit_bias: single("a").into_iter().map(ban).collect(),
                constraint: Some(Constraint::Grammar(grammar.to_string())),
                temperature,
                ..open()
            };
            let error = chain(options).choose(&Rows(1).row()).expect_err("nothing is left");
            assert!(error.to_string().contains("no token is left"), "{error}");
        }
    }
}
