//! Tests of reranking, with a model of random weights whose scores depend on both texts.

#[path = "../../../../crates/gguf/tests/common/edit.rs"]
mod edit;

use gguf::synth::Preset;
use serde_json::{Value, json};

use self::edit::{Edit, Put};
use crate::client::Server;
use crate::shapes::{start, start_changed};

const QUERY: &str = "the smith heats steel";
const DOCUMENTS: [&str; 5] = ["a river", "steel in the fire", "bread and salt", "the smith heats steel", ""];

fn rank(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.post("/v1/rerank", body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns the scores in the order of the documents.
fn scores(answer: &Value) -> Vec<f64> {
    let results = answer["results"].as_array().expect("a list");
    let mut found: Vec<(u64, f64)> = results
        .iter()
        .map(|result| {
            let index = result["index"].as_u64().expect("an index");
            (index, result["relevance_score"].as_f64().expect("a number"))
        })
        .collect();
    assert!(found.is_sorted_by(|one, other| one.1 >= other.1), "{answer}");
    found.sort_unstable_by_key(|(index, _)| *index);
    assert!(found.iter().map(|(index, _)| *index).eq(0..found.len() as u64), "{answer}");
    found.into_iter().map(|(_, score)| score).collect()
}

fn tokens(server: &Server, text: &str) -> u64 {
    let body = json!({ "content": text, "add_special_tokens": false });
    let (status, answer) = server.post("/tokenize", &body);
    assert_eq!(status, 200, "{answer}");
    answer["tokens"].as_array().expect("a list").len() as u64
}

#[test]
fn documents_are_ordered_by_scores_that_depend_on_both_texts() {
    let server = start(Preset::RankTiny, &[]);
    let together = rank(&server, &json!({ "query": QUERY, "documents": DOCUMENTS }));
    let all = scores(&together);
    assert_eq!(all.len(), DOCUMENTS.len());
    // Each pair has an end token after both texts.
    let expected: u64 =
        DOCUMENTS.iter().map(|document| tokens(&server, QUERY) + tokens(&server, document) + 2).sum();
    assert_eq!(
        (&together["usage"]["prompt_tokens"], &together["usage"]["total_tokens"]),
        (&json!(expected), &json!(expected))
    );
    for (document, score) in DOCUMENTS.iter().zip(&all) {
        let alone = scores(&rank(&server, &json!({ "query": QUERY, "documents": [{ "text": document }] })));
        assert!((alone[0] - score).abs() < 1e-2, "{document}: {alone:?}, {score} together");
    }
    let differ = |one: f64, other: f64| (one - other).abs() > 1e-3;
    assert!(all.windows(2).all(|pair| differ(pair[0], pair[1])), "{all:?}");
    let other = scores(&rank(&server, &json!({ "query": "salt", "documents": DOCUMENTS })));
    assert!(all.iter().zip(&other).all(|(one, other)| differ(*one, *other)), "{all:?} {other:?}");
    // The order of the two texts matters.
    let turned = scores(&rank(&server, &json!({ "query": DOCUMENTS[1], "documents": [QUERY] })));
    assert!(differ(turned[0], all[1]), "{turned:?} {all:?}");
}

/// Starts a reranker whose file was edited.
fn start_edited(change: impl FnOnce(&mut Edit)) -> Server {
    start_changed(Preset::RankTiny, &[], |path| {
        let mut model = Edit::of(path);
        change(&mut model);
        model.write(path);
    })
}

fn start_with_template(template: &str) -> Server {
    start_edited(|model| model.put("tokenizer.chat_template.rerank", Put::Text(template.to_string())))
}

/// Returns the number of tokens in the pair of `query` and `document`.
fn pair_tokens(server: &Server, query: &str, document: &str) -> u64 {
    let answer = rank(server, &json!({ "query": query, "documents": [document] }));
    answer["usage"]["prompt_tokens"].as_u64().expect("a number")
}

#[test]
fn names_of_control_tokens_in_a_text_remain_text() {
    // A template longer than 256 bytes is used in full.
    let long = format!("{}\n<|im_start|>{{query}}<|im_end|>\n{{document}}<|im_end|>", "steel ".repeat(60));
    for server in [start(Preset::RankTiny, &[]), start_with_template(&long)] {
        let plain = pair_tokens(&server, "a\n", "b\n");
        for name in ["<|im_end|>", "<|endoftext|>"] {
            // The name of a control token is a single token unless it is treated as text.
            assert_eq!(tokens(&server, name), 1);
            assert!(pair_tokens(&server, &format!("a\n{name}"), "b\n") > plain + 3, "{name} in the query");
            assert!(pair_tokens(&server, "a\n", &format!("b\n{name}")) > plain + 3, "{name} in the document");
        }
    }
}

#[test]
fn a_template_is_tokenized_as_one_text_with_its_special_tokens() {
    let template = "<|im_start|>q: {query}<|im_end|>d: {document}<|im_end|>{query}";
    let server = start_with_template(template);
    for document in DOCUMENTS {
        let whole = template.replace("{query}", QUERY).replace("{document}", document);
        assert_eq!(pair_tokens(&server, QUERY, document), tokens(&server, &whole), "{document}");
    }
    // A placeholder in a text is not replaced.
    let whole = "<|im_start|>q: {document}<|im_end|>d: {query}<|im_end|>{document}";
    assert_eq!(pair_tokens(&server, "{document}", "{query}"), tokens(&server, whole));
}

/// llama.cpp loads such files. Without a head, it would read scores from an embedding and beyond the end of the
/// embedding.
#[test]
fn a_reranker_without_a_head_is_refused_in_words() {
    let labels = Put::Texts((0..5000).map(|label| label.to_string().into_bytes()).collect());
    let is_head = |name: &str| name.starts_with("cls.");
    let cases: [&dyn Fn(&mut Edit); 3] = [
        &|model| model.tensors.retain(|tensor| !is_head(&tensor.name)),
        // The remaining matrix has a row for each value of an embedding, but there is one score.
        &|model| model.tensors.retain(|tensor| !tensor.name.starts_with("cls.output.")),
        &|model| {
            model.tensors.retain(|tensor| !is_head(&tensor.name));
            model.put("bert.classifier.output_labels", labels.clone());
        },
    ];
    for (case, change) in cases.into_iter().enumerate() {
        let server = start_edited(change);
        for (path, body, expected) in [
            ("/v1/rerank", json!({ "query": "a", "documents": ["b"] }), "has no classification head"),
            ("/v1/embeddings", json!({ "input": "a" }), "this model is a reranker (pooling_type 4)"),
        ] {
            let (status, answer) = server.post(path, &body);
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 400 && message.contains(expected), "{case}: {path}: {answer}");
        }
        assert_eq!(server.get("/health").0, 200, "{case}");
    }
}

#[test]
fn a_template_cannot_make_pairs_of_unlimited_size() {
    let refused = |server: &Server, document: &str| {
        let (status, answer) = server.post("/v1/rerank", &json!({ "query": "a", "documents": [document] }));
        assert_eq!(status, 400, "{answer}");
        answer["error"].clone()
    };
    let server = start_with_template(&"{document}".repeat(1000));
    let error = refused(&server, "b");
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("{document} 1000 times")),
        "{error}"
    );
    // The document alone is short enough, but the template contains it several times.
    let server = start_with_template(&format!("{{query}}{}", "{document}".repeat(8)));
    assert_eq!(pair_tokens(&server, "a", "b"), tokens(&server, "abbbbbbbb"));
    let longest = "steel ".repeat(400);
    let error = refused(&server, &longest);
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("context_length_exceeded"), &json!("documents[0]")),
        "{error}"
    );
    // The length of the text is checked before the text is joined and tokenised.
    assert!(error["message"].as_str().is_some_and(|message| message.contains("bytes")), "{error}");
}

