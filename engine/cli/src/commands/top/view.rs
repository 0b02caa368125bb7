//! Layout of the display, for a terminal, a pipe, and the tests.

use std::collections::VecDeque;
use std::time::Instant;

use build_info::Bytes;
use build_info::words::{self, printable};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, Widget};
use server::slot_status::SlotState;
use server::status::{ModelStatus, SlotStatus, Status};

use super::look::{Rates, Seen};
use crate::remote::Failure;

/// Number of past values in the curves.
const HISTORY: usize = 200;

/// Data to display.
pub struct View {
    place: String,
    coloured: bool,
    seen: Option<Seen>,
    /// Error of the last query, if it failed, and the time at which the current series of failures began.
    trouble: Option<(String, Instant)>,
    decode: VecDeque<u64>,
    prefill: VecDeque<u64>,
}

/// Column of the slot table: header, width and cell.
struct Column {
    head: &'static str,
    width: u16,
    /// Order in which columns are dropped if the display is too narrow, highest number first. Columns with 0 are
    /// never dropped.
    spare: u8,
    cell: fn(&SlotView<'_>) -> String,
}

/// Slot with its model.
struct SlotView<'a> {
    model: &'a str,
    slot: &'a SlotStatus,
}

const COLUMNS: [Column; 9] = [
    Column { head: "MODEL", width: 16, spare: 5, cell: |slot| printable(slot.model).into_owned() },
    Column { head: "SLOT", width: 4, spare: 0, cell: |slot| slot.slot.id.to_string() },
    Column { head: "STATE", width: 7, spare: 0, cell: |slot| state(slot.slot.state).to_string() },
    Column { head: "PROMPT", width: 7, spare: 3, cell: |slot| number(slot.slot.prompt_tokens) },
    Column { head: "CACHED", width: 7, spare: 6, cell: |slot| number(slot.slot.cached_tokens) },
    Column { head: "ANSWER", width: 7, spare: 1, cell: |slot| number(slot.slot.generated_tokens) },
    Column { head: "T/S", width: 7, spare: 0, cell: |slot| rate(slot.slot.tokens_per_second) },
    Column { head: "AGE", width: 7, spare: 2, cell: |slot| slot.slot.age_s.map_or(dash(), age) },
    Column { head: "CONTEXT", width: 7, spare: 4, cell: |slot| slot.slot.held_tokens.to_string() },
];

fn dash() -> String {
    "-".to_string()
}

fn number(number: Option<u32>) -> String {
    number.map_or(dash(), |number| number.to_string())
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or(dash(), |rate| format!("{rate:.1}"))
}

fn state(state: SlotState) -> &'static str {
    match state {
        SlotState::Idle => "idle",
        SlotState::Prefill => "prefill",
        SlotState::Decode => "decode",
        SlotState::Waiting => "waiting",
        SlotState::Other => "?",
    }
}

/// Formats a number of seconds with a suitable unit.
fn age(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 60.0 => format!("{seconds:.0} s"),
        seconds if seconds < 3600.0 => format!("{:.0} min", (seconds / 60.0).floor()),
        seconds if seconds < 172_800.0 => format!("{:.0} h", (seconds / 3600.0).floor()),
        seconds => format!("{:.0} d", (seconds / 86_400.0).floor()),
    }
}

/// Formats `part` as a percentage of `whole`; returns a dash if `whole` is 0.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => dash(),
        whole => format!("{:.0} %", part as f64 * 100.0 / whole as f64),
    }
}

impl View {
    /// Creates an empty display for the server at `place`.
    pub fn new(place: String, coloured: bool) -> Self {
        View { place, coloured, seen: None, trouble: None, decode: VecDeque::new(), prefill: VecDeque::new() }
    }

