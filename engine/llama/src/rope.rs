//! RoPE scaling of positions, which lets a model read a longer context than its training context length.
//!
//! Names and meanings match llama.cpp's. Settings that are not given keep the model's own values.

use gguf::{GgufFile, Scalar, Value};

use crate::error::{Error, Result};
use crate::options::RopeScaling;

/// Requested RoPE settings; `None` keeps the model's own value.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rope {
    /// Method of scaling positions.
    pub scaling: Option<RopeScaling>,
    /// Context length divided by the training context length: 1 / `freq_scale`.
    pub scale: Option<f32>,
    /// Base of the frequencies.
    pub freq_base: Option<f32>,
    /// Factor by which positions are multiplied.
    pub freq_scale: Option<f32>,
    /// YaRN: context size that the model was trained for, in tokens.
    pub yarn_orig_ctx: Option<u32>,
    /// YaRN: mix of interpolation (0) and extrapolation (1).
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: factor by which attention is multiplied. Used only without extrapolation.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: number of rotations within the context above which a frequency is not scaled.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN: number of rotations within the context below which a frequency is fully scaled.
    pub yarn_beta_slow: Option<f32>,
}

impl Rope {
    /// Returns the factor by which positions are multiplied; `None` if no factor is given.
    pub fn factor(&self) -> Option<f32> {
        self.freq_scale.or_else(|| self.scale.map(|scale| 1.0 / scale))
    }

