//! Result on one page: verdict, reasons and checks.

use std::fmt;

use build::ui;
use build_info::words::count;

use super::Record;
use super::verdict::{Check, CheckState};

/// Width of a page in columns.
const WIDTH: usize = 80;

/// Record, formatted for users.
pub struct Page<'a>(pub &'a Record);

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0;
        writeln!(f, "{}", record.verdict.map_or("not finished".to_string(), |verdict| verdict.to_string()))?;
        write!(f, "{}\n{}", Reasons(&record.reasons), Evidence(record))
    }
}

/// Reasons of a verdict, one per item of a list.
pub struct Reasons<'a>(pub &'a [String]);

impl fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Further lines of an error are a compiler's output.
        let mut first_lines = self.0.iter().map(|reason| reason.lines().next().unwrap_or_default());
        first_lines.try_for_each(|reason| write_wrapped(f, "  - ", reason))
    }
}

/// Builds, machine and checks of a record, without its verdict.
pub struct Evidence<'a>(pub &'a Record);

impl fmt::Display for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0;
        for (side, about) in ["A", "B"].iter().zip(&record.subjects) {
            let flags =
                if about.flags.is_empty() { String::new() } else { format!(" {}", about.flags.join(" ")) };
            let with =
                about.build.compiler.as_deref().map_or(String::new(), |compiler| format!(", {compiler}"));
            write_wrapped(f, &format!("{side:<9}"), &format!("{}{flags}{with}", about.build.name))?;
        }
        write_wrapped(f, "model    ", &record.model)?;
        write_wrapped(f, "machine  ", &record.provenance.machine)?;
        if !record.speed.is_empty() {
            // Measuring a phase ends as soon as its ratio is precise enough.
            let sizes = record.speed.iter().map(|speed| {
                let (phase, tokens, pairs) = (speed.phase, speed.tokens, speed.laps[0].len());
                format!("{phase} of {tokens} tokens x {} in {}", speed.repetitions, count(pairs, "pair"))
            });
            let text = format!("{}, [95 % interval]", sizes.collect::<Vec<_>>().join(", "));
            write_wrapped(f, "samples  ", &text)?;
        }
        writeln!(f)?;
        let rows = record.checks.iter().map(|check| {
            vec![
                check.name.clone(),
                check.a.clone(),
                check.b.clone(),
                check.said.clone(),
                mark(check.state).to_string(),
            ]
        });
        let mut table = ui::columns(&["check", "A", "B", "B against A", ""], rows);
        table.set_width(WIDTH as u16);
        table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
        // Remove the spaces that pad the last column.
        for line in table.to_string().lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn mark(state: CheckState) -> &'static str {
    match state {
        CheckState::Passed => "ok",
        CheckState::Told => "",
        CheckState::Failed => "FAILED",
        CheckState::Unclear => "?",
    }
}

/// Writes `text` after `lead` in lines that fit the page. Further lines are indented by the width of `lead`.
fn write_wrapped(f: &mut fmt::Formatter<'_>, lead: &str, text: &str) -> fmt::Result {
    let indent = " ".repeat(lead.chars().count());
    let mut line = lead.to_string();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{}", line.trim_end())?;
            (line, empty) = (indent.clone(), true);
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}

impl Record {
    /// Returns the check called `name`.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

#[cfg(test)]
mod tests {
    use build::compare::Provenance;

    use super::*;
    use crate::validate::{Verdict, tests_record};

    #[test]
    fn a_page_fits_a_terminal_and_says_the_reasons_first() {
        let mut record: Record = tests_record();
        let long = "a reason with many words ".repeat(12);
        let failed = Check::new("decode", CheckState::Failed, "0.912 [0.905, 0.921] slower".to_string())
            .with("1234 t/s".to_string(), "1126 t/s".to_string())
            .because(long.clone());
        let told = Check::new("peak memory", CheckState::Told, "1.002".to_string())
            .with("1023.4 MiB".to_string(), "1025.1 MiB".to_string());
        record.checks = vec![told, failed];
        record.verdict = Some(Verdict::of(&record.checks));
        record.reasons = Verdict::reasons(&record.checks);
        record.provenance = Provenance { machine: "a machine of many words ".repeat(6), ..record.provenance };
        let text = Page(&record).to_string();
        assert!(text.starts_with("not accepted\n  - a reason"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().count() < 40);
        assert!(text.contains("0.912 [0.905, 0.921] slower") && text.contains("FAILED"), "{text}");
    }
}