    /// Adds the result of a query.
    pub fn see(&mut self, look: Result<Seen, Failure>) {
        let (decode, prefill) = match look {
            Ok(seen) => {
                let rates = seen.rates;
                self.seen = Some(seen);
                self.trouble = None;
                let rate = |pick: fn(&Rates) -> f64| rates.as_ref().map(|rates| pick(rates).round() as u64);
                (rate(|rates| rates.decode_tokens_per_second), rate(|rates| rates.prefill_tokens_per_second))
            }
            Err(failure) => {
                let since = self.trouble.take().map_or_else(Instant::now, |(_, since)| since);
                self.trouble = Some((words::with_inline_hint(&failure.to_string()), since));
                (Some(0), Some(0))
            }
        };
        for (curve, next) in [(&mut self.decode, decode), (&mut self.prefill, prefill)] {
            curve.extend(next);
            while curve.len() > HISTORY {
                curve.pop_front();
            }
        }
    }

    /// Returns the number of lines that the whole display needs at `width`.
    pub fn height(&self, width: u16) -> u16 {
        let slots: usize =
            self.seen.iter().flat_map(|seen| &seen.status.models).map(|model| model.slots.len()).sum();
        (self.head(width).len() + 2 + 1 + 1 + slots) as u16
    }

    /// Draws as much of the display as fits into `area`.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let mut head = self.head(area.width);
        // In a small area, a few slots are more useful than all the other numbers.
        let slots = self.seen.iter().flat_map(|seen| &seen.status.models).map(|model| model.slots.len());
        let others = 3 + (slots.sum::<usize>() + 1).min(4);
        head.truncate((area.height as usize).saturating_sub(others).max(2));
        let mut rest = area;
        let mut take = |height: u16| {
            let height = height.min(rest.height);
            let taken = Rect { height, ..rest };
            rest = Rect { y: rest.y + height, height: rest.height - height, ..rest };
            taken
        };
        let lines = head.len() as u16;
        Paragraph::new(head).render(take(lines), buffer);
        let Some(seen) = &self.seen else { return };
        let rates = seen.rates.filter(|_| self.trouble.is_none());
        self.curve(
            "decode ",
            rates.map(|rates| rates.decode_tokens_per_second),
            &self.decode,
            take(1),
            buffer,
        );
        self.curve(
            "prefill",
            rates.map(|rates| rates.prefill_tokens_per_second),
            &self.prefill,
            take(1),
            buffer,
        );
        take(1);
        self.slots(&seen.status, rest, buffer);
    }

    fn style(&self, colour: Color) -> Style {
        if self.coloured { Style::new().fg(colour) } else { Style::new() }
    }

    /// Returns the lines above the curves.
    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let place = printable(&self.place).into_owned();
        let mut lines = Vec::new();
        let Some(seen) = &self.seen else {
            lines.push(Line::from(vec![Span::styled("anneal top  ", bold), Span::raw(place)]));
            match &self.trouble {
                Some((why, since)) => lines.extend(self.troubled(why, *since, width)),
                None => lines.push(Line::from("connecting…")),
            }
            return lines;
        };
        let status = &seen.status;
        let up = format!("up {}", age(status.uptime_s as f64));
        let title = [
            place,
            up,
            format!("anneal {}", printable(&status.version)),
            printable(&status.status).into_owned(),
        ];
        lines.extend(wrapped(&title, width).into_iter().map(|line| line.style(bold)));
        if let Some((why, since)) = &self.trouble {
            lines.extend(self.troubled(why, *since, width));
        }
        for model in &status.models {
            lines.extend(wrapped(&about(model), width));
        }
        lines.extend(wrapped(&facts(status, seen.rates), width));
        lines
    }

    /// Returns the lines about a failed query.
    fn troubled(&self, why: &str, since: Instant, width: u16) -> Vec<Line<'static>> {
        let text = format!("{} (for {}; trying again)", printable(why), age(since.elapsed().as_secs_f64()));
        let words: Vec<String> = text.split(' ').map(str::to_string).collect();
        let style = self.style(Color::Red).add_modifier(Modifier::BOLD);
        joined(&words, " ", width).into_iter().map(|line| line.style(style)).collect()
    }

    /// Draws a rate and its history.
    fn curve(&self, name: &str, now: Option<f64>, past: &VecDeque<u64>, area: Rect, buffer: &mut Buffer) {
        let text = format!("{name} {:>9} t/s ", rate(now));
        let taken = (text.len() as u16).min(area.width);
        Paragraph::new(text).render(area, buffer);
        let room = Rect { x: area.x + taken, width: area.width - taken, ..area };
        if room.height == 0 || past.len() < 2 {
            return;
        }
        let shown = past.len().min(room.width as usize);
        let data: Vec<u64> = past.iter().skip(past.len() - shown).copied().collect();
        Sparkline::default().data(data).style(self.style(Color::Cyan)).render(room, buffer);
    }

    fn slots(&self, status: &Status, area: Rect, buffer: &mut Buffer) {
        let all = status
            .models
            .iter()
            .flat_map(|model| model.slots.iter().map(|slot| SlotView { model: &model.id, slot }));
        let mut all: Vec<SlotView<'_>> = all.collect();
        let rows = area.height.saturating_sub(1) as usize;
        let hidden = if all.len() > rows {
            // Busy slots come first, and a line states the number of hidden slots.
            all.sort_by_key(|slot| slot.slot.state == SlotState::Idle);
            all.len() - rows.saturating_sub(1)
        } else {
            0
        };
        let shown = all.len() - hidden.min(all.len());
        let columns = fitting(area.width, status.models.len() > 1);
        let widths = columns.iter().map(|column| Constraint::Length(column.width));
        let head = columns.iter().map(|column| cell(column, column.head.to_string()));
        let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
        let rows = all.iter().take(shown).map(|slot| {
            let cells = columns.iter().map(|column| cell(column, (column.cell)(slot)));
            Row::new(cells).style(self.state_style(slot.slot.state))
        });
        Table::new(rows, widths).header(head).column_spacing(1).render(area, buffer);
        if hidden > 0 && area.height > 0 {
            let busy = all.iter().skip(shown).filter(|slot| slot.slot.state != SlotState::Idle).count();
            let line = format!("… {hidden} more, {busy} of them busy");
            let last = Rect { y: area.bottom() - 1, height: 1, ..area };
            Paragraph::new(line).render(last, buffer);
        }
    }

    fn state_style(&self, state: SlotState) -> Style {
        match state {
            SlotState::Decode => self.style(Color::Green),
            SlotState::Prefill => self.style(Color::Yellow),
            SlotState::Waiting => self.style(Color::Magenta),
            SlotState::Idle | SlotState::Other if self.coloured => Style::new().add_modifier(Modifier::DIM),
            SlotState::Idle | SlotState::Other => Style::new(),
        }
    }
}

