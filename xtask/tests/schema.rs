//! docs/reference holds the JSON Schema of build_info.json, generated from the types.

use build_info::BuildInfo;

#[test]
fn the_schema_in_docs_is_that_of_the_types() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/reference/build_info.schema.json");
    let now = serde_json::to_string_pretty(&schemars::schema_for!(BuildInfo)).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == now, "run `UPDATE_SCHEMA=1 cargo test -p xtask --test schema` and review the change");
}
