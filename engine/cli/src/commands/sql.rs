//! Results as SQL, in llama-bench's format: one table, and one row per test.

use serde_json::Value;

/// Returns the statement that creates `table`. Lists are left out, as in CSV.
pub fn create(table: &str, fields: &[(impl AsRef<str>, Value)]) -> String {
    let column = |(name, value): &(_, Value)| {
        let name: &str = AsRef::as_ref(name);
        format!("  {name} {}", kind(name, value))
    };
    let columns: Vec<String> = fields.iter().map(column).collect();
    format!("CREATE TABLE IF NOT EXISTS {table} (\n{}\n);\n", columns.join(",\n"))
}

/// Returns the statement that inserts a row.
pub fn insert(table: &str, fields: &[(impl AsRef<str>, Value)]) -> String {
    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_ref()).collect();
    let values: Vec<String> = fields.iter().map(|(_, value)| literal(value)).collect();
    format!("INSERT INTO {table} ({}) VALUES ({});", names.join(", "), values.join(", "))
}

/// Returns the type of a column. If the first row has no value, the name determines whether the type is an integer or a
/// real number. Missing texts are written as empty strings, so only numbers can be null.
fn kind(name: &str, value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "REAL",
        Value::Number(_) | Value::Bool(_) => "INTEGER",
        Value::Null if name.ends_with("_ns") || name.ends_with("_bytes") => "INTEGER",
        Value::Null => "REAL",
        _ => "TEXT",
    }
}

/// Formats a value. Quotes are doubled (SQL-92, 5.3), so that a quote cannot end a text early. NUL bytes are removed,
/// because some readers end the text at them.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_string(),
        Value::Bool(on) => u8::from(*on).to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\0', "").replace('\'', "''")),
        other => format!("'{}'", other.to_string().replace('\'', "''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_cannot_end_early_and_types_follow_the_values() {
        let fields = [
            ("name", json!("it's'); DROP TABLE t; --")),
            ("zero", json!("a\0b")),
            ("count", json!(3)),
            ("speed", json!(1.5)),
            ("on", json!(true)),
            ("time_ns", Value::Null),
            ("share", Value::Null),
        ];
        assert_eq!(
            create("t", &fields),
            "CREATE TABLE IF NOT EXISTS t (\n  name TEXT,\n  zero TEXT,\n  count INTEGER,\n  speed REAL,\n  \
             on INTEGER,\n  time_ns INTEGER,\n  share REAL\n);\n"
        );
        assert_eq!(
            insert("t", &fields),
            "INSERT INTO t (name, zero, count, speed, on, time_ns, share) VALUES ('it''s''); DROP TABLE t; --', \
             'ab', 3, 1.5, 1, NULL, NULL);"
        );
    }
}