/// Aligns names to the left and numbers to the right.
fn cell(column: &Column, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if matches!(column.head, "MODEL" | "STATE") { line } else { line.right_aligned() })
}

/// Returns the columns that fit into `width`.
fn fitting(width: u16, with_models: bool) -> Vec<&'static Column> {
    let mut columns: Vec<&Column> =
        COLUMNS.iter().filter(|column| with_models || column.head != "MODEL").collect();
    let needed = |columns: &[&Column]| columns.iter().map(|column| column.width + 1).sum::<u16>() - 1;
    while needed(&columns) > width {
        let Some(spare) = columns.iter().map(|column| column.spare).max().filter(|spare| *spare > 0) else {
            break;
        };
        columns.retain(|column| column.spare != spare);
    }
    columns
}

/// Describes a model.
fn about(model: &ModelStatus) -> Vec<String> {
    // Tokens shared by several slots count once for each slot, so the sum may exceed the context.
    let held: u64 = model.slots.iter().map(|slot| u64::from(slot.held_tokens)).sum();
    let held = held.min(u64::from(model.context));
    let mut about = vec![printable(&model.id).into_owned()];
    if !model.description.is_empty() {
        about.push(printable(&model.description).into_owned());
    }
    if model.context == 0 && !model.state.is_empty() {
        about.push(printable(&model.state).into_owned());
        return about;
    }
    about.push(format!("context {held} of {} ({})", model.context, share(held, u64::from(model.context))));
    about
}

