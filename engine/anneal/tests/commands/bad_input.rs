//! Tests of bad input. Every input must cause a helpful message and the documented exit code, without a panic or data
//! loss.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{ANNEAL, anneal, parts, tiny};

/// Runs `anneal run` on `model`, which must fail without a panic. Returns exit code and stderr.
fn refused(model: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut all: Vec<&OsStr> = ["run", "-n", "4", "-m"].map(OsStr::new).to_vec();
    all.push(model.as_os_str());
    if !arguments.contains(&"-p") {
        all.extend(["-p", "hello"].map(OsStr::new));
    }
    all.extend(arguments.iter().map(OsStr::new));
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(stdout, "", "{all:?} printed text");
    let told = stderr.lines().find(|line| !line.starts_with("warning: ")).unwrap_or_default();
    assert!(told.starts_with("error: ") && !stderr.contains("panicked"), "{all:?}: {stderr}");
    (code, stderr)
}

#[test]
fn files_that_are_no_models() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a file");
        path
    };
    let whole = fs::read(tiny()).expect("the tiny model");
    let mut cases = vec![
        (folder.path().join("missing.gguf"), "no such file"),
        (folder.path().to_path_buf(), "folder"),
        (write("empty.gguf", b""), "empty"),
        (write("text.gguf", b"<!DOCTYPE html>"), "not a GGUF file"),
    ];
    // The file is truncated within the magic, the header, the metadata, the vocabulary, the tensor list and the data.
    for part in [2, 12, 60, 4_000, whole.len() / 10, whole.len() / 2, whole.len() - 1] {
        cases.push((write(&format!("cut at {part}.gguf"), &whole[..part]), ""));
    }
    for (path, words) in cases {
        let (code, stderr) = refused(&path, &[]);
        assert_eq!(code, Some(1), "{}: {stderr}", path.display());
        assert!(stderr.contains(words), "{}: {stderr}", path.display());
        assert!(stderr.contains(&*path.to_string_lossy()), "{} is not named: {stderr}", path.display());
    }
}

#[test]
fn a_model_larger_than_memory_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("huge.gguf");
    write_sparse_model(&path, 4 << 40, None); // ext4 ends at 16 TiB
    let start = Instant::now();
    let (code, stderr) = refused(&path, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("memory") && stderr.contains("--load-mode mmap"), "{stderr}");
    // Reading 4 TiB would take an hour.
    assert!(start.elapsed() < Duration::from_secs(300), "it took {:?}", start.elapsed());
}

#[test]
fn every_part_of_a_split_model_counts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = folder.path().join("m-00001-of-00002.gguf");
    write_sparse_model(&first, 1 << 20, Some((0, 2)));
    let (code, stderr) = refused(&first, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("m-00002-of-00002.gguf is missing\nhint: put all parts"), "{stderr}");

    let second = folder.path().join("m-00002-of-00002.gguf");
    write_sparse_model(&second, 4 << 40, Some((1, 2)));
    let (code, stderr) = refused(&first, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("needs 4 TiB of memory for its weights"), "{stderr}");

    // Neither file may be overwritten.
    for output in [&first, &second] {
        let before = std::fs::metadata(output).expect("there").len();
        let arguments = [Path::new("quantize"), &first, output, Path::new("F16")];
        let (code, _, stderr) = crate::common::parts(&crate::common::anneal(arguments));
        assert!(code == Some(2) && stderr.contains("is both input and output"), "{code:?}: {stderr}");
        assert_eq!(std::fs::metadata(output).expect("there").len(), before);
    }
}

