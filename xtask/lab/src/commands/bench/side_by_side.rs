//! `bench --builds LIST …`: llama-bench's tests on several builds, interleaved.

use anyhow::{Context, Result, bail};
use build::compare::candidate::MeasuredProgram;
use build::compare::once::{self, Fields as Row};
use build::compare::{CandidateBuild, Ratio};
use build::process;
use build::ui::Global;
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build_info::bench_row::test_name;
use clap::ValueEnum;
use measure::schedule;
use serde_json::Value;

/// Options of `bench` without a subcommand.
#[derive(Debug, clap::Args)]
// clap names a group after its struct. `bench` flattens this struct into another `Args`, so the name must differ.
#[group(id = "side-by-side")]
pub struct Args {
    /// Builds to compare; the first is the baseline. Each is a profile, a build folder, a program (`anneal` or
    /// `llama-bench`), or LABEL=PATH
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "upstream-default,native")]
    builds: Vec<String>,
    /// Number of rounds; in each round, every build runs all tests once
    #[arg(short, long, value_name = "N", default_value_t = measure::FEWEST_PAIRS as u32, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Output format: md, json, jsonl, csv or sql
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Arguments of `anneal bench`, whose values may be lists, such as -m FILE -p 512 -n 128 -d 0,4096 -t 1,2; may be
    /// mixed with --builds, -r, -o, -q, -v and --json
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    tests: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Json,
    Jsonl,
    Csv,
    Sql,
}

impl Args {
    /// Takes `--builds`, `-r`, `-o` and the global flags out of the engine's arguments, because llama-bench users
    /// write flags in any position.
    fn sorted(mut self) -> Result<(Self, Global)> {
        let (mut tests, mut global) = (Vec::new(), Global::default());
        let mut words = std::mem::take(&mut self.tests).into_iter();
        while let Some(word) = words.next() {
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name.to_string(), Some(value.to_string())),
                None => (word.clone(), None),
            };
            let mut value = || joined.clone().or_else(|| words.next()).unwrap_or_default();
            let wrong =
                |value: &str, use_: &str| Err(base::exit::usage(format!("{name} {value}: use {use_}")));
            match name.as_str() {
                "--builds" => match value() {
                    list if list.split(',').any(str::is_empty) => return wrong(&list, "builds, as in a,b"),
                    list => self.builds = list.split(',').map(str::to_string).collect(),
                },
                "-r" | "--repetitions" => {
                    let text = value();
                    match text.parse().ok().filter(|rounds| *rounds > 0) {
                        Some(rounds) => self.repetitions = rounds,
                        None => return wrong(&text, "1 or more rounds"),
                    }
                }
                "-o" | "--output" => {
                    let text = value();
                    match Format::from_str(&text, true) {
                        Ok(format) => self.output = format,
                        Err(_) => return wrong(&text, "md, json, jsonl, csv or sql"),
                    }
                }
                _ => match word.as_str() {
                    "-q" | "--quiet" => global.quiet = true,
                    "-v" | "--verbose" => global.verbose = 1,
                    "--json" => global.json = true,
                    _ => tests.push(word),
                },
            }
        }
        self.tests = tests;
        Ok((self, global))
    }
}