/// Returns the server's numbers as text.
fn facts(status: &Status, rates: Option<Rates>) -> Vec<String> {
    let slots = || status.models.iter().flat_map(|model| &model.slots);
    let busy = slots().filter(|slot| slot.state != SlotState::Idle).count();
    let (queue, totals, threads) = (&status.queue, &status.totals, &status.threads);
    let mut facts = vec![
        format!("slots {busy} of {} busy", slots().count()),
        format!("queue {} of {}", queue.waiting, queue.bound),
        format!("connections {}", status.connections),
        format!("answered {}", totals.requests),
    ];
    if queue.embeddings_waiting > 0 {
        facts.push(format!("embeddings waiting {}", queue.embeddings_waiting));
    }
    if totals.refused > 0 {
        facts.push(format!("refused {}", totals.refused));
    }
    facts.push(format!("cache hits {} of prompts", share(totals.cached_tokens, totals.prompt_tokens)));
    if totals.disk_lookups > 0 {
        facts.push(format!("disk hits {} of {}", totals.disk_hits, totals.disk_lookups));
    }
    facts.push(format!("threads {} decode, {} prefill", threads.decode, threads.prefill));
    if let Some(rates) = rates {
        facts.push(format!("cpu {:.0} of {} %", rates.cpus * 100.0, status.cpu.cores * 100));
    }
    let memory = Bytes(status.memory.resident_bytes);
    facts.push(match status.memory.limit_bytes {
        0 => format!("memory {memory}"),
        limit => format!("memory {memory} of {}", Bytes(limit)),
    });
    if let Some(held_back) = rates.and_then(|rates| rates.throttled_periods) {
        facts.push(format!("throttled {held_back} periods"));
    }
    facts
}

/// Joins `parts` with spaces, on as many lines as needed.
fn wrapped(parts: &[String], width: u16) -> Vec<Line<'static>> {
    joined(parts, "   ", width)
}

fn joined(parts: &[String], between: &str, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line)
                if Line::from(line.as_str()).width() + between.len() + part.chars().count()
                    <= width as usize =>
            {
                line.push_str(between);
                line.push_str(part);
            }
            _ => lines.push(part.clone()),
        }
    }
    lines.into_iter().map(Line::from).collect()
}

#[cfg(test)]
mod tests {
    use server::status::{CpuStatus, MemoryStatus, QueueStatus, ThreadStatus, Totals};

    use super::*;

    fn status(slots: u32) -> Status {
        let slot = |id| match id {
            0 => SlotStatus {
                id,
                state: SlotState::Decode,
                held_tokens: 1431,
                prompt_tokens: Some(1200),
                cached_tokens: Some(800),
                generated_tokens: Some(231),
                age_s: Some(75.0),
                tokens_per_second: Some(12.34),
            },
            1 => SlotStatus {
                id,
                state: SlotState::Prefill,
                held_tokens: 512,
                prompt_tokens: Some(3000),
                cached_tokens: Some(0),
                generated_tokens: Some(0),
                age_s: Some(0.5),
                tokens_per_second: None,
            },
            _ => SlotStatus { id, ..SlotStatus::default() },
        };
        Status {
            status: "ok".to_string(),
            version: "0.1.0".to_string(),
            llama_version: "1".to_string(),
            pid: 7,
            uptime_s: 190,
            models: vec![ModelStatus {
                id: "qwen".to_string(),
                state: "loaded".to_string(),
                description: "qwen2 1.5B Q4_K - Medium".to_string(),
                context: 4096,
                slots: (0..slots).map(slot).collect(),
            }],
            queue: QueueStatus { waiting: 2, bound: 64, embeddings_waiting: 0 },
            connections: 5,
            totals: Totals { requests: 123, cached_tokens: 45, prompt_tokens: 100, ..Totals::default() },
            threads: ThreadStatus { decode: 2, prefill: 2, process: 11 },
            memory: MemoryStatus { resident_bytes: 3 << 29, limit_bytes: 24 << 30 },
            cpu: CpuStatus { seconds: 1.0, cores: 2, throttled_periods: Some(9) },
        }
    }

    fn rates() -> Rates {
        Rates {
            seconds: 1.0,
            prefill_tokens_per_second: 812.0,
            decode_tokens_per_second: 61.3,
            cpus: 1.98,
            throttled_periods: Some(0),
        }
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        view.draw(buffer.area, &mut buffer);
        super::super::rows(&buffer).join("\n")
    }

