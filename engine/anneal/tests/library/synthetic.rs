//! Tests that synthetic models resemble real models in the important properties: peaked logits, and text that
//! survives tokenisation.

use std::path::Path;
use std::sync::Arc;

use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use gguf::synth::{self, Preset, SynthOptions};
use llama::{Context, Model};

/// Presets that are small enough for a test: a dense model, a mixture of experts, and a model with a sliding window.
const PRESETS: [Preset; 3] = [Preset::Tiny, Preset::MoeTiny, Preset::SwaTiny];

fn load(folder: &Path, preset: Preset) -> (Arc<Model>, Context) {
    let path = folder.join(format!("{preset}.gguf"));
    synth::write(&path, &SynthOptions::new(preset)).expect("a synthetic model");
    let runtime_host = RuntimeHost::read();
    let requested = Requested { n_ctx: Some(256), decode_threads: Some(1), ..Requested::default() };
    let settings = Settings::resolve(&requested, &runtime_host).expect("valid settings");
    let model = model::open(&path, &settings, &runtime_host).expect("it loads");
    let context = model::context(&model, &settings, &runtime_host, false).expect("a context");
    (model, context)
}

/// Returns the entropy of the distribution of `logits`, in bits.
fn entropy(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits.iter().map(|logit| f64::from(logit - most).exp());
    let sum: f64 = weights.clone().sum();
    -weights.map(|weight| weight / sum).filter(|p| *p > 0.0).map(|p| p * p.log2()).sum::<f64>()
}

#[test]
fn logits_are_peaked_like_a_real_models() {
    const TOKENS: usize = 32;
    let folder = tempfile::tempdir().expect("a temporary folder");
    for preset in PRESETS {
        let (model, mut context) = load(folder.path(), preset);
        let prompt = model.tokenize("The smith brings the steel slowly to a red heat").expect("tokens");
        context.decode(&prompt).expect("a prefill");
        let mut bits = Vec::new();
        for _ in 0..TOKENS {
            let logits = context.logits().expect("logits");
            assert_eq!(logits.len(), model.n_vocab() as usize);
            bits.push(entropy(logits));
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
            context.decode(&[best as i32]).expect("a decode");
        }
        let mean = bits.iter().sum::<f64>() / TOKENS as f64;
        assert!((1.0..4.0).contains(&mean), "{preset}: {mean:.2} bits per token of {bits:.2?}");
    }
}

#[test]
fn text_comes_back_from_its_tokens() {
    let texts = [
        "Steel that has been worked cold is hard and brittle; it can't be drawn: 12,345.6789 mm (about 3/4\").",
        "naïve café, Straße, Øresund, žluťoučký kůň",
        "Ελληνικά, русский, українська, Հայերեն",
        "עברית, العربية، فارسی",
        "हिन्दी, বাংলা, தமிழ், ไทย, မြန်မာ",
        "漢字とかな、한국어, 中文。",
        "🙂👩‍👩‍👧‍👦🇩🇪 e\u{301} \u{200b}\u{feff}",
        "fn main() {\n\tlet x: Vec<_> = (0..10).map(|i| i << 2).collect();\n}\n#define A(b) \\\n  b##_t\r\n",
        "   three spaces before, two after  ",
        "\n\n\n\ttabs\t\tand\n \n lines \n",
        " ",
        "\u{0}\u{1}\u{7f}",
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    for preset in PRESETS {
        let (model, _) = load(folder.path(), preset);
        for text in texts {
            let tokens = model.tokenize(text).expect("tokens");
            let mut bytes = Vec::new();
            for &token in &tokens {
                model.piece(token, &mut bytes).expect("a piece");
            }
            assert_eq!(String::from_utf8_lossy(&bytes), text, "{preset}: {tokens:?}");
        }
        // The merges have an effect: English text is not split into letters.
        let english = "the commonest words of this and that which were not there";
        let tokens = model.tokenize(english).expect("tokens").len();
        assert!(tokens < english.len() / 2, "{preset}: {tokens} tokens");
    }
}
