//! Speeds from the metrics of a server, in Prometheus' text format.

use std::collections::BTreeMap;

use crate::observation::SeenSpeed;

/// Pairs of a counter of tokens and a counter of seconds, for prefill and decode. llama-server counts both while it
/// works.
const COUNTERS: [[&str; 2]; 2] = [
    ["llamacpp:prompt_tokens_total", "llamacpp:prompt_seconds_total"],
    ["llamacpp:tokens_predicted_total", "llamacpp:tokens_predicted_seconds_total"],
];
/// Counters of Anneal: tokens of both phases, and the seconds of all batches.
const ANNEAL: [&str; 3] =
    ["anneal_prefill_tokens_total", "anneal_decode_tokens_total", "anneal_batch_seconds_total"];

/// Returns the speeds between two readings of a server's `/metrics`. If the server generated nothing meanwhile, returns
/// llama-server's averages since its start. `None` if the metrics contain no speeds.
pub fn speeds(before: &str, after: &str) -> Option<SeenSpeed> {
    let (before, after) = (parse(before), parse(after));
    let gained = |name: &str| Some(after.get(name)? - before.get(name)?);
    let during = COUNTERS.map(|[tokens, time]| positive(gained(tokens)?, gained(time)?));
    let own = match ANNEAL.map(|name| gained(name).unwrap_or(0.0)) {
        [prefill, 0.0, seconds] => [positive(prefill, seconds), None],
        [0.0, decode, seconds] => [None, positive(decode, seconds)],
        // The counters do not show how much of the time each phase took.
        _ => [None, None],
    };
    for [prefill, decode] in [during, own] {
        if prefill.is_some() || decode.is_some() {
            let source = "its /metrics during the observation".to_string();
            return Some(SeenSpeed { decode, prefill, is_current: true, is_shared: false, source });
        }
    }
    let [prefill, decode] = COUNTERS.map(|[tokens, time]| positive(*after.get(tokens)?, *after.get(time)?));
    (prefill.is_some() || decode.is_some()).then(|| {
        let source = "its /metrics, averaged since its start".to_string();
        SeenSpeed { decode, prefill, is_current: false, is_shared: false, source }
    })
}

/// Returns `tokens` per second; `None` if there are no tokens or no time.
fn positive(tokens: f64, seconds: f64) -> Option<f64> {
    let rate = tokens / seconds;
    (tokens > 0.0 && seconds > 0.0 && rate.is_finite()).then_some(rate)
}

/// Parses the metrics. Values with different labels are added. Comments and damaged lines are skipped.
fn parse(text: &str) -> BTreeMap<&str, f64> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.trim().rsplit_once(' ') else { continue };
        let name = name.split_once('{').map_or(name, |(name, _)| name);
        let Ok(value) = value.parse::<f64>() else { continue };
        *found.entry(name).or_insert(0.0) += value;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama_server(tokens: u64, seconds: f64) -> String {
        format!(
            "# HELP llamacpp:tokens_predicted_total Number of tokens\n# TYPE llamacpp:tokens_predicted_total counter\n\
             llamacpp:tokens_predicted_total {tokens}\nllamacpp:tokens_predicted_seconds_total {seconds}\n"
        )
    }

    #[test]
    fn speeds_are_of_the_observation_if_possible() {
        let anneal = |prefill: u64, decode: u64, seconds: f64| {
            format!(
                "anneal_prefill_tokens_total{{model=\"a b\"}} {prefill}\n\
                 anneal_decode_tokens_total{{model=\"a b\"}} 7\n\
                 anneal_decode_tokens_total{{model=\"c\"}} {decode}\nanneal_batch_seconds_total {seconds}\n"
            )
        };
        let cases = [
            (llama_server(100, 10.0), llama_server(120, 11.0), Some((20.0, true))),
            (llama_server(100, 10.0), llama_server(100, 10.0), Some((10.0, false))),
            (llama_server(0, 0.0), llama_server(0, 0.0), None),
            (anneal(5, 100, 1.0), anneal(5, 130, 3.0), Some((15.0, true))),
            (anneal(5, 100, 1.0), anneal(5, 100, 1.0), None),
            // Both phases share the seconds.
            (anneal(5, 100, 1.0), anneal(9, 130, 3.0), None),
            // The server was restarted.
            (anneal(5, 100, 9.0), anneal(5, 10, 1.0), None),
            (String::new(), "llamacpp:tokens_predicted_total x\nodd".to_string(), None),
        ];
        for (before, after, expected) in cases {
            let seen = speeds(&before, &after).map(|seen| (seen.decode.unwrap_or_default(), seen.is_current));
            assert_eq!(seen, expected, "{after}");
        }
    }
}