#[test]
fn wrong_usage_moves_no_cursor() {
    for arguments in [&["bench", "--\u{1b}[2J"][..], &["tune", "--for", "\u{1b}[31mred"], &["\u{9b}31m"]] {
        let (code, _, stderr) = crate::common::parts(&crate::common::anneal(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(!stderr.contains(['\u{1b}', '\u{9b}']) && stderr.lines().count() > 1, "{stderr:?}");
    }
}

/// Writes a sparse file with the header of a model, or of a part of a model, and one tensor of `bytes` bytes.
fn write_sparse_model(path: &Path, bytes: u64, part: Option<(u16, u16)>) {
    let mut header = Vec::new();
    let string = |header: &mut Vec<u8>, text: &str| {
        header.extend((text.len() as u64).to_le_bytes());
        header.extend(text.as_bytes());
    };
    header.extend(b"GGUF");
    header.extend(3u32.to_le_bytes());
    header.extend(1u64.to_le_bytes()); // tensors
    header.extend((if part.is_some() { 3u64 } else { 1 }).to_le_bytes()); // keys
    string(&mut header, "general.architecture");
    header.extend(8u32.to_le_bytes()); // string
    string(&mut header, "llama");
    for (key, value) in part.iter().flat_map(|(no, count)| [("split.no", no), ("split.count", count)]) {
        string(&mut header, key);
        header.extend(2u32.to_le_bytes()); // unsigned, 16 bits
        header.extend(value.to_le_bytes());
    }
    string(&mut header, "token_embd.weight");
    header.extend(2u32.to_le_bytes()); // dimensions
    header.extend((1u64 << 12).to_le_bytes());
    header.extend((bytes >> 13).to_le_bytes());
    header.extend(1u32.to_le_bytes()); // F16
    header.extend(0u64.to_le_bytes()); // offset
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = File::create(path).expect("a file");
    file.write_all(&header).expect("a header");
    file.set_len(header.len() as u64 + bytes).expect("a sparse file");
}

#[test]
fn prompts_that_do_not_fit() {
    let long = "steel ".repeat(400);
    let (code, stderr) = refused(tiny(), &["-p", &long, "-c", "256"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the context holds only 256") && stderr.contains("-c "), "{stderr}");
    // The number that the message suggests must work.
    let words: Vec<&str> = stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "-c").expect("the error mentions -c");
    let output =
        anneal(["run", "-m", tiny().to_str().expect("UTF-8"), "-p", &long, "-n", "1", "-c", words[at + 1]]);
    assert_eq!(parts(&output).0, Some(0), "-c {} did not do: {:?}", words[at + 1], parts(&output).2);
    let (code, stderr) = refused(tiny(), &["-c", "200000000"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("context") && stderr.contains("lower -c"), "{stderr}");
}

#[test]
fn flags_that_cannot_be_meant_are_wrong_usage() {
    let model = tiny().to_str().expect("UTF-8");
    let cases: [(&[&str], &str); 29] = [
        (&["run", "-m", model, "-p", "a", "-t", "0"], "1 to 512 threads"),
        (&["run", "-m", model, "-p", "a", "-t", "10000"], "1 to 512 threads"),
        (&["run", "-m", model, "-p", "a", "-tb", "10000"], "1 to 512 threads"),
        // The model file does not exist, which shows that the settings are rejected before the model is loaded.
        (&["run", "-m", "none.gguf", "-p", "a", "-fa", "off", "-ctv", "q8_0"], "remove -fa off"),
        (&["bench", "-m", "none.gguf", "-fa", "on,off", "-ctv", "f16,q4_0"], "remove -fa off"),
        (&["run", "-m", model, "-p", "a", "-t", "-3"], "'-3' for '--threads <N>': use 1 to 512"),
        (&["run", "-m", model, "-p", "a", "-tb", "-1"], "'-1' for '--threads-batch <N>': use 1 to 512"),
        (&["run", "-m", model, "-p", "a", "-n", "-5"], "or -1 for no limit"),
        (&["run", "-m", model, "-p", "a", "-c", "-3"], "0 for the model's training context length"),
        (&["run", "-m", model, "-p", "a", "-ub", "-3"], "1 to 1048576"),
        (&["run", "-m", model, "-p", "a", "--poll", "-1"], "0 (sleep) to 100 (spin)"),
        (&["run", "-m", model, "-p", "a", "--seed", "-1"], "omit it for a random seed"),
        (&["run", "-m", model, "-p", "a", "--top-p", "-1"], "use 0 to 1"),
        (&["bench", "-m", model, "-n", "-5"], "'-5' for '--n-gen <LIST>': use 0 or more"),
        (&["info", "-t", "many"], "use 1 to 512"),
        (&["run", "-m", model, "-p", "a", "-b", "0"], "-b 0: use 1 to 1048576 tokens"),
        (&["run", "-m", model, "-p", "a", "-ctk", "q3_k"], "q8_0"),
        (&["run", "-m", model, "-p", "a", "--load-mode", "fast"], "direct_io"),
        (&["run", "-m", model, "-p", "a", "--cpu-list", "0-"], "0-3,8"),
        (&["run", "-m", model, "-p", "a", "--cpu-list", "511"], "this process may only use the CPUs"),
        (
            &["run", "-m", model, "-p", "a", "--cpu-list", "900"],
            "CPUs 0 to 511\nhint: choose smaller numbers",
        ),
        (&["run", "-m", model, "-p", "a", "--numa", "node"], "use node:N, interleave or spread"),
        (&["run", "-m", model, "-p", "a", "--numa", "node:900"], "no node 900\nhint: choose from the nodes"),
        (&["run", "-m", model, "-p", "a", "-C", "0xFFFF"], "\nhint: use a list of CPUs instead of a mask"),
        (&["quantize", model, model, "q8_0"], "is both input and output"),
        (&["run", "-p", "a"], "--model"),
        (&["bench", "-m", model, "-r", "0"], "0"),
        (&["bench", "-m", model, "-o", "xml"], "jsonl"),
        (&["quantize", model, "out.gguf", "Q9_X"], "Q4_K_M"),
    ];
    for (arguments, words) in cases {
        let (code, _, stderr) = parts(&anneal(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_context_that_llama_cpp_makes_larger_is_told_once() {
    let model = tiny().to_str().expect("UTF-8");
    let cases: [(&[&str], Option<&str>); 4] = [
        (&["run", "-m", model, "-p", "a", "-n", "1", "--json", "-c", "8"], Some("\"context\":256")),
        (&["info", "--explain", "-c", "300"], Some("ctx-size        512 ")),
        (&["run", "-m", model, "-p", "a", "-n", "1", "--json", "-c", "512"], None),
        (&["run", "-m", model, "-p", "a", "-n", "1"], None),
    ];
    for (arguments, shown) in cases {
        let (code, stdout, stderr) = parts(&anneal(arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        let said = stderr.matches("the context size must be a multiple of 256 tokens").count();
        assert_eq!(said, usize::from(shown.is_some()), "{arguments:?}: {stderr}");
        assert!(stdout.contains(shown.unwrap_or_default()), "{arguments:?}: {stdout}");
    }
}

#[test]
fn no_limit_ends_with_the_context() {
    let model = tiny().to_str().expect("UTF-8");
    let run = ["run", "-m", model, "-p", "a", "-n", "-1", "-c", "256", "--ignore-eos", "--json"];
    let (code, stdout, stderr) = parts(&anneal(run));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("\"stop\":\"context_full\""), "{stdout}");
}

#[test]
fn text_that_is_not_utf8() {
    let wrong = OsStr::from_bytes(b"caf\xe9");
    let (code, _, stderr) =
        parts(&anneal([OsStr::new("run"), OsStr::new("-m"), tiny().as_os_str(), OsStr::new("-p"), wrong]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("UTF-8"), "{stderr}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompt = folder.path().join("latin1.txt");
    fs::write(&prompt, b"caf\xe9").expect("a file");
    let (code, _, stderr) = parts(&anneal([
        OsStr::new("run"),
        OsStr::new("-m"),
        tiny().as_os_str(),
        OsStr::new("-f"),
        prompt.as_os_str(),
    ]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("byte 3") && stderr.contains("iconv"), "{stderr}");

    // A path may contain any bytes.
    let odd = folder.path().join(OsStr::from_bytes(b"m\xff odel.gguf"));
    fs::copy(tiny(), &odd).expect("a copy");
    let run = ["run", "-p", "a", "-n", "1", "-m"].map(OsStr::new);
    let (code, _, stderr) = parts(&anneal(run.into_iter().chain([odd.as_os_str()])));
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn a_bad_build_record_is_a_warning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let executable = folder.path().join("anneal");
    fs::copy(ANNEAL, &executable).expect("a copy");
    let cases = [
        ("{", "damaged"),
        ("", "damaged"),
        (r#"{"schema_version":"9.0"}"#, "schema version 9.0"),
        (r#"{"schema_version":"1.0","optimal_threads":"many"}"#, "damaged"),
    ];
    for (record, words) in cases {
        fs::write(folder.path().join("build_info.json"), record).expect("a record");
        warns_once(&executable, words);
    }
}

#[test]
fn a_build_record_that_is_no_file_is_a_warning() {
    let make_pipe = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
        assert!(made.success());
    };
    let make_folder = |path: &Path| fs::create_dir(path).expect("a folder");
    let make_socket = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).expect("a socket"));
    let make: [fn(&Path); 3] = [make_folder, make_pipe, make_socket];
    for (name, make) in ["folder", "pipe", "socket"].into_iter().zip(make) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let executable = folder.path().join("anneal");
        fs::copy(ANNEAL, &executable).expect("a copy");
        make(&folder.path().join("build_info.json"));
        assert!(warns_once(&executable, "is not a regular file").contains("build_info.json"), "{name}");
    }
}

/// Runs `executable` on the tiny model, which must succeed with one warning that contains `words`. Returns the
/// warning.
fn warns_once(executable: &Path, words: &str) -> String {
    let mut command = Command::new(executable);
    command.args(["run", "-p", "a", "-n", "2", "-m"]).arg(tiny());
    // The copy cannot be run while a process that another test has just forked holds the file open for writing.
    let output = loop {
        match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            output => break output.expect("the executable runs"),
        }
    };
    let (code, stdout, stderr) = parts(&output);
    assert_eq!(code, Some(0), "{words}: {stderr}");
    assert!(!stdout.is_empty());
    let warnings: Vec<&str> = stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains(words), "{words}: {stderr}");
    warnings[0].to_string()
}

#[test]
fn a_quantised_model_is_quantised_again_only_when_asked_twice() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (once, twice) = (folder.path().join("q8.gguf"), folder.path().join("q4.gguf"));
    let quantize = |input: &Path, output: &Path, rest: &[&str]| {
        let files = [OsStr::new("quantize"), input.as_os_str(), output.as_os_str()];
        parts(&anneal(files.into_iter().chain(rest.iter().map(OsStr::new))))
    };
    let (code, _, stderr) = quantize(tiny(), &once, &["q8_0"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, _, stderr) = quantize(&once, &twice, &["q4_0"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("q8_0 tensors") && stderr.contains("--allow-requantize"), "{stderr}");
    assert!(!twice.exists());
    let (code, _, stderr) = quantize(&once, &twice, &["q4_0", "--allow-requantize"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(twice.is_file());
}

#[test]
fn quantize_puts_a_whole_file_in_place_or_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().join("a folder with spaces");
    fs::create_dir(&place).expect("a folder");
    let target = place.join("tiny q8.gguf");
    let quantize = |input: &Path, output: &Path| {
        parts(&anneal([OsStr::new("quantize"), input.as_os_str(), output.as_os_str(), OsStr::new("q8_0")]))
    };
    let (code, _, stderr) = quantize(tiny(), &target);
    assert_eq!(code, Some(0), "{stderr}");
    let good = fs::read(&target).expect("the quantised model");
    assert!(good.len() < fs::metadata(tiny()).map_or(0, |tiny| tiny.len() as usize));
    let run = ["run", "-p", "a", "-n", "2", "-m"].map(OsStr::new);
    assert_eq!(parts(&anneal(run.into_iter().chain([target.as_os_str()]))).0, Some(0));

    // A failure leaves the good file and no other file.
    let broken = folder.path().join("broken.gguf");
    fs::write(&broken, &fs::read(tiny()).expect("the tiny model")[..5_000]).expect("a file");
    assert_eq!(quantize(&broken, &target).0, Some(1));
    assert!(fs::read(&target).is_ok_and(|now| now == good), "a failure changed the file");
    assert_eq!(fs::read_dir(&place).expect("the folder").count(), 1, "files were left behind");

    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let cases = [
        (tiny().to_path_buf(), socket.clone(), "not a regular file"),
        (tiny().to_path_buf(), place.clone(), "folder"),
        (
            tiny().to_path_buf(),
            folder.path().join("no/such/out.gguf"),
            "does not exist\nhint: create it first",
        ),
        (folder.path().join("missing.gguf"), target.clone(), "no such file"),
        // No user, not even root, can create a file in /proc.
        (tiny().to_path_buf(), "/proc/out.gguf".into(), "/proc/out.gguf"),
    ];
    for (input, output, words) in cases {
        let (code, _, stderr) = quantize(&input, &output);
        assert_eq!(code, Some(1), "{}: {stderr}", output.display());
        assert!(stderr.contains(words), "{}: {stderr}", output.display());
    }
}

#[test]
fn ctrl_c_ends_a_generation_in_order() {
    let mut child = crate::common::command()
        .args(["run", "-p", "a", "-n", "1000000", "-c", "4096", "--ignore-eos", "-m"])
        .arg(tiny())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    // The first text shows that the program is generating.
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("some text");
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(signalled.success());
    let output = child.wait_with_output().expect("it ends");
    let (code, _, stderr) = parts(&output);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("interrupted") && stderr.contains("t/s"), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = crate::common::command()
        .args(["run", "-p", "a", "-n", "2000", "--ignore-eos", "-m"])
        .arg(tiny())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    drop(child.stdout.take());
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
}

#[test]
fn a_process_without_llama_cpp_gets_no_diagnosis() {
    let mut sleep = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = sleep.id().to_string();
    for more in [&[][..], &["--json"]] {
        let (code, stdout, stderr) = parts(&anneal([&["why", &pid, "--seconds", "0.5"], more].concat()));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains("does not run llama.cpp"), "{stderr}");
    }
    sleep.kill().and_then(|()| sleep.wait()).expect("the end of sleep");
}
