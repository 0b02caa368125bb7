//! Logits after every token of a text, for comparing two builds.

use build_info::Logits;
use gguf::memory::CTX_STEP;
use llama::error::{Error, Result};
use llama::{Context, Token};

/// Method of evaluating a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// True to evaluate token by token with the decode kernels; false to evaluate batches with the prefill
    /// kernels.
    pub step: bool,
    /// Number of greedily chosen tokens to generate after the text.
    pub greedy: u32,
}

/// Evaluates `tokens` in an empty `context`. Returns the logits after each token, including generated tokens.
///
/// # Errors
/// If `tokens` is empty or does not fit, a token is not in the vocabulary, or the evaluation fails.
pub fn logits(context: &mut Context, tokens: &[Token], feed: Feed) -> Result<Logits> {
    check(context, tokens, feed)?;
    let vocabulary = context.model().n_vocab() as usize;
    let mut all = Logits::new(vocabulary);
    if feed.step {
        for &token in tokens {
            context.decode(&[token])?;
            all.push(token.cast_unsigned(), context.logits()?);
        }
    } else {
        let mut fed = tokens.iter();
        context.decode_all(tokens, |row| {
            let token = fed.next().copied().unwrap_or_default();
            all.push(token.cast_unsigned(), row);
            Ok::<(), Error>(())
        })?;
    }
    for _ in 0..feed.greedy {
        let token = all.rows().last().map_or(0, most_likely);
        context.decode(&[token])?;
        all.push(token.cast_unsigned(), context.logits()?);
    }
    Ok(all)
}

fn check(context: &Context, tokens: &[Token], feed: Feed) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let vocabulary = context.model().n_vocab();
    if let Some(wrong) = tokens.iter().find(|token| !(0..i64::from(vocabulary)).contains(&i64::from(**token)))
    {
        return Err(Error::Usage(format!("token {wrong} is not in the vocabulary of {vocabulary} tokens")));
    }
    let needed = tokens.len().saturating_add(feed.greedy as usize);
    if needed > context.n_ctx() as usize {
        return Err(Error::PromptTooLong {
            prompt: needed,
            context: context.n_ctx(),
            needed: needed.next_multiple_of(CTX_STEP as usize),
            trained: context.model().n_ctx_train(),
        });
    }
    Ok(())
}

/// Returns the token with the largest logit, the first if several are equal. Ignores NaN.
fn most_likely(row: &[f32]) -> Token {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &value) in row.iter().enumerate() {
        if value > best.1 {
            best = (token, value);
        }
    }
    Token::try_from(best.0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_of_the_greatest_is_the_most_likely() {
        let cases: [(&[f32], i32); 4] =
            [(&[1.0, 3.0, 3.0], 1), (&[f32::NAN, -1.0], 1), (&[f32::NAN], 0), (&[], 0)];
        for (row, expected) in cases {
            assert_eq!(super::most_likely(row), expected, "{row:?}");
        }
    }
}
