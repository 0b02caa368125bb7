//! Snapshots in the format of `fixtures/roots`: a machine's readings in one readable text.
//!
//! ```text
//! # a comment
//! arch x86_64
//! brand Some CPU @ 3.00GHz                        name, stored in leaves 0x80000002 to 0x80000004
//! xcr0 0x7
//! cpuid 0x1 0 0x000506e3 0x00100800 0x7ffafbbf 0xbfebfbff
//! file /sys/devices/system/cpu/online = 0-3       a file of one line
//! file /proc/meminfo                              a file of several lines
//! | MemTotal:       16316412 kB
//! | MemAvailable:   12345678 kB
//! for c in 0-1                                    repeats up to `end`; `{…}` is evaluated from left to right
//!   file /sys/devices/system/cpu/cpu{c}/topology/core_cpus_list = {c},{c+2}
//! end
//! nvidia-smi                                      output of the program, if the program exists
//! | NVIDIA GeForce RTX 4060 Ti, 8.9, 16380, 570.133.07
//! ```

use std::collections::BTreeMap;

use crate::cpuid::Cpuid;
use crate::cpulist;

/// Reason why a snapshot was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of the snapshot: {what}")]
pub struct SnapshotError {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the fault.
    pub what: String,
}

pub(crate) struct Snapshot {
    pub arch: String,
    pub cpuid: Option<Cpuid>,
    /// Files by absolute path, with their content.
    pub files: BTreeMap<String, String>,
    pub nvidia_smi: Option<String>,
}

pub(crate) fn parse(text: &str) -> Result<Snapshot, SnapshotError> {
    let lines: Vec<(usize, &str)> =
        text.lines().map(str::trim).enumerate().map(|(at, line)| (at + 1, line)).collect();
    let mut reader = SnapshotReader::default();
    let mut rest = lines.as_slice();
    while let Some((&(number, line), after)) = rest.split_first() {
        rest = after;
        let fail = |what: String| SnapshotError { line: number, what };
        let Some(header) = line.strip_prefix("for ") else {
            reader.line(line).map_err(fail)?;
            continue;
        };
        let (name, values) =
            header.split_once(" in ").ok_or_else(|| fail("expected `for NAME in LIST`".into()))?;
        let values = cpulist::parse(values).map_err(fail)?;
        let end = rest
            .iter()
            .position(|&(_, line)| line == "end")
            .ok_or_else(|| fail("no `end` follows".into()))?;
        for value in values {
            for &(number, line) in &rest[..end] {
                let fail = |what: String| SnapshotError { line: number, what };
                let line = expand(line, name, value).map_err(fail)?;
                reader.line(&line).map_err(fail)?;
            }
        }
        rest = &rest[end + 1..];
    }
    reader.finish().map_err(|what| SnapshotError { line: 1, what })
}

/// Item to which the `|` lines are appended.
#[derive(Default)]
enum Open {
    #[default]
    Nothing,
    File(String),
    NvidiaSmi,
}

#[derive(Default)]
struct SnapshotReader {
    arch: Option<String>,
    leaves: BTreeMap<(u32, u32), [u32; 4]>,
    xcr0: u64,
    files: BTreeMap<String, String>,
    nvidia_smi: Option<String>,
    open: Open,
}

impl SnapshotReader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(content) = line.strip_prefix('|') {
            let content = content.strip_prefix(' ').unwrap_or(content);
            let text = match &self.open {
                Open::Nothing => {
                    return Err(
                        "a content line (`|`) must follow a `file PATH` or `nvidia-smi` line".to_string()
                    );
                }
                Open::File(path) => self.files.entry(path.clone()).or_default(),
                Open::NvidiaSmi => self.nvidia_smi.get_or_insert_default(),
            };
            text.push_str(content);
            text.push('\n');
            return Ok(());
        }
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        self.open = Open::Nothing;
        match word {
            "arch" => self.arch = Some(rest.to_string()),
            "xcr0" => self.xcr0 = number(rest)?,
            "cpuid" => {
                let numbers = rest.split_whitespace().map(number).collect::<Result<Vec<_>, _>>()?;
                let small = |number: &u64| {
                    u32::try_from(*number).map_err(|_| format!("{number:#x} does not fit into 32 bits"))
                };
                let numbers = numbers.iter().map(small).collect::<Result<Vec<_>, _>>()?;
                let [leaf, subleaf, eax, ebx, ecx, edx] = numbers[..] else {
                    return Err("expected `cpuid LEAF SUBLEAF EAX EBX ECX EDX`".to_string());
                };
                self.leaves.insert((leaf, subleaf), [eax, ebx, ecx, edx]);
            }
            "brand" => self.brand(rest)?,
            // For an empty file, the space after `=` was trimmed together with the line end.
            "file" => match rest.split_once(" = ").or_else(|| Some((rest.strip_suffix(" =")?, ""))) {
                Some((path, content)) => {
                    self.files.insert(path.to_string(), format!("{content}\n"));
                }
                None => {
                    self.files.insert(rest.to_string(), String::new());
                    self.open = Open::File(rest.to_string());
                }
            },
            "nvidia-smi" => {
                self.nvidia_smi = Some(String::new());
                self.open = Open::NvidiaSmi;
            }
            _ => return Err(format!("unknown keyword {word:?}")),
        }
        Ok(())
    }

    fn brand(&mut self, name: &str) -> Result<(), String> {
        let mut bytes = [0; 48];
        bytes
            .get_mut(..name.len())
            .filter(|_| name.len() < 48)
            .ok_or("a CPU's name has at most 47 bytes")?
            .copy_from_slice(name.as_bytes());
        let (words, _) = bytes.as_chunks::<4>();
        let registers: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (leaves, _) = registers.as_chunks::<4>();
        self.leaves.extend((0x8000_0002..).map(|leaf| (leaf, 0)).zip(leaves.iter().copied()));
        Ok(())
    }

    fn finish(self) -> Result<Snapshot, String> {
        let arch = self.arch.ok_or("no line sets `arch`")?;
        let cpuid = (!self.leaves.is_empty()).then(|| Cpuid::recorded(self.leaves, self.xcr0));
        Ok(Snapshot { arch, cpuid, files: self.files, nvidia_smi: self.nvidia_smi })
    }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is not a number"))
}

