//! What `anneal info --placement` tells, judged.

use build_info::Bytes;
use serde_json::Value;

/// What of a placement lies or is computed on the host, but for the input's embeddings, which llama.cpp always leaves there.
pub fn faults(told: &Value) -> Vec<String> {
    let list = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    let mut faults = Vec::new();
    if list("devices").is_empty() {
        faults.push("no device came up".to_string());
    }
    for (name, called) in [("weights", "weights"), ("cache", "KV cache")] {
        let on_host = list(name).into_iter().filter(|stored| stored["host"] == true);
        let bytes: u64 = on_host
            .flat_map(|stored| stored["kinds"].as_object().cloned().unwrap_or_default())
            .filter(|(kind, _)| kind != "embedding")
            .filter_map(|(_, bytes)| bytes.as_u64())
            .sum();
        if bytes > 0 {
            faults.push(format!("{} of {called} lie on the host", Bytes(bytes)));
        }
    }
    for ops in list("host_ops").iter().filter(|ops| ops["why"] != "input_layer") {
        faults.push(format!(
            "{} × {} is computed on the host ({})",
            ops["ops"],
            ops["op"].as_str().unwrap_or("?"),
            ops["why"].as_str().unwrap_or("?")
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn embeddings_on_the_host_are_no_fault_and_all_else_is() {
        let whole = json!({
            "devices": ["CUDA0 (NVIDIA H100)"],
            "weights": [
                {"device": "CUDA0", "host": false, "bytes": 1000, "kinds": {"attention": 1000}},
                {"device": "host", "host": true, "bytes": 10, "kinds": {"embedding": 10}},
            ],
            "cache": [{"device": "CUDA0", "host": false, "bytes": 5, "kinds": {"k": 5}}],
            "host_ops": [{"op": "GET_ROWS", "why": "input_layer", "ops": 1}],
        });
        assert_eq!(faults(&whole), Vec::<String>::new());
        let mut split = whole.clone();
        split["weights"][1]["kinds"]["feed_forward"] = json!(2 << 20);
        split["cache"][0]["host"] = json!(true);
        split["host_ops"].as_array_mut().unwrap().push(json!({"op": "MUL_MAT", "why": "weights", "ops": 3}));
        let found = faults(&split);
        assert_eq!(
            found,
            [
                "2 MiB of weights lie on the host",
                "5 B of KV cache lie on the host",
                "3 × MUL_MAT is computed on the host (weights)",
            ]
        );
        assert_eq!(faults(&json!({})), ["no device came up"]);
    }
}
