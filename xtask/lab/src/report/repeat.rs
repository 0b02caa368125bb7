//! Section with the commands that repeat all measurements.

use std::collections::{BTreeMap, BTreeSet};

use build_info::{BuildInfo, OperationRow};
use report::Block;

use super::inputs::Inputs;
use super::rows::TestRow;

/// Returns the commands that repeat the builds, the measurements of these builds, and this page. Each command appears
/// once, without folders.
pub fn blocks(inputs: &Inputs) -> Vec<Block> {
    let mut commands: Vec<String> = inputs.builds.iter().map(build).collect();
    commands.extend((!inputs.rooflines.is_empty()).then(|| "anneal bench --roofline".to_string()));
    commands.extend(inputs.comparisons.iter().map(|(_, comparison)| comparison.provenance.command.clone()));
    commands.extend(inputs.servers.iter().map(|(_, served)| served.provenance.command.clone()));
    commands.extend(bench(&inputs.rows));
    commands.extend(operations(&inputs.operations));
    commands.extend(inputs.tunings.iter().map(|entry| {
        let objective = entry["key"]["objective"].as_str().unwrap_or("chat");
        format!("anneal tune -m MODEL.gguf --for {}", quoted(objective))
    }));
    let others = inputs.others.iter().filter_map(|(_, other)| other.value()["command"].as_str());
    commands.extend(others.map(str::to_string));
    let files = inputs.files.iter().filter_map(|file| file.file_name());
    let files: Vec<String> = files.map(|name| quoted(&name.to_string_lossy())).collect();
    commands.push(format!("cargo xtask report {}", files.join(" ")));
    let mut seen = BTreeSet::new();
    commands.retain(|command| !command.is_empty() && seen.insert(command.clone()));
    vec![Block::Commands(commands)]
}

fn build(info: &BuildInfo) -> String {
    let profile = quoted(&info.profile);
    match (&info.pgo, &info.bolt) {
        (Some(_), Some(_)) => format!("cargo xtask pgo --profile {profile} --bolt"),
        (Some(_), None) => format!("cargo xtask pgo --profile {profile}"),
        (None, Some(_)) => format!("cargo xtask bolt --profile {profile}"),
        (None, None) => format!("cargo xtask build --profile {profile}"),
    }
}

/// Settings that are flags of `anneal bench`, with the flags.
const FLAGS: [(&str, &str); 9] = [
    ("batch", "-b"),
    ("ubatch", "-ub"),
    ("K", "-ctk"),
    ("V", "-ctv"),
    ("flash attention", "-fa"),
    ("load mode", "-lm"),
    ("poll", "--poll"),
    ("repack", "--repack"),
    ("prefill threads", "-tb"),
];

/// Properties shared by rows of one command: model, repetitions, path, true if several builds were interleaved, and
/// flags.
type Group<'a> = (&'a str, usize, bool, bool, String);