/// Replaces every `{…}` in `line` with its value.
fn expand(line: &str, name: &str, value: u32) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('{') {
        let (formula, after) = after.split_once('}').ok_or("a { has no closing }")?;
        out.push_str(before);
        out.push_str(&evaluate(formula, name, value)?.to_string());
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Evaluates `c/8*8+7`, strictly from left to right.
fn evaluate(formula: &str, name: &str, value: u32) -> Result<u32, String> {
    let operand = |text: &str| match text {
        text if text == name => Ok(value),
        text => text.parse::<u32>().map_err(|_| format!("{text:?} is neither a number nor {name}")),
    };
    let is_operator = |letter: char| "+-*/%".contains(letter);
    let mut rest = formula;
    let mut result: Option<u32> = None;
    let mut operator = '+';
    loop {
        let end = rest.find(is_operator).unwrap_or(rest.len());
        let right = operand(rest[..end].trim())?;
        let left = result.unwrap_or(0);
        let next = match operator {
            '+' => left.checked_add(right),
            '-' => left.checked_sub(right),
            '*' => left.checked_mul(right),
            '/' => left.checked_div(right),
            _ => left.checked_rem(right),
        };
        result = Some(next.ok_or_else(|| format!("{{{formula}}} is out of range"))?);
        match rest[end..].chars().next() {
            Some(letter) => {
                operator = letter;
                rest = &rest[end + 1..];
            }
            None => return Ok(result.unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_count_from_left_to_right() {
        let cases =
            [("7", 7), ("c", 13), ("c+64", 77), ("c/8*8", 8), ("c/8*8+7", 15), ("c%2", 1), ("c * 2 - 1", 25)];
        for (formula, expected) in cases {
            assert_eq!(evaluate(formula, "c", 13), Ok(expected), "{formula}");
        }
        for wrong in ["", "d", "c+", "c/0", "c-14", "4294967295+c", "1.5"] {
            assert!(evaluate(wrong, "c", 13).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn loops_write_files_and_add_lines() {
        let text = "arch x\nfile /a\nfor c in 0-1\n| n{c} {c+1}\nend\nfor c in 2,4\nfile /b{c} = {c}\nend\n";
        let files = parse(text).map(|snapshot| snapshot.files).unwrap_or_default();
        let expected = [("/a", "n0 1\nn1 2\n"), ("/b2", "2\n"), ("/b4", "4\n")];
        assert_eq!(files, expected.map(|(path, text)| (path.to_string(), text.to_string())).into());
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let cases = [
            ("", 1, "arch"),
            ("arch x\nwhat is this", 2, "unknown keyword"),
            ("arch x\n| lost", 2, "must follow a `file PATH`"),
            ("arch x\ncpuid 1 2 3", 2, "expected"),
            ("arch x\ncpuid 1 0 0 0 0 0x100000000", 2, "32 bits"),
            ("arch x\nxcr0 seven", 2, "not a number"),
            ("arch x\nfor c in 0-1\nfile /a = {c}\n", 2, "no `end`"),
            ("arch x\nfor c\nend", 2, "expected"),
            ("arch x\nfor c in 1-\nend", 2, "CPU number"),
            ("arch x\nfor c in 0-1\n\nfile /a = {c\nend", 4, "a { has no closing }"),
            ("arch x\nbrand 123456789012345678901234567890123456789012345678", 2, "47 bytes"),
        ];
        for (text, line, word) in cases {
            match parse(text) {
                Err(error) => assert!(error.line == line && error.what.contains(word), "{text:?}: {error}"),
                Ok(_) => panic!("{text:?} was taken"),
            }
        }
    }
}