/// Runs the tests and prints the results.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let (args, global) = args.sorted()?;
    let ui = &ui.with(&global)?;
    let workspace = Workspace::find()?;
    if let Some(word) = args.tests.first().filter(|word| !word.starts_with('-')) {
        return Err(base::exit::usage(format!(
            "bench has no subcommand {word:?}\nhint: subcommands: compare, switches, overhead, serve, \
             first-minutes, build; arguments of `anneal bench` begin with a hyphen"
        )));
    }
    let builds: Vec<CandidateBuild> =
        args.builds.iter().map(|text| CandidateBuild::named(&workspace, text)).collect::<Result<_>>()?;
    if let Some((number, build)) =
        builds.iter().enumerate().find(|(n, build)| builds[..*n].iter().any(|other| other.name == build.name))
    {
        let name = &build.name;
        return Err(base::exit::usage(format!(
            "--builds: build {} has the same name as an earlier build: {name}\nhint: give it a label: \
             LABEL=PATH",
            number + 1
        )));
    }
    measure::conditions::look().iter().for_each(|condition| ui.warn(condition));
    let mut rounds: Vec<Vec<Vec<Row>>> = vec![Vec::new(); builds.len()];
    let mut progress = ui.progress("bench");
    let mut failure = None;
    for done in 0..args.repetitions as usize {
        match round(done, &builds, &args.tests).and_then(|rows| fitting(rows, &rounds, &builds)) {
            Ok(rows) => rounds.iter_mut().zip(rows).for_each(|(all, rows)| all.push(rows)),
            Err(error) if done == 0 => return Err(error),
            // Print the completed rounds despite the error.
            Err(error) => {
                let rounds = args.repetitions;
                failure = Some(error.context(format!(
                    "stopped after {done} of {rounds} rounds; their results are printed above"
                )));
                break;
            }
        }
        progress.step(done as u64 + 1, u64::from(args.repetitions), "rounds");
    }
    progress.finish();
    let all: Vec<Vec<Row>> =
        rounds.iter().zip(&builds).map(|(rounds, build)| together(rounds, &build.name)).collect();
    // Sort by test, so that the builds of each test are on adjacent lines.
    let tests = all.iter().map(Vec::len).max().unwrap_or(0);
    let rows: Vec<Row> =
        (0..tests).flat_map(|test| all.iter().filter_map(move |rows| rows.get(test).cloned())).collect();
    print(&rows, args.output, &all, &builds, ui)?;
    failure.map_or(Ok(()), Err)
}

/// Runs every build once and returns the rows of each.
fn round(number: usize, builds: &[CandidateBuild], tests: &[String]) -> Result<Vec<Vec<Row>>> {
    schedule::turns(number, builds.len(), |number| {
        process::check_interrupted()?;
        once::rows(&builds[number], tests)
    })
}

/// Returns the rows of a round in the order of the first build's rows, if every build ran the same number of tests as
/// before. llama-bench and `anneal bench` run combinations of listed options in different orders.
fn fitting(
    rows: Vec<Vec<Row>>,
    rounds: &[Vec<Vec<Row>>],
    builds: &[CandidateBuild],
) -> Result<Vec<Vec<Row>>> {
    for ((rows, earlier), build) in rows.iter().zip(rounds).zip(builds) {
        if let Some(first) = earlier.first().filter(|first| first.len() != rows.len()) {
            bail!("{} ran {} tests in one round and {} in another", build.name, first.len(), rows.len());
        }
    }
    let first = rows[0].clone();
    let keys: Vec<&str> = ["n_prompt", "n_gen", "n_depth"].into_iter().chain(varied(&first)).collect();
    rows.into_iter().zip(builds).map(|(rows, build)| in_order_of(&first, rows, &keys, &build.name)).collect()
}

/// Returns `rows` of `build` in the order of `first`. Two rows match if all `keys` that both rows contain are equal.
fn in_order_of(first: &[Row], mut rows: Vec<Row>, keys: &[&str], build: &str) -> Result<Vec<Row>> {
    let same = |a: &Row, b: &Row| {
        keys.iter().all(|key| match (a.get(*key), b.get(*key)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        })
    };
    let mut ordered = Vec::with_capacity(rows.len());
    for row in first {
        // A build that cannot run a test has no row for that test.
        if rows.is_empty() {
            break;
        }
        let at = rows.iter().position(|other| same(row, other)).with_context(|| {
            let of = |key: &&str| row.get(*key).map(|value| format!("{key} {value}"));
            let test: Vec<String> = keys.iter().filter_map(of).collect();
            format!("{build} ran no test with {}, but the first build did", test.join(", "))
        })?;
        ordered.push(rows.remove(at));
    }
    ordered.append(&mut rows);
    Ok(ordered)
}

/// Returns one row for each test of `build`, with the build's name first. A row contains the samples of all rounds,
/// and the median of values that are reported once per round.
fn together(rounds: &[Vec<Row>], build: &str) -> Vec<Row> {
    let tests = rounds.first().map_or(0, Vec::len);
    (0..tests)
        .map(|test| {
            let rows: Vec<&Row> = rounds.iter().map(|round| &round[test]).collect();
            let mut sum = Row::new();
            sum.insert("build".to_string(), build.into());
            sum.extend(rows[0].iter().map(|(key, value)| (key.clone(), summed(key, value, &rows))));
            for (key, of) in [("ns", "samples_ns"), ("ts", "samples_ts")] {
                let samples = numbers(&sum, of);
                if samples.is_empty() {
                    continue;
                }
                let mean = mean(&samples);
                let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
                let deviation = (squares / (samples.len() as f64 - 1.0).max(1.0)).sqrt();
                sum.insert(format!("avg_{key}"), mean.into());
                sum.insert(format!("stddev_{key}"), deviation.into());
            }
            sum
        })
        .collect()
}

