//! Selection of the files in a repository that a model's name refers to.

use super::listing::HubFile;

/// Quantisation that is chosen when the name does not give one: small, with little loss of quality.
const DEFAULT: &str = "Q4_K_M";

/// Words in the names of GGUF files that contain no language model: vision projectors and importance matrices.
const OTHERS: [&str; 2] = ["mmproj", "imatrix"];

/// Maximum number of files that an error message lists.
const SHOWN: usize = 40;

/// Files of one model. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// The single file, or all parts of a split model in order.
    pub files: Vec<HubFile>,
}

/// Returns the model files in `entries` that match `wanted`: a file name, or a quantisation in upper or lower case.
/// Without `wanted`, chooses Q4_K_M, or the model with the shortest path if there is no Q4_K_M.
///
/// # Errors
/// If no file matches, or if a part of a split model is missing. The message lists the repository's files.
pub fn choose(entries: &[HubFile], wanted: Option<&str>) -> Result<ModelFiles, String> {
    let mut models: Vec<&HubFile> = entries.iter().filter(|entry| is_model(&entry.path)).collect();
    // The shortest name comes first, so that a plain model is preferred to variants of it.
    models.sort_by_key(|entry| (entry.path.len(), &entry.path));
    let there = || words(&models);
    if models.is_empty() {
        let all: Vec<&HubFile> = entries.iter().collect();
        return Err(format!(
            "the repository has no GGUF model; it has {}\nhint: look for a repository with GGUF in its name",
            words(&all)
        ));
    }
    let first = match wanted {
        None => models.iter().find(|entry| is_of(&entry.path, DEFAULT)).or(models.first()),
        Some(file) if file.ends_with(".gguf") => models.iter().find(|entry| entry.path == file),
        Some(quant) => models.iter().find(|entry| is_of(&entry.path, quant)),
    };
    let first = first
        .ok_or_else(|| format!("the repository has no {}; it has {}", wanted.unwrap_or(DEFAULT), there()))?;
    let Some((prefix, _, count)) = part(&first.path) else {
        return Ok(ModelFiles { files: vec![(*first).clone()] });
    };
    let named = |number: u32| format!("{prefix}-{number:05}-of-{count:05}.gguf");
    let files = (1..=count).map(|number| {
        let path = named(number);
        let found = models.iter().find(|entry| entry.path == path);
        found.map(|entry| (*entry).clone()).ok_or_else(|| {
            format!(
                "{} is one of {count} parts, but {path} is missing; the repository has {}",
                first.path,
                there()
            )
        })
    });
    Ok(ModelFiles { files: files.collect::<Result<_, _>>()? })
}

fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    name.ends_with(".gguf") && !OTHERS.iter().any(|other| name.contains(other))
}

/// True if `quant` is a whole word of `path`. `Q4_K` does not match `Q4_K_M`.
fn is_of(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_lowercase(), quant.to_lowercase());
    let is_word =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    path.match_indices(&quant).any(|(at, _)| {
        !is_word(path[..at].chars().next_back()) && !is_word(path[at + quant.len()..].chars().next())
    })
}

/// Splits `NAME-00002-of-00003.gguf` into `NAME`, 2 and 3.
fn part(path: &str) -> Option<(&str, u32, u32)> {
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, at) = rest.rsplit_once('-')?;
    let (at, count) = (number(at)?, number(count)?);
    (1..=count).contains(&at).then_some((prefix, at, count))
}

/// Lists `entries` for an error message, with the parts of a split model as one entry.
fn words(entries: &[&HubFile]) -> String {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        match part(&entry.path) {
            Some((_, 1, count)) => names.push(format!("{} ({count} parts)", entry.path)),
            Some(_) => {}
            None => names.push(entry.path.clone()),
        }
    }
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    match (names.is_empty(), more) {
        (true, _) => "no files".to_string(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(paths: &[&str]) -> Vec<HubFile> {
        paths.iter().map(|path| HubFile { path: path.to_string(), size: None, sha256: None }).collect()
    }

    fn paths(choice: &ModelFiles) -> Vec<&str> {
        choice.files.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        let all = entries(&[
            "README.md",
            "m-IQ4_XS.gguf",
            "m-Q4_K_L.gguf",
            "m-Q4_K_M.gguf",
            "m-UD-Q4_K_M.gguf",
            "m.Q8_0.gguf",
            "mmproj-Q4_K_M.gguf",
            "m-Q6_K-00001-of-00002.gguf",
            "m-Q6_K-00002-of-00002.gguf",
            "BF16/m-BF16.gguf",
        ]);
        let cases: [(Option<&str>, &[&str]); 9] = [
            (None, &["m-Q4_K_M.gguf"]),
            (Some("Q4_K_M"), &["m-Q4_K_M.gguf"]),
            (Some("ud-q4_k_m"), &["m-UD-Q4_K_M.gguf"]),
            (Some("q8_0"), &["m.Q8_0.gguf"]),
            (Some("iq4_xs"), &["m-IQ4_XS.gguf"]),
            (Some("Q6_K"), &["m-Q6_K-00001-of-00002.gguf", "m-Q6_K-00002-of-00002.gguf"]),
            (Some("bf16"), &["BF16/m-BF16.gguf"]),
            (Some("BF16/m-BF16.gguf"), &["BF16/m-BF16.gguf"]),
            (
                Some("m-Q6_K-00002-of-00002.gguf"),
                &["m-Q6_K-00001-of-00002.gguf", "m-Q6_K-00002-of-00002.gguf"],
            ),
        ];
        for (wanted, expected) in cases {
            let choice = choose(&all, wanted).unwrap_or_else(|why| panic!("{wanted:?}: {why}"));
            assert_eq!(paths(&choice), expected, "{wanted:?}");
        }
        let why = choose(&all, Some("Q4_K")).expect_err("it is no word of any");
        assert!(why.contains("the repository has no Q4_K; it has m.Q8_0.gguf"), "{why}");
        assert!(why.contains("m-Q6_K-00001-of-00002.gguf (2 parts)") && !why.contains("mmproj"), "{why}");
    }

    #[test]
    fn without_the_default_it_is_the_first() {
        let all = entries(&["m-Q8_0.gguf", "m-Q2_K.gguf"]);
        assert_eq!(paths(&choose(&all, None).expect("one")), ["m-Q2_K.gguf"]);
    }

    #[test]
    fn what_is_missing_is_told() {
        let why =
            choose(&entries(&["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"]), None).expect_err("a part");
        assert!(why.contains("a-00002-of-00003.gguf is missing"), "{why}");
        let why = choose(&entries(&["model.safetensors"]), None).expect_err("no model");
        assert!(why.contains("no GGUF model; it has model.safetensors"), "{why}");
        let why = choose(&[], None).expect_err("nothing");
        assert!(why.contains("it has no files"), "{why}");
        // Invalid part numbers.
        for name in ["a-00000-of-00000.gguf", "a-99999-of-00001.gguf", "a--of-.gguf", "-of-.gguf", ".gguf"] {
            assert_eq!(paths(&choose(&entries(&[name]), None).expect("a file")), [name]);
        }
        assert!(choose(&entries(&["a-00001-of-99999.gguf"]), None).is_err());
    }
}
