//! What is told of builds that are made of other sources.

use build::compare::CandidateBuild;
use build::ui::Ui;

/// Says of which builds a difference may be one of their sources.
pub fn warn_of_sources(builds: &[&CandidateBuild], ui: &Ui) {
    let mut records = builds.iter().filter_map(|build| Some((&build.name, build.record.as_ref()?)));
    let Some((first, baseline)) = records.next() else { return };
    for (name, record) in records.filter(|(_, record)| record.source.digest != baseline.source.digest) {
        let source = &record.source;
        ui.warn(format_args!(
            "{name} is of other sources ({} {}) than {first} ({} {})",
            source.origin, source.version, baseline.source.origin, baseline.source.version
        ));
    }
}