    fn view(slots: u32) -> View {
        let mut view = View::new("/run/a.sock".to_string(), true);
        view.see(Ok(Seen { status: status(slots), rates: None }));
        view.see(Ok(Seen { status: status(slots), rates: Some(rates()) }));
        view.see(Ok(Seen { status: status(slots), rates: Some(rates()) }));
        view
    }

    #[test]
    fn all_of_it_is_seen_in_eighty_columns() {
        let text = drawn(&view(4), 80, 24);
        let expected = "\
/run/a.sock   up 3 min   anneal 0.1.0   ok
qwen   qwen2 1.5B Q4_K - Medium   context 1943 of 4096 (47 %)
slots 2 of 4 busy   queue 2 of 64   connections 5   answered 123
cache hits 45 % of prompts   threads 2 decode, 2 prefill   cpu 198 of 200 %
memory 1.5 GiB of 24 GiB   throttled 0 periods
decode       61.3 t/s ██
prefill     812.0 t/s ██

SLOT STATE    PROMPT  CACHED  ANSWER     T/S     AGE CONTEXT
   0 decode     1200     800     231    12.3   1 min    1431
   1 prefill    3000       0       0       -   0.5 s     512
   2 idle          -       -       -       -       -       0
   3 idle          -       -       -       -       -       0";
        assert_eq!(text.trim_end(), expected);
    }

    #[test]
    fn little_room_shows_what_matters() {
        let view = view(64);
        for (width, height) in [(80, 24), (40, 24), (30, 12), (20, 10), (10, 4), (1, 1)] {
            let text = drawn(&view, width, height);
            assert!(text.lines().all(|line| line.chars().count() <= width as usize), "{text}");
        }
        let text = drawn(&view, 40, 10);
        assert!(text.contains("   0 decode") && text.contains("t/s"), "{text}");
        let text = drawn(&view, 80, 14);
        assert!(text.contains("   0 decode") && text.contains("   1 prefill"), "{text}");
        assert!(text.trim_end().ends_with("more, 0 of them busy"), "{text}");
        // In a narrow area, the least useful columns are dropped first.
        let text = drawn(&view, 40, 30);
        assert!(text.contains("SLOT STATE    ANSWER     T/S     AGE"), "{text}");
        assert!(!text.contains("CACHED") && !text.contains("PROMPT"), "{text}");
    }

    #[test]
    fn a_server_that_is_gone_is_told_beside_what_was_seen_last() {
        let gone = || Failure::Gone {
            place: "/run/a.sock".to_string(),
            why: "nobody\u{1b}[2J".to_string(),
            connected: false,
        };
        let mut view = view(2);
        view.see(Err(gone()));
        let text = drawn(&view, 80, 24);
        assert!(text.contains("no answer from /run/a.sock: nobody"), "{text}");
        assert!(text.contains("trying again") && text.contains("   0 decode"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        view.see(Ok(Seen { status: status(2), rates: None }));
        assert!(!drawn(&view, 80, 24).contains("trying again"));
        // Test the same error before any state was received.
        let mut view = View::new("/run/a.sock".to_string(), false);
        assert!(drawn(&view, 80, 24).contains("connecting"));
        view.see(Err(gone()));
        assert!(drawn(&view, 80, 24).contains("trying again"));
    }

    #[test]
    fn several_models_have_a_column() {
        let mut status = status(1);
        let second = ModelStatus { id: "bge\n".to_string(), ..status.models[0].clone() };
        status.models.push(second);
        let mut view = View::new("a".to_string(), false);
        view.see(Ok(Seen { status, rates: None }));
        let text = drawn(&view, 100, 24);
        assert!(text.contains("MODEL            SLOT") && text.contains("bge\\n"), "{text}");
    }

    #[test]
    fn ages_are_as_people_say_them() {
        let cases = [
            (0.04, "0.0 s"),
            (9.94, "9.9 s"),
            (59.0, "59 s"),
            (60.0, "1 min"),
            (7199.0, "1 h"),
            (200_000.0, "2 d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected);
        }
    }
}
