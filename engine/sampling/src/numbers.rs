//! Numbers in JSON schemas that llguidance cannot read, although their meaning is simple.

use serde_json::{Map, Value};

/// Keywords that limit a size.
const SIZES: [&str; 6] = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Maximum size that llguidance counts. No answer is that long.
const MAX_SIZE: f64 = u32::MAX as f64;

/// Bounds of this magnitude and above do not fit into llguidance's 64-bit integers.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// Bound that replaces larger bounds. Numbers with bounds have no exponent and at most 16 digits, so no number reaches
/// it.
const LARGE: f64 = 1e18;

/// Replaces the numbers in `fields` that llguidance refuses.
pub(super) fn replace(fields: &mut Map<String, Value>) {
    for key in SIZES {
        let Some(size) = fields.get(key).and_then(Value::as_f64) else { continue };
        if size >= MAX_SIZE && key.starts_with("max") {
            fields.shift_remove(key);
        } else if size.fract() == 0.0 && (0.0..MAX_SIZE).contains(&size) {
            // `3.0` is an integer.
            fields[key] = (size as u64).into();
        }
    }
    for (key, sign) in
        [("minimum", -1.0), ("exclusiveMinimum", -1.0), ("maximum", 1.0), ("exclusiveMaximum", 1.0)]
    {
        if fields.get(key).and_then(Value::as_f64).is_some_and(|bound| bound * sign >= TOO_LARGE) {
            fields[key] = (sign * LARGE).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_get_the_form_that_llguidance_reads() {
        for (before, after) in [
            (json!({ "maxLength": 3.0, "minItems": 0.0 }), json!({ "maxLength": 3, "minItems": 0 })),
            (json!({ "maxLength": 9_007_199_254_740_991_u64, "maxItems": 1e300 }), json!({})),
            (json!({ "minimum": i64::MIN }), json!({ "minimum": -1e18 })),
            (json!({ "minimum": -1e308, "maximum": 3.4e38 }), json!({ "minimum": -1e18, "maximum": 1e18 })),
            (json!({ "exclusiveMinimum": -1e300 }), json!({ "exclusiveMinimum": -1e18 })),
        ] {
            let mut found = before.clone();
            replace(found.as_object_mut().unwrap());
            assert_eq!(found, after, "{before}");
        }
        for same in [
            json!({ "maxLength": 3, "minimum": -5, "maximum": 9_007_199_254_740_991_u64 }),
            json!({ "maxLength": 3.5, "minLength": -1, "minItems": "x" }),
            json!({ "minimum": 1e300, "exclusiveMinimum": true }),
        ] {
            let mut found = same.clone();
            replace(found.as_object_mut().unwrap());
            assert_eq!(found, same);
        }
    }
}
