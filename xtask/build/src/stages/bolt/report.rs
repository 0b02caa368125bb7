//! Parser of `llvm-bolt`'s output.

use build_info::Bytes;
use build_info::optimized::{Change, Layout};

/// Parser of the output, line by line. Values that the output lacks stay 0, because the wording of the output is not
/// a stable interface.
#[derive(Debug, Default)]
pub struct BoltReader {
    layout: Layout,
    /// Number of tables of counts so far: the first describes the input program, the second the output.
    tables: u32,
}

impl BoltReader {
    /// Parses one line.
    pub fn line(&mut self, line: &str) {
        let layout = &mut self.layout;
        if let Some((count, what)) = line.trim().split_once(" : ") {
            let Ok(count) = count.parse() else { return };
            // The second table appends the change in parentheses.
            match what.split(" (").next().unwrap_or(what) {
                "executed forward branches" => self.tables += 1,
                "taken branches" => note(&mut layout.taken_branches, self.tables, count),
                "executed instructions" => note(&mut layout.instructions, self.tables, count),
                _ => {}
            }
            return;
        }
        let Some(text) = line.trim().strip_prefix("BOLT-INFO: ") else { return };
        let numbers: Vec<u64> = numbers(text).collect();
        match numbers[..] {
            // 1416 out of 9276 functions in the binary (15.3%) have non-empty execution profile
            [hot, all, ..] if text.contains("have non-empty execution profile") => {
                (layout.hot_functions, layout.functions) = (hot, all);
            }
            // basic block reordering modified layout of 919 functions (64.90% of profiled, …)
            [reordered, ..] if text.starts_with("basic block reordering modified layout") => {
                layout.reordered = reordered;
            }
            // ICF folded 73 out of 9549 functions in 5 passes. …
            [folded, ..] if text.starts_with("ICF folded") => layout.folded = folded,
            // splitting separates 485771 hot bytes from 668518 cold bytes (…)
            [hot, cold, ..] if text.starts_with("splitting separates") => {
                (layout.hot_bytes, layout.cold_bytes) = (Bytes(hot), Bytes(cold));
            }
            _ => {}
        }
    }

    /// Returns the collected values.
    pub fn layout(self) -> Layout {
        self.layout
    }
}

fn note(change: &mut Change, tables: u32, count: u64) {
    if tables == 1 {
        change.before = count;
    } else {
        change.after = count;
    }
}

/// Returns the integers in `text` that are separate words.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of llvm-bolt 22.1.8 for the engine.
    const LINES: &str = "\
BOLT-INFO: shared object or position-independent executable detected
BOLT-INFO: 1416 out of 9276 functions in the binary (15.3%) have non-empty execution profile
BOLT-INFO: 28 functions with profile could not be optimized
BOLT-INFO: ICF folded 73 out of 9549 functions in 5 passes. 4 functions had jump tables.
BOLT-INFO: basic block reordering modified layout of 919 functions (64.90% of profiled, 9.70% of total)
BOLT-INFO: splitting separates 485771 hot bytes from 668518 cold bytes (42.08% of split functions is hot).
BOLT-INFO: program-wide dynostats after all optimizations before SCTC and FOP:

            17858592 : executed forward branches
             4209169 : taken forward branches
           305892441 : executed instructions
            27948665 : taken branches

            24105535 : executed forward branches (+35.0%)
              246500 : taken forward branches (-94.1%)
           298318404 : executed instructions (-2.5%)
            23188339 : taken branches (-17.0%)
             9431227 : taken conditional branches (+21.3%)
";

    #[test]
    fn its_words_are_understood_and_silence_is_none() {
        let mut reader = BoltReader::default();
        LINES.lines().for_each(|line| reader.line(line));
        assert_eq!(
            reader.layout(),
            Layout {
                functions: 9276,
                hot_functions: 1416,
                reordered: 919,
                folded: 73,
                hot_bytes: Bytes(485_771),
                cold_bytes: Bytes(668_518),
                taken_branches: Change { before: 27_948_665, after: 23_188_339 },
                instructions: Change { before: 305_892_441, after: 298_318_404 },
            }
        );
        let mut reader = BoltReader::default();
        for line in ["", "BOLT-INFO: ", "x : taken branches", "BOLT-INFO: ICF folded many", "12 : "] {
            reader.line(line);
        }
        assert_eq!(reader.layout(), Layout::default());
    }
}
