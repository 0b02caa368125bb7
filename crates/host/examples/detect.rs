//! Prints this machine, or the machine of a snapshot, as JSON, with the time of the detection.

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let root = match std::env::args().nth(1) {
        None => host::Root::live(),
        Some(path) => {
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
            match text.and_then(|text| host::Root::from_snapshot(&text).map_err(|error| error.to_string())) {
                Ok(root) => root,
                Err(error) => {
                    eprintln!("cannot read {path}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    };
    let start = Instant::now();
    let detected = host::detect(&root);
    eprintln!("read in {:.2?}", start.elapsed());
    for warning in &detected.warnings {
        eprintln!("warning: {warning}");
    }
    match serde_json::to_string_pretty(&detected.host) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("cannot write JSON: {error}"),
    }
    ExitCode::SUCCESS
}
