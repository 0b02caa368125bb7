//! Warnings about builds that were made from different sources.

use build::compare::CandidateBuild;
use build::ui::Ui;

/// Warns that a difference between builds may be due to different sources.
pub fn warn_of_sources(builds: &[&CandidateBuild], ui: &Ui) {
    let mut records = builds.iter().filter_map(|build| Some((&build.name, build.record.as_ref()?)));
    let Some((first, baseline)) = records.next() else { return };
    for (name, record) in records.filter(|(_, record)| record.source.digest != baseline.source.digest) {
        let source = &record.source;
        ui.warn(format_args!(
            "{name} ({} {}) and {first} ({} {}) were built from different sources, which may explain a \
             difference",
            source.origin, source.version, baseline.source.origin, baseline.source.version
        ));
    }
}