/// Returns one field, combined over all rounds; `first` is the field's value in the first round.
fn summed(key: &str, first: &Value, rows: &[&Row]) -> Value {
    let values = || rows.iter().filter_map(|row| row.get(key));
    let once = key.starts_with("tpot_") || ["load_ns", "time_to_first_token_ns", "roof_share"].contains(&key);
    if key.starts_with("samples_") && first.is_array() {
        return values().filter_map(Value::as_array).flatten().cloned().collect();
    }
    let told: Vec<f64> = values().filter_map(Value::as_f64).collect();
    match once && !told.is_empty() {
        // Keep integers, such as nanoseconds, as integers.
        true if first.is_u64() => (measure::median(&told).round() as u64).into(),
        true => measure::median(&told).into(),
        false => first.clone(),
    }
}

fn numbers(row: &Row, key: &str) -> Vec<f64> {
    row.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn print(rows: &[Row], format: Format, all: &[Vec<Row>], builds: &[CandidateBuild], ui: &Ui) -> Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(rows)?,
        Format::Jsonl => rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?.join("\n"),
        Format::Csv => csv(rows),
        Format::Sql => sql(rows),
        Format::Md => return table(all, builds, rows, ui),
    };
    ui.result(&rows, text)
}

/// Formats rows as CSV with fields in double quotes, as llama-bench does. Samples have no column.
fn csv(rows: &[Row]) -> String {
    let columns = columns(rows);
    if columns.is_empty() {
        return String::new();
    }
    let cell = |value: Option<&Value>| {
        let text = match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        format!("\"{}\"", text.replace('"', "\"\""))
    };
    let mut lines = vec![columns.join(",")];
    lines.extend(
        rows.iter().map(|row| columns.iter().map(|key| cell(row.get(*key))).collect::<Vec<_>>().join(",")),
    );
    lines.join("\n")
}

/// Formats rows as an SQL table with one row per test, as llama-bench does. Quotes in strings are doubled.
fn sql(rows: &[Row]) -> String {
    let columns = columns(rows);
    let kind =
        |column: &&str| match rows.iter().filter_map(|row| row.get(*column)).find(|value| !value.is_null()) {
            Some(Value::Number(number)) if number.is_f64() => "REAL",
            Some(Value::Number(_) | Value::Bool(_)) => "INTEGER",
            _ => "TEXT",
        };
    let literal = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "NULL".to_string(),
        Some(Value::Bool(on)) => u8::from(*on).to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::String(text)) => format!("'{}'", text.replace('\0', "").replace('\'', "''")),
        Some(other) => format!("'{}'", other.to_string().replace('\'', "''")),
    };
    let kinds: Vec<String> = columns.iter().map(|column| format!("  {column} {}", kind(column))).collect();
    let mut lines = vec![format!("CREATE TABLE IF NOT EXISTS llama_bench (\n{}\n);\n", kinds.join(",\n"))];
    lines.extend(rows.iter().map(|row| {
        let values: Vec<String> = columns.iter().map(|column| literal(row.get(*column))).collect();
        format!("INSERT INTO llama_bench ({}) VALUES ({});", columns.join(", "), values.join(", "))
    }));
    if columns.is_empty() { String::new() } else { lines.join("\n") }
}

/// Returns the names of the fields that are not lists.
fn columns(rows: &[Row]) -> Vec<&str> {
    let first = rows.first().into_iter().flatten();
    first.filter(|(_, value)| !value.is_array()).map(|(key, _)| key.as_str()).collect()
}

