//! Limits for `multipleOf` in JSON schemas. llguidance visits every possible remainder, so a schema of 40 bytes can
//! take minutes and gigabytes of memory.

use serde_json::Value;

/// Maximum number of remainders in a schema, summed over every `multipleOf`. 100,000 remainders take about a second
/// and 50 MiB.
const MAX_REMAINDERS: u64 = 100_000;

/// Maximum number of digits after the decimal point; llguidance counts in 32 bits.
const MAX_DIGITS: u32 = 9;

/// Keywords that combine schemas, so that a number may have to be a multiple of several values.
const JOINS: [&str; 5] = ["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"];

/// Values of `multipleOf` that a schema contains.
struct MultiplesOf {
    /// Sum of the remainders.
    remainders: u64,
    /// Number of remainders if a number must be a multiple of all values, ignoring the decimal point.
    together: u64,
    /// Minimum and maximum number of digits after the decimal point.
    digits: (u32, u32),
    joins: bool,
}

impl MultiplesOf {
    /// Returns the number of remainders in the worst case.
    fn most(&self) -> u64 {
        if !self.joins {
            return self.remainders;
        }
        // Converts the product to the unit of the value with the most digits after the decimal point.
        let units = 10_u64.pow(self.digits.1.saturating_sub(self.digits.0));
        self.remainders.max(self.together.saturating_mul(units))
    }
}

/// Returns the reason why `schema` is too expensive, or `None` if it is not.
pub(super) fn refusal(schema: &Value) -> Option<String> {
    let mut found = MultiplesOf { remainders: 0, together: 1, digits: (MAX_DIGITS, 0), joins: false };
    if let Some(value) = look(schema, &mut found) {
        return Some(format!(
            "multipleOf {value}: at most {MAX_DIGITS} digits after the decimal point are supported"
        ));
    }
    let most = found.most();
    (most > MAX_REMAINDERS).then(|| {
        format!(
            "the values of multipleOf have {most} remainders in total, more than the maximum of {MAX_REMAINDERS}: \
            use smaller values, or remove multipleOf and check the answer yourself"
        )
    })
}

/// Like [`refusal`], for the schemas in a Lark grammar.
pub(super) fn refusal_in_lark(text: &str) -> Option<String> {
    text.match_indices("%json").find_map(|(at, mark)| {
        let schema = serde_json::Deserializer::from_str(&text[at + mark.len()..]).into_iter::<Value>().next();
        // Invalid JSON is rejected later, with its position.
        refusal(&schema?.ok()?)
    })
}

/// Adds up the values in `value`. Returns a value with too many digits, if any. The JSON parser limits the depth.
fn look(value: &Value, found: &mut MultiplesOf) -> Option<f64> {
    match value {
        Value::Array(list) => list.iter().find_map(|value| look(value, found)),
        Value::Object(map) => map.iter().find_map(|(name, value)| {
            found.joins |= JOINS.contains(&name.as_str());
            match value.as_f64().filter(|_| name == "multipleOf") {
                Some(number) => add(number.abs(), found),
                None => look(value, found),
            }
        }),
        _ => None,
    }
}

/// Adds `number` in llguidance's format: the digits without the decimal point, and the number of digits after the
/// decimal point.
fn add(number: f64, found: &mut MultiplesOf) -> Option<f64> {
    let (mut value, mut digits) = (number, 0);
    while value.fract() != 0.0 {
        (value, digits) = (value * 10.0, digits + 1);
        if digits > MAX_DIGITS {
            return Some(number);
        }
    }
    // The conversion saturates.
    let value = (value as u64).max(1);
    found.remainders = found.remainders.saturating_add(value);
    found.digits = (found.digits.0.min(digits), found.digits.1.max(digits));
    found.together = found.together.saturating_mul(value / gcd(found.together, value));
    None
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_would_take_for_ever_is_refused() {
        let of = |value: Value| json!({ "type": "integer", "multipleOf": value });
        let many = |count: usize, value: u64| {
            let properties = (0..count).map(|at| (at.to_string(), of(value.into())));
            json!({ "properties": Value::Object(properties.collect()) })
        };
        let cases = [
            (of(json!(5)), ""),
            (of(json!(0.01)), ""),
            (of(json!(86_400)), ""),
            (json!({ "properties": { "multipleOf": of(json!(7)) } }), ""),
            (of(json!(99_999_989)), "99999989 remainders"),
            (of(json!(4e19)), "remainders"),
            (of(json!(1e-12)), "9 digits after the decimal point"),
            (of(json!(1.000_000_000_1)), "9 digits after the decimal point"),
            (many(500, 100), ""),
            (many(11, 9973), "109703 remainders"),
            (json!({ "items": [{ "a": [of(json!(9_999_991))] }] }), "remainders"),
            // Combined, a number must be a multiple of their product.
            (json!({ "allOf": [of(json!(9973)), of(json!(9967))] }), "99400891 remainders"),
            (json!({ "a": of(json!(9973)), "b": of(json!(9967)) }), ""),
            (json!({ "allOf": [of(json!(0.000_000_1)), of(json!(7))] }), "70000000 remainders"),
            (json!({ "allOf": [of(json!(10)), of(json!(100)), of(json!(1000))] }), ""),
        ];
        for (schema, expected) in cases {
            let found = refusal(&schema).unwrap_or_default();
            assert!(
                found.contains(expected) && found.is_empty() == expected.is_empty(),
                "{schema}: {found:?}"
            );
            let lark = format!("%llguidance {{}}\nstart: \"a\" %json {schema} \"b\"\n");
            assert_eq!(refusal_in_lark(&lark).unwrap_or_default(), found, "{lark}");
        }
    }
}
