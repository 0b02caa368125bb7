//! Chart of a thread sweep: the speed for each number of threads, and the smallest number that reaches the best speed.

use std::fmt::Write;
use std::path::Path;

use build_info::words::printable;
use tune::bench::BenchRecord;

/// Maximum length of a bar, in characters.
const WIDTH: usize = 40;

/// Block characters for zero to seven eighths of a character.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Curves, one per test. The results in a curve differ only in the number of threads.
#[derive(Debug, Default)]
pub struct Curves(Vec<Curve>);

#[derive(Debug)]
struct Curve {
    /// Test, model file and settings.
    of: [String; 3],
    points: Vec<Point>,
}

/// Samples for one number of threads, in tokens per second.
#[derive(Debug)]
struct Point {
    threads: u32,
    samples: Vec<f64>,
}

impl Curves {
    /// Adds a result.
    pub fn add(&mut self, record: &BenchRecord) {
        let settings = record.settings();
        let file = Path::new(record.model_filename()).file_name().unwrap_or_default().to_string_lossy();
        let file = printable(&file);
        let options = format!(
            "-b {} -ub {} -ctk {} -ctv {} -fa {} -lm {} --repack {} --poll {}",
            settings.n_batch.value,
            settings.n_ubatch.value,
            settings.type_k.value,
            settings.type_v.value,
            settings.flash_attention.value,
            settings.load_mode.value,
            if settings.repack.value { "on" } else { "off" },
            settings.poll.value,
        );
        self.put([record.test(), file.into_owned(), options], record.n_threads, record.tokens_per_second());
    }

    fn put(&mut self, of: [String; 3], threads: u32, samples: Vec<f64>) {
        let index = self.0.iter().position(|curve| curve.of == of).unwrap_or_else(|| {
            self.0.push(Curve { of, points: Vec::new() });
            self.0.len() - 1
        });
        let points = &mut self.0[index].points;
        match points.iter_mut().find(|point| point.threads == threads) {
            Some(point) => point.samples.extend(samples),
            None => points.push(Point { threads, samples }),
        }
    }

    /// Draws all curves with more than one number of threads. Lines are indented by four spaces, so Markdown shows them
    /// verbatim.
    pub fn draw(&self) -> String {
        // Model and settings are part of the title only if they differ between curves.
        let differs = |part: usize| self.0.iter().any(|curve| curve.of[part] != self.0[0].of[part]);
        let told = [true, differs(1), differs(2)];
        let mut text = String::new();
        for curve in self.0.iter().filter(|curve| curve.points.len() > 1) {
            let parts = curve.of.iter().zip(told).filter(|(_, told)| *told).map(|(part, _)| part.as_str());
            curve.draw(&parts.collect::<Vec<_>>().join(", "), &mut text);
        }
        text
    }
}

impl Curve {
    fn draw(&self, title: &str, text: &mut String) {
        let mut points: Vec<&Point> = self.points.iter().collect();
        points.sort_by_key(|point| point.threads);
        let best = points.iter().map(|point| point.mean()).fold(0.0, f64::max);
        let knee = knee(&points);
        // Writing into a string cannot fail.
        let _ = writeln!(text, "\n    {title}, t/s over threads");
        for point in &points {
            let mean = point.mean();
            let mark = if Some(point.threads) == knee { " <- knee" } else { "" };
            let _ = writeln!(text, "    {:>4} {:<WIDTH$} {mean:.2}{mark}", point.threads, bar(mean / best));
        }
        let words = match knee {
            None => "knee: unknown, because a single sample does not show the noise; take more samples, for example with -r 5".to_string(),
            Some(1) => "knee: 1 thread; more threads are not measurably faster".to_string(),
            Some(threads) if Some(threads) == points.last().map(|point| point.threads) => {
                format!("knee: {threads} threads, the largest number measured; more threads may be faster")
            }
            Some(threads) => format!("knee: {threads} threads; more threads are not measurably faster"),
        };
        let _ = writeln!(text, "    {words}");
    }
}