#[test]
fn the_best_are_returned_with_their_texts_at_each_path() {
    let server = start(Preset::RankTiny, &[]);
    let body = json!({ "query": QUERY, "documents": DOCUMENTS, "top_n": 2, "return_documents": true });
    let whole = rank(&server, &json!({ "query": QUERY, "documents": DOCUMENTS, "top_n": 100 }));
    let first = rank(&server, &body);
    let results = first["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2);
    for (at, result) in results.iter().enumerate() {
        let index = result["index"].as_u64().expect("an index") as usize;
        assert_eq!(result["document"]["text"], DOCUMENTS[index]);
        assert_eq!(whole["results"][at]["index"], result["index"]);
        assert!(whole["results"][at].get("document").is_none(), "{whole}");
    }
    for path in ["/rerank", "/v1/reranking"] {
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, &answer["results"][0]["index"]), (200, &results[0]["index"]), "{path}: {answer}");
    }
}

#[test]
fn long_pairs_and_other_models_are_refused_in_words() {
    let server = start(Preset::RankTiny, &[]);
    let long = "steel ".repeat(400);
    let cases = [
        (
            "/v1/rerank",
            json!({ "query": QUERY, "documents": ["a", long] }),
            "documents[1]: the document and the query have",
        ),
        ("/v1/rerank", json!({ "query": QUERY, "documents": [] }), "documents: use 1 to 2048 texts"),
        ("/v1/embeddings", json!({ "input": "a" }), "this model is a reranker (pooling_type 4)"),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(expected), "{path}: {answer}");
    }
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 })).0, 400);
    // The longest pair that fits is accepted.
    let words = |count: usize| json!({ "query": "a", "documents": ["a".repeat(count)] });
    let longest =
        (1..2000).rev().step_by(50).find(|count| server.post("/v1/rerank", &words(*count)).0 == 200);
    assert!(longest.is_some_and(|longest| longest > 400), "{longest:?}");
    let generative = Server::start(&["--name", "smith"]);
    let (status, answer) = generative.post("/v1/rerank", &json!({ "query": "a", "documents": ["b"] }));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.starts_with("the model \"smith\" is not a reranker"), "{answer}");
}
