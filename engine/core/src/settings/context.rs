//! Warning about a context that is longer than the model's training context length.

use std::path::Path;

use gguf::GgufFile;
use llama::rope::trained_context;

use super::resolved::Settings;
use super::source::Source;

/// Returns a warning if `settings` request a longer context than the model at `path` was trained for. Returns `None`
/// if the file cannot be read, because the load reports that error.
pub fn context_warning(path: &Path, settings: &Settings) -> Option<String> {
    let asked = settings.n_ctx.value;
    if settings.n_ctx.source == Source::Default || asked == 0 {
        return None;
    }
    let trained = trained_context(&GgufFile::open(path).ok()?);
    let longer = settings.variant.rope.factor().map_or(1.0, |factor| 1.0 / f64::from(factor));
    let reach = f64::from(trained) * longer.max(1.0);
    (trained > 0 && f64::from(asked) > reach).then(|| {
        let by = f64::from(asked) / f64::from(trained);
        let by = (by * 100.0).ceil() / 100.0;
        format!(
            "-c {asked}: the model was trained for {trained} tokens, and text beyond {} tokens is often nonsense\nhint: \
             lower -c, or scale positions with --rope-scaling yarn --rope-scale {by}",
            reach as u64
        )
    })
}