/// Returns one command for all rows of a model with the same repetitions, path and flags.
fn bench(rows: &[TestRow]) -> Vec<String> {
    let all: Vec<&TestRow> = rows.iter().collect();
    let mut groups: BTreeMap<Group<'_>, Vec<&TestRow>> = BTreeMap::new();
    for row in rows {
        let group =
            (row.model.as_str(), row.samples, row.end_to_end, !row.build().is_empty(), flags(row, &all));
        groups.entry(group).or_default().push(row);
    }
    let command = |((model, samples, end_to_end, turns, flags), rows): (Group<'_>, Vec<&TestRow>)| {
        let mut builds: Vec<&str> = Vec::new();
        rows.iter().map(|row| row.build()).for_each(|build| {
            if !builds.contains(&build) {
                builds.push(build);
            }
        });
        let program = match turns {
            true => format!("cargo xtask bench --builds {}", base::shell_quote(&builds.join(","))),
            false => "anneal bench".to_string(),
        };
        let apart = |row: &&&TestRow| row.case.0 == 0 || row.case.1 == 0;
        let prompts = listed(rows.iter().filter(apart).map(|row| row.case.0).filter(|n| *n > 0).collect());
        let generated = listed(rows.iter().filter(apart).map(|row| row.case.1).filter(|n| *n > 0).collect());
        let pairs: BTreeSet<(u64, u64)> =
            rows.iter().filter(|row| !apart(row)).map(|row| (row.case.0, row.case.1)).collect();
        let pairs: String = pairs.iter().map(|(prompt, answer)| format!(" --pg {prompt},{answer}")).collect();
        let depths = listed(rows.iter().map(|row| row.case.2).collect());
        let depth = if depths == "0" { String::new() } else { format!(" -d {depths}") };
        let threads = listed(rows.iter().map(|row| row.threads).collect());
        let path = if end_to_end { " --end-to-end" } else { "" };
        format!(
            "{program} -m {} -p {prompts} -n {generated}{pairs}{depth} -t {threads}{flags} -r {}{path} -o jsonl",
            quoted(&format!("{model}.gguf")),
            samples.max(1)
        )
    };
    groups.into_iter().map(command).collect()
}

/// Returns one command for all rows of a model with the same kernels, number of threads and repetitions.
fn operations(rows: &[OperationRow]) -> Vec<String> {
    let mut groups: BTreeMap<_, Vec<&OperationRow>> = BTreeMap::new();
    for row in rows {
        let model = row.model_filename.as_deref().unwrap_or("MODEL.gguf");
        groups.entry((model, &row.kernels, row.n_threads, row.samples)).or_default().push(row);
    }
    let command = |((model, kernels, threads, samples), rows): (_, Vec<&OperationRow>)| {
        let list = |field: fn(&OperationRow) -> Option<u32>| {
            listed(rows.iter().filter_map(|row| field(row)).map(u64::from).collect())
        };
        let lengths =
            |field: fn(&OperationRow) -> Option<u32>| list(field).trim_start_matches("0,").to_string();
        let option = |flag: &str, value: Option<String>| {
            value.map_or(String::new(), |value| format!(" {flag} {}", quoted(&value)))
        };
        format!(
            "anneal bench --ops -m {} -p {} -n {} -d {}{}{}{} -o jsonl",
            quoted(str::rsplit(model, '/').next().unwrap_or(model)),
            lengths(|row| row.n_prompt),
            lengths(|row| row.n_gen),
            list(|row| row.n_depth),
            option("-t", Option::<u32>::map(threads, |threads| threads.to_string())),
            option("--kernels", Option::<String>::clone(kernels)),
            option("-r", Option::<u32>::map(samples, |samples| samples.to_string())),
        )
    };
    groups.into_iter().map(command).collect()
}

/// Returns a list of numbers for a flag; `0` if there are none.
fn listed(values: BTreeSet<u64>) -> String {
    let words: Vec<String> = values.iter().map(u64::to_string).collect();
    if words.is_empty() { "0".to_string() } else { words.join(",") }
}

/// Returns the flags for the settings of `row` that differ between rows. Settings that all rows share are assumed to
/// be defaults.
fn flags(row: &TestRow, all: &[&TestRow]) -> String {
    let differing = FLAGS.iter().filter_map(|(name, flag)| Some((flag, row.differing(name, all)?)));
    // By default, prefill uses as many threads as decode.
    let named = differing.filter(|(flag, value)| **flag != "-tb" || *value != row.threads.to_string());
    let word = |flag: &str, value: &str| match (flag, value) {
        ("-fa", "-1") => "auto".to_string(),
        ("-fa", "0") => "off".to_string(),
        ("-fa", "1") => "on".to_string(),
        _ => quoted(value),
    };
    named.map(|(flag, value)| format!(" {flag} {}", word(flag, value))).collect()
}

/// Quotes a word for a shell. A word that cannot be quoted, for example because it contains a NUL, becomes `''`.
fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| "''".to_string(), std::borrow::Cow::into_owned)
}
