//! Tests of the JSON Schemas in docs/src, which are generated from the types of the files that programs read.

use build_info::{BuildInfo, Diagnosis, MeasuredRow, TuningRecord};

fn check(name: &str, schema: schemars::Schema) {
    let path = format!("{}/../../docs/src/{name}", env!("CARGO_MANIFEST_DIR"));
    // Compare the schemas as values: features that other crates in the build enable determine whether serde_json sorts
    // keys.
    let now = schema.clone().to_value();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
    let written = std::fs::read(&path).unwrap_or_default();
    assert!(
        serde_json::from_slice::<serde_json::Value>(&written).is_ok_and(|written| written == now),
        "{name}: run `UPDATE_SCHEMA=1 cargo test -p xtask --test schema` and review the change"
    );
}

#[test]
fn the_schemas_in_docs_are_those_of_the_types() {
    check("build/build_info.schema.json", schemars::schema_for!(BuildInfo));
    check("tune/tuning-record.schema.json", schemars::schema_for!(TuningRecord));
    check("tune/bench-row.schema.json", schemars::schema_for!(MeasuredRow));
    check("tune/why.schema.json", schemars::schema_for!(Diagnosis));
}