    /// Fills in missing settings from `other`. `scale` and `freq_scale` are treated as one setting.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let (scale, freq_scale) = match self.factor() {
            Some(_) => (self.scale, self.freq_scale),
            None => (other.scale, other.freq_scale),
        };
        Rope {
            scaling: self.scaling.or(other.scaling),
            scale,
            freq_base: self.freq_base.or(other.freq_base),
            freq_scale,
            yarn_orig_ctx: self.yarn_orig_ctx.or(other.yarn_orig_ctx),
            yarn_ext_factor: self.yarn_ext_factor.or(other.yarn_ext_factor),
            yarn_attn_factor: self.yarn_attn_factor.or(other.yarn_attn_factor),
            yarn_beta_fast: self.yarn_beta_fast.or(other.yarn_beta_fast),
            yarn_beta_slow: self.yarn_beta_slow.or(other.yarn_beta_slow),
        }
    }

    /// True if all settings keep the model's own values.
    pub fn is_the_models(&self) -> bool {
        *self == Rope::default()
    }

    /// Returns the flag of the first given setting that has an effect only with YaRN; `None` if there is none.
    fn yarn(&self) -> Option<&'static str> {
        [
            ("--yarn-orig-ctx", self.yarn_orig_ctx.is_some()),
            ("--yarn-ext-factor", self.yarn_ext_factor.is_some()),
            ("--yarn-attn-factor", self.yarn_attn_factor.is_some()),
            ("--yarn-beta-fast", self.yarn_beta_fast.is_some()),
            ("--yarn-beta-slow", self.yarn_beta_slow.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, asked)| asked.then_some(flag))
    }

    /// Checks that the settings are valid for at least one model.
    ///
    /// # Errors
    /// [`Error::Usage`] if a setting is invalid, or if settings conflict.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("--rope-scale", self.scale, 1e6),
            ("--rope-freq-base", self.freq_base, 1e12),
            ("--rope-freq-scale", self.freq_scale, 1e6),
            ("--yarn-attn-factor", self.yarn_attn_factor, 1e3),
            ("--yarn-beta-fast", self.yarn_beta_fast, 1e6),
            ("--yarn-beta-slow", self.yarn_beta_slow, 1e6),
        ];
        for (flag, value, most) in positive {
            if let Some(value) = value.filter(|value| !(1e-6..=most).contains(value)) {
                return usage(format!("{flag} {value}: use a number above 0, up to {most}"));
            }
        }
        if let Some(value) = self.yarn_ext_factor.filter(|value| !(0.0..=1.0).contains(value)) {
            return usage(format!("--yarn-ext-factor {value}: use 0 (interpolate) to 1 (extrapolate)"));
        }
        if let Some(tokens) =
            self.yarn_orig_ctx.filter(|tokens| !(1..=crate::options::MAX_CTX).contains(tokens))
        {
            return usage(format!(
                "--yarn-orig-ctx {tokens}: use the context size that the model was trained for"
            ));
        }
        if self.scale.is_some() && self.freq_scale.is_some() {
            return usage(
                "--rope-scale and --rope-freq-scale set the same factor\nhint: use only one of them"
                    .to_string(),
            );
        }
        match (self.scaling, self.factor(), self.yarn()) {
            (Some(RopeScaling::None), Some(_), _) => {
                return usage(
                    "--rope-scaling none cannot be used with a scale: llama.cpp would ignore the scale\nhint: use \
                     linear or yarn"
                        .to_string(),
                );
            }
            (Some(other @ (RopeScaling::None | RopeScaling::Linear)), _, Some(flag)) => {
                return usage(format!(
                    "{flag} cannot be used with --rope-scaling {other}: it works only with YaRN\nhint: use --rope-scaling yarn"
                ));
            }
            _ => {}
        }
        if self.yarn_attn_factor.is_some() && self.yarn_ext_factor != Some(0.0) {
            return usage(
                "--yarn-attn-factor has no effect unless --yarn-ext-factor is 0\nhint: add --yarn-ext-factor \
                 0, or remove --yarn-attn-factor"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Checks that the settings are compatible with the model whose first file is `file`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the model does not support a setting, or if a scale is missing.
    pub fn check_model(&self, file: &GgufFile) -> Result<()> {
        if self.is_the_models() {
            return Ok(());
        }
        let own = Trained::of(file);
        let is_yarn = match self.scaling {
            Some(scaling) => scaling == RopeScaling::Yarn,
            None => own.scaling.as_deref() == Some("yarn"),
        };
        if let Some(flag) = self.yarn().filter(|_| !is_yarn) {
            return usage(format!(
                "{flag}: this model does not use YaRN\nhint: turn YaRN on with --rope-scaling yarn"
            ));
        }
        let is_scaled = matches!(self.scaling, Some(RopeScaling::Linear | RopeScaling::Yarn));
        if is_scaled && self.factor().is_none() && own.factor.is_none_or(|factor| factor == 1.0) {
            let name = self.scaling.map_or("", RopeScaling::name);
            return usage(format!(
                "--rope-scaling {name} needs a scale, but the model's file contains none\nhint: set --rope-scale to the \
                 context length divided by the training context length ({} tokens); for example, --rope-scale 2",
                own.context
            ));
        }
        Ok(())
    }

    /// Describes the settings as text; empty if all settings are the model's own.
    pub fn words(&self) -> String {
        let number = |name: &str, value: Option<f32>| value.map(|value| format!("{name}={value}"));
        let parts = [
            self.scaling.map(|scaling| scaling.to_string()),
            number("freq_scale", self.factor()),
            number("freq_base", self.freq_base),
            self.yarn_orig_ctx.map(|tokens| format!("yarn_orig_ctx={tokens}")),
            number("yarn_ext_factor", self.yarn_ext_factor),
            number("yarn_attn_factor", self.yarn_attn_factor),
            number("yarn_beta_fast", self.yarn_beta_fast),
            number("yarn_beta_slow", self.yarn_beta_slow),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// RoPE metadata of a model's file.
struct Trained {
    /// Context size that the model was trained for, in tokens.
    context: u32,
    scaling: Option<String>,
    factor: Option<f64>,
}

impl Trained {
    fn of(file: &GgufFile) -> Self {
        let text = |key: &str| match file.get(key) {
            Some(Value::Scalar(Scalar::String(text))) => Some(text.clone()),
            _ => None,
        };
        let architecture = text("general.architecture").unwrap_or_default();
        let key = |key: &str| format!("{architecture}.{key}");
        let number = |name: &str| match file.get(&key(name)) {
            Some(Value::Scalar(Scalar::Float(number))) => Some(*number),
            _ => None,
        };
        Trained {
            context: file.u32(&key("context_length")).unwrap_or(0),
            scaling: text(&key("rope.scaling.type")),
            // Older files use the second key.
            factor: number("rope.scaling.factor").or_else(|| number("rope.scale_linear")),
        }
    }
}

/// Returns the context size, in tokens, that the model of `file` was trained for; 0 if the file does not contain the
/// size.
pub fn trained_context(file: &GgufFile) -> u32 {
    Trained::of(file).context
}

fn usage<T>(message: String) -> Result<T> {
    Err(Error::Usage(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_refused() {
        let yarn = Some(RopeScaling::Yarn);
        let wrong = [
            Rope { scale: Some(0.0), ..Rope::default() },
            Rope { scale: Some(f32::NAN), ..Rope::default() },
            Rope { freq_base: Some(-1.0), ..Rope::default() },
            Rope { freq_base: Some(f32::INFINITY), ..Rope::default() },
            Rope { scale: Some(2.0), freq_scale: Some(0.5), ..Rope::default() },
            Rope { scaling: Some(RopeScaling::None), scale: Some(2.0), ..Rope::default() },
            Rope {
                scaling: Some(RopeScaling::Linear),
                scale: Some(2.0),
                yarn_beta_fast: Some(32.0),
                ..Rope::default()
            },
            Rope { scaling: yarn, yarn_ext_factor: Some(1.5), ..Rope::default() },
            Rope { scaling: yarn, yarn_attn_factor: Some(1.0), ..Rope::default() },
            Rope {
                scaling: yarn,
                yarn_attn_factor: Some(1.0),
                yarn_ext_factor: Some(0.5),
                ..Rope::default()
            },
            Rope { scaling: yarn, yarn_orig_ctx: Some(0), ..Rope::default() },
        ];
        for rope in wrong {
            assert!(matches!(rope.check(), Err(Error::Usage(_))), "{rope:?} was accepted");
        }
        let right = [
            Rope::default(),
            Rope { freq_base: Some(1e6), ..Rope::default() },
            Rope { scaling: Some(RopeScaling::None), ..Rope::default() },
            Rope { scaling: yarn, scale: Some(4.0), yarn_orig_ctx: Some(4096), ..Rope::default() },
            Rope {
                scaling: yarn,
                yarn_attn_factor: Some(1.0),
                yarn_ext_factor: Some(0.0),
                ..Rope::default()
            },
        ];
        for rope in right {
            assert!(rope.check().is_ok(), "{rope:?}: {:?}", rope.check());
        }
    }

    #[test]
    fn a_factor_is_one_however_it_is_given() {
        let file = Rope { freq_scale: Some(0.5), freq_base: Some(1e6), ..Rope::default() };
        let flags = Rope { scale: Some(4.0), ..Rope::default() };
        let both = flags.or(file);
        assert_eq!((both.factor(), both.freq_base), (Some(0.25), Some(1e6)));
        assert!(both.check().is_ok());
        assert_eq!(both.words(), "freq_scale=0.25 freq_base=1000000");
        assert_eq!(Rope::default().words(), "");
    }

    #[test]
    fn the_model_says_what_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        let file = GgufFile::open(&path).expect("a model");
        let cases = [
            (Rope { scaling: Some(RopeScaling::Yarn), ..Rope::default() }, "4096 tokens"),
            (Rope { yarn_beta_fast: Some(8.0), scale: Some(2.0), ..Rope::default() }, "--rope-scaling yarn"),
        ];
        for (rope, words) in cases {
            let error = rope.check_model(&file).expect_err("it was accepted").to_string();
            assert!(error.contains(words), "{error}");
        }
        let rope = Rope {
            scaling: Some(RopeScaling::Yarn),
            scale: Some(2.0),
            yarn_beta_fast: Some(8.0),
            ..Rope::default()
        };
        assert!(rope.check_model(&file).is_ok());
    }
}