impl Point {
    fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// Returns the squared standard error of the mean. `None` for a single sample.
    fn squared_error(&self) -> Option<f64> {
        let n = self.samples.len() as f64;
        let squares: f64 = self.samples.iter().map(|sample| (sample - self.mean()).powi(2)).sum();
        (n > 1.0).then(|| squares / (n - 1.0) / n)
    }
}

/// Returns the smallest number of threads whose mean is close to the best mean: within two standard errors of
/// their difference. Noise alone exceeds this bound in about one case in twenty. `None` if a point has only one
/// sample, which gives no standard error.
fn knee(points: &[&Point]) -> Option<u32> {
    let best = points.iter().max_by(|a, b| a.mean().total_cmp(&b.mean()))?;
    let mut fewest = best.threads;
    for point in points {
        let noise = 2.0 * (point.squared_error()? + best.squared_error()?).sqrt();
        if best.mean() - point.mean() <= noise {
            fewest = fewest.min(point.threads);
        }
    }
    Some(fewest)
}

/// Draws a bar of `share` of the full width, with a resolution of an eighth of a character.
fn bar(share: f64) -> String {
    // If the speed is NaN, `as` converts it to 0.
    let eighths = (share.clamp(0.0, 1.0) * (WIDTH * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(points: &[(u32, &[f64])]) -> Curves {
        let mut curves = Curves::default();
        for (threads, samples) in points {
            let of = ["tg128".to_string(), "m.gguf".to_string(), "-b 1".to_string()];
            curves.put(of, *threads, samples.to_vec());
        }
        curves
    }

    #[test]
    fn the_knee_is_the_fewest_threads_within_the_noise_of_the_best() {
        type Samples<'a> = &'a [(u32, &'a [f64])];
        let cases: [(Samples<'_>, &str); 6] = [
            // Four threads are fastest, and two threads are equally fast within the noise.
            (&[(1, &[10.0, 10.2]), (2, &[19.0, 20.0]), (4, &[19.5, 20.1])], "knee: 2 threads; more"),
            (&[(1, &[10.0, 10.2]), (2, &[19.0, 19.1]), (4, &[29.5, 30.1])], "knee: 4 threads, the largest"),
            // More threads are slower.
            (&[(1, &[10.0, 10.2]), (2, &[19.0, 19.1]), (4, &[9.5, 9.6])], "knee: 2 threads; more"),
            (&[(2, &[10.0, 10.2]), (1, &[10.1, 10.3])], "knee: 1 thread;"),
            (&[(1, &[10.0]), (2, &[20.0])], "knee: unknown"),
            // The result depends neither on the order of the measurements nor on the number of records that contain
            // the samples.
            (&[(2, &[20.0]), (1, &[10.0]), (2, &[20.2]), (1, &[10.2])], "knee: 2 threads, the largest"),
        ];
        for (points, words) in cases {
            let text = curves(points).draw();
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_curve_is_a_picture() {
        let text = curves(&[(1, &[10.0, 10.0]), (2, &[20.0, 20.0])]).draw();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "    tg128, t/s over threads");
        assert_eq!(lines[2], format!("       1 {}{} 10.00", "█".repeat(20), " ".repeat(20)));
        assert_eq!(lines[3], format!("       2 {} 20.00 <- knee", "█".repeat(40)));
        assert!(lines.iter().all(|line| line.is_empty() || line.starts_with("    ")), "{text}");
        assert_eq!(curves(&[(1, &[10.0])]).draw(), "", "one number of threads is no curve");
        assert_eq!(bar(f64::NAN), "");
    }

    #[test]
    fn what_differs_is_told() {
        let mut curves = Curves::default();
        for (file, threads) in [("a.gguf", 1), ("a.gguf", 2), ("b.gguf", 1), ("b.gguf", 2)] {
            curves.put(["pp8".to_string(), file.to_string(), "-b 1".to_string()], threads, vec![1.0]);
        }
        let text = curves.draw();
        assert!(text.contains("pp8, a.gguf, t/s") && text.contains("pp8, b.gguf, t/s"), "{text}");
        assert!(!text.contains("-b 1"), "{text}");
    }
}
