//! docs/reference holds the JSON Schemas of the files that programs read, generated from the types.

use build_info::{BuildInfo, TuningRecord};

fn check(name: &str, schema: schemars::Schema) {
    let path = format!("{}/../docs/src/reference/{name}", env!("CARGO_MANIFEST_DIR"));
    let now = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == now,
        "{name}: run `UPDATE_SCHEMA=1 cargo test -p xtask --test schema` and review the change"
    );
}

#[test]
fn the_schemas_in_docs_are_those_of_the_types() {
    check("build_info.schema.json", schemars::schema_for!(BuildInfo));
    check("tuning-record.schema.json", schemars::schema_for!(TuningRecord));
}