fn table(all: &[Vec<Row>], builds: &[CandidateBuild], rows: &[Row], ui: &Ui) -> Result<()> {
    let varied = varied(&all[0]);
    let mut lines = Vec::new();
    for test in 0..all.iter().map(Vec::len).max().unwrap_or(0) {
        for (build, own) in builds.iter().zip(all) {
            let Some(row) = own.get(test) else { continue };
            let samples = numbers(row, "samples_ts");
            let baseline = all[0].get(test).map(|row| numbers(row, "samples_ts")).unwrap_or_default();
            let ratios: Vec<f64> = samples.iter().zip(&baseline).map(|(own, other)| own / other).collect();
            let ratio = (build.name != builds[0].name).then(|| Ratio::of(&ratios));
            let deviation = row.get("stddev_ts").and_then(Value::as_f64).unwrap_or(0.0);
            let mut line = vec![title(row, build.program)?];
            line.extend(varied.iter().map(|key| short(row.get(*key))));
            line.extend([
                build.name.clone(),
                format!("{:.2} ± {deviation:.2}", mean(&samples)),
                ratio.map_or(String::new(), |ratio| match ratio.pairs < measure::FEWEST_PAIRS {
                    true => format!("{:.3}, too few rounds for an interval", ratio.median),
                    false => ratio.to_string(),
                }),
            ]);
            lines.push(line);
        }
    }
    let against = format!("against {} [95 % interval]", builds[0].name);
    let header: Vec<&str> =
        ["test"].into_iter().chain(varied).chain(["build", "t/s", against.as_str()]).collect();
    ui.result(&rows, ui::columns(&header, lines))
}

/// Returns the names of the settings that differ between rows and therefore identify the rows. The number of threads
/// is always included.
fn varied(rows: &[Row]) -> Vec<&str> {
    const RESULTS: [&str; 5] = ["avg_", "stddev_", "samples_", "tpot_", "anneal_"];
    const NAMED: [&str; 8] =
        ["n_prompt", "n_gen", "n_depth", "test_time", "build", "load_ns", "roof_share", "roof_bound"];
    let Some(first) = rows.first() else { return Vec::new() };
    let is_setting = |key: &str| {
        !NAMED.contains(&key)
            && !key.contains("peak")
            && !key.starts_with("time_")
            && !RESULTS.iter().any(|prefix| key.starts_with(prefix))
    };
    let differs = |key: &str| rows.iter().any(|row| row.get(key) != first.get(key));
    first
        .keys()
        .map(String::as_str)
        .filter(|key| *key == "n_threads" || (is_setting(key) && differs(key)))
        .collect()
}

