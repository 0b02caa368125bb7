//! Pooling: combines the embeddings of a text's tokens into one embedding.

use std::str::FromStr;

use llama::Model;

/// Method of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean,
    /// First token.
    First,
    /// Last token.
    Last,
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mean" => Ok(Pooling::Mean),
            "first" => Ok(Pooling::First),
            "last" => Ok(Pooling::Last),
            _ => Err(format!("unknown pooling {text:?}: use mean, first or last")),
        }
    }
}

/// llama.cpp's number for the pooling of models that score pairs of texts.
const RANK: &str = "4";

impl Pooling {
    /// Returns the pooling that `model` was trained for; the mean if its file does not specify one.
    ///
    /// # Errors
    /// If the file specifies an unsupported kind of pooling.
    pub fn of(model: &Model) -> Result<Self, String> {
        Self::read(Self::number(model).as_deref())
    }

    /// Checks that `model` is a reranker, which returns a score for a pair of texts instead of embeddings.
    ///
    /// # Errors
    /// If `model` is not a reranker; the error is the reason.
    pub fn check_scores(model: &Model) -> Result<(), &'static str> {
        if !Self::is_rank(model) {
            return Err(
                "its pooling_type is not 4 (rank); use a model that was trained to score pairs of texts",
            );
        }
        match model.has_score_head() {
            Ok(true) => Ok(()),
            Ok(false) => Err(
                "its file has no classification head (cls.output.weight) for its scores; convert the model again, \
                from a checkpoint with the head",
            ),
            Err(_) => Err("its file cannot be read again; check that the file still exists"),
        }
    }

    /// True if `model` was trained to score pairs of texts.
    pub(crate) fn is_rank(model: &Model) -> bool {
        Self::number(model).as_deref() == Some(RANK)
    }

    fn number(model: &Model) -> Option<String> {
        let architecture = model.metadata("general.architecture").unwrap_or_default();
        model.metadata(&format!("{architecture}.pooling_type"))
    }

    /// Converts llama.cpp's number for a pooling method.
    fn read(number: Option<&str>) -> Result<Self, String> {
        match number {
            None | Some("0" | "1" | "-1") => Ok(Pooling::Mean),
            Some("2") => Ok(Pooling::First),
            Some("3") => Ok(Pooling::Last),
            Some(RANK) => {
                Err("this model is a reranker (pooling_type 4) and computes no embeddings; send a query \
                and documents to `anneal serve` at /v1/rerank"
                    .to_string())
            }
            Some(other) => Err(format!("this model's pooling_type {other} is unknown")),
        }
    }
}

/// Embedding of a text, added up token by token.
#[derive(Debug)]
pub struct Pool {
    pooling: Pooling,
    sum: Vec<f64>,
    tokens: usize,
}

impl Pool {
    /// Returns the pool of an empty text.
    pub fn new(pooling: Pooling, width: usize) -> Self {
        Pool { pooling, sum: vec![0.0; width], tokens: 0 }
    }

    /// Adds the embedding of the next token.
    pub fn add(&mut self, row: &[f32]) {
        let counts = match self.pooling {
            Pooling::Mean => true,
            Pooling::First => self.tokens == 0,
            Pooling::Last => {
                self.sum.fill(0.0);
                true
            }
        };
        self.tokens += 1;
        if counts {
            self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Returns the embedding, scaled to length 1; `None` if it contains NaN or infinity. The sum is not divided by
    /// the number of tokens, because the division would not change the embedding's direction.
    pub fn finish(self) -> Option<Vec<f32>> {
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() {
            return None;
        }
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        Some(self.sum.iter().map(|value| (value * scale) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_takes_its_tokens() {
        let cases = [(Pooling::Mean, [0.6, 0.8]), (Pooling::First, [1.0, 0.0]), (Pooling::Last, [0.0, 1.0])];
        for (pooling, expected) in cases {
            let mut pool = Pool::new(pooling, 2);
            for row in [[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]] {
                pool.add(&row);
            }
            let found = pool.finish().expect("numbers");
            let is_near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
            assert!(is_near, "{pooling:?}: {found:?}");
        }
        let mut broken = Pool::new(Pooling::Mean, 1);
        broken.add(&[f32::NAN]);
        assert_eq!(broken.finish(), None);
        assert_eq!(Pool::new(Pooling::Mean, 2).finish(), Some(vec![0.0, 0.0]));
    }

    #[test]
    fn the_file_says_which() {
        let cases = [
            (None, Some(Pooling::Mean)),
            (Some("0"), Some(Pooling::Mean)),
            (Some("1"), Some(Pooling::Mean)),
            (Some("2"), Some(Pooling::First)),
            (Some("3"), Some(Pooling::Last)),
            (Some("4"), None),
            (Some("x"), None),
        ];
        for (number, expected) in cases {
            assert_eq!(Pooling::read(number).ok(), expected, "{number:?}");
        }
    }
}