/// Formats a setting as a table cell; a file is shown by its name.
fn short(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.rsplit('/').next().unwrap_or(text).to_string(),
        Some(value) => value.to_string(),
    }
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Returns llama-bench's name of a test, such as `pp512` or `tg128 @ d4096`, with the file name if there are several
/// files.
fn title(row: &Row, program: MeasuredProgram) -> Result<String> {
    let field = |key: &str| row.get(key).and_then(Value::as_u64).and_then(|size| u32::try_from(size).ok());
    let size = |key: &str| field(key).with_context(|| format!("{program:?} did not report {key}"));
    Ok(test_name(size("n_prompt")?, size("n_gen")?, field("n_depth").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn samples_of_all_rounds_make_one_row() {
        let mut rounds = Vec::new();
        for speed in [10.0, 20.0, 40.0] {
            let text = format!(
                r#"{{"n_prompt": 8, "n_gen": 0, "samples_ns": [1], "samples_ts": [{speed}], "avg_ts": {speed},
                    "samples_time_to_first_token_ns": [{speed}], "tpot_p50_ns": {speed}, "load_ns": {speed:.0},
                    "roof_share": null}}"#
            );
            rounds.push(vec![row(&text)]);
        }
        let all = together(&rounds, "native");
        assert_eq!(numbers(&all[0], "samples_ts"), [10.0, 20.0, 40.0]);
        assert_eq!(all[0]["avg_ts"].as_f64(), Some(70.0 / 3.0));
        assert!(all[0]["stddev_ts"].as_f64().is_some_and(|deviation| (deviation - 15.275).abs() < 0.001));
        // Values that are reported once per round combine all rounds.
        assert_eq!(numbers(&all[0], "samples_time_to_first_token_ns"), [10.0, 20.0, 40.0]);
        assert_eq!((&all[0]["tpot_p50_ns"], &all[0]["load_ns"]), (&Value::from(20), &Value::from(20)));
        assert_eq!(all[0]["roof_share"], Value::Null);
        assert_eq!(all[0].get("build"), Some(&Value::from("native")));
    }

    #[test]
    fn rows_of_builds_are_paired_by_what_they_are_of() {
        let row = |threads: u32, poll: u32| {
            row(&format!(r#"{{"n_prompt": 8, "n_threads": {threads}, "poll": {poll}}}"#))
        };
        let ours = [row(1, 0), row(2, 0), row(1, 50), row(2, 50)];
        let theirs = vec![row(1, 0), row(1, 50), row(2, 0), row(2, 50)];
        let keys = ["n_prompt", "n_threads", "poll"];
        assert_eq!(in_order_of(&ours, theirs, &keys, "x").unwrap(), ours);
        let error = in_order_of(&ours, vec![row(1, 0), row(4, 0)], &keys, "x").unwrap_err();
        assert!(error.to_string().contains("x ran no test with n_prompt 8, n_threads 2, poll 0"), "{error}");
        // A setting that only one of the two programs reports is not a difference.
        let silent: Row = serde_json::from_str(r#"{"n_prompt": 8, "n_threads": 1}"#).unwrap();
        assert!(in_order_of(&ours[..1], vec![silent], &keys, "x").is_ok());
    }

    #[test]
    fn rounds_and_format_are_taken_wherever_they_stand() {
        let args = |tests: &[&str]| Args {
            builds: Vec::new(),
            repetitions: 5,
            output: Format::Md,
            tests: tests.iter().map(|word| word.to_string()).collect(),
        };
        let (sorted, global) =
            args(&["-m", "a.gguf", "-r", "3", "-q", "-p", "8", "--output=csv", "--json"]).sorted().unwrap();
        assert_eq!((sorted.repetitions, sorted.output), (3, Format::Csv));
        assert_eq!(sorted.tests, ["-m", "a.gguf", "-p", "8"]);
        assert!(global.quiet && global.json && global.verbose == 0);
        let contrary = Ui::new(&Global { verbose: 1, ..Global::default() }).with(&global).unwrap_err();
        assert_eq!(base::exit::code_of(&contrary), base::exit::USAGE, "{contrary}");
        let (sorted, _) = args(&["-m", "a.gguf", "--builds", "a,b", "-o", "sql"]).sorted().unwrap();
        assert_eq!((sorted.builds, sorted.output), (vec!["a".to_string(), "b".to_string()], Format::Sql));
        assert_eq!(sorted.tests, ["-m", "a.gguf"]);
        for wrong in [&["-r"][..], &["-r", "0"], &["-o", "xml"], &["--output="], &["--builds"]] {
            let error = args(wrong).sorted().unwrap_err();
            assert_eq!(base::exit::code_of(&error), base::exit::USAGE, "{wrong:?}: {error}");
        }
    }

    #[test]
    fn what_tells_rows_apart_has_a_column() {
        let rows = [("f16", 1, 7.0), ("q8_0", 1, 8.0)].map(|(kind, threads, speed)| {
            row(&format!(
                r#"{{"n_prompt": 8, "n_gen": 0, "type_k": "{kind}", "n_threads": {threads}, "n_batch": 64,
                    "avg_ts": {speed}, "test_time": "{speed}", "load_ns": {speed}}}"#
            ))
        });
        assert_eq!(varied(&rows), ["n_threads", "type_k"]);
        assert!(varied(&[]).is_empty());
        assert_eq!(short(Some(&Value::from("/a/b.gguf"))), "b.gguf");
    }

    #[test]
    fn tests_have_llama_benchs_names_and_csv_its_quotes() {
        for (text, name) in [
            (r#"{"n_prompt": 512, "n_gen": 0}"#, "pp512"),
            (r#"{"n_prompt": 0, "n_gen": 64, "n_depth": 4096}"#, "tg64 @ d4096"),
            (r#"{"n_prompt": 8, "n_gen": 4, "n_depth": 0}"#, "pp8+tg4"),
        ] {
            assert_eq!(title(&row(text), MeasuredProgram::Anneal).unwrap(), name);
        }
        assert!(title(&row("{}"), MeasuredProgram::Anneal).is_err());
        let rows = [row(r#"{"build": "a\"b", "n_gen": 4, "samples_ns": [1], "x": null}"#)];
        assert_eq!(csv(&rows), "build,n_gen,x\n\"a\"\"b\",\"4\",\"\"");
        let rows = [row(r#"{"build": "it's", "n_gen": 4, "samples_ns": [1], "avg_ts": 1.5, "x": null}"#)];
        assert_eq!(
            sql(&rows),
            "CREATE TABLE IF NOT EXISTS llama_bench (\n  avg_ts REAL,\n  build TEXT,\n  n_gen INTEGER,\n  x TEXT\n);\n\n\
             INSERT INTO llama_bench (avg_ts, build, n_gen, x) VALUES (1.5, 'it''s', 4, NULL);"
        );
        assert_eq!((csv(&[]), sql(&[])), (String::new(), String::new()));
    }
}
