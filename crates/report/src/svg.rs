//! Elements of an SVG image.

use std::fmt::Write;

use crate::scale::Scale;
use crate::words::tidy;

/// Width of a stand-alone image, in pixels.
const WIDTH: u32 = 720;

/// Colours of both themes. The series use a colour-blind-safe palette (Okabe and Ito, 2008), with darker colours on
/// white.
pub const STYLE: &str = "\
:root{--bg:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--s0:#0072b2;--s1:#b34700;--s2:#00795a;--s3:#a3467f;\
--s4:#7a5d00;--s5:#444c56}\
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--s0:#56b4e9;\
--s1:#ff9e4a;--s2:#2fd6a3;--s3:#e29ac6;--s4:#f0e442;--s5:#adbac7}}\
svg text{font:13px system-ui,sans-serif;fill:var(--ink);paint-order:stroke;stroke:var(--bg);stroke-width:4px;\
stroke-linejoin:round}svg .soft{fill:var(--soft);font-size:12px}\
svg .bold{font-weight:600}\
svg .limit{stroke:var(--ink)}svg .axis{stroke:var(--line)}svg .mark{stroke:var(--soft);stroke-dasharray:4 3}\
svg .s0{stroke:var(--s0);fill:var(--s0)}svg .s1{stroke:var(--s1);fill:var(--s1)}svg .s2{stroke:var(--s2);\
fill:var(--s2)}svg .s3{stroke:var(--s3);fill:var(--s3)}svg .s4{stroke:var(--s4);fill:var(--s4)}\
svg .s5{stroke:var(--s5);fill:var(--s5)}";

/// Number of series colours.
pub const COLOURS: usize = 6;

/// Builder of an SVG image.
pub struct Svg {
    body: String,
    title: String,
}

/// Alignment of a text relative to its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// The text starts at the position.
    Start,
    /// The text is centred at the position.
    Middle,
    /// The text ends at the position.
    End,
}

impl Svg {
    /// Creates an empty image with the accessible title `title`.
    pub fn new(title: &str) -> Self {
        Self { body: String::new(), title: title.to_string() }
    }

    /// Adds a line; x in per cent of the width, y in pixels.
    pub fn line(&mut self, class: &str, width: f64, from: (f64, f64), to: (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" stroke-width="{width}" x1="{:.2}%" y1="{:.1}" x2="{:.2}%" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// Adds a dot.
    pub fn dot(&mut self, class: &str, radius: f64, at: (f64, f64)) {
        let _ =
            write!(self.body, r#"<circle class="{class}" r="{radius}" cx="{:.2}%" cy="{:.1}"/>"#, at.0, at.1);
    }

    /// Adds a text.
    pub fn text(&mut self, class: &str, align: Align, at: (f64, f64), words: &str) {
        let anchor = match align {
            Align::Start => "start",
            Align::Middle => "middle",
            Align::End => "end",
        };
        let _ = write!(
            self.body,
            r#"<text class="{class}" text-anchor="{anchor}" x="{:.2}%" y="{:.1}">{}</text>"#,
            at.0,
            at.1,
            escaped(&tidy(words))
        );
    }

    /// Adds vertical lines at round values of `scale`, from `span.0` to `span.1` pixels, and labels below the lines.
    pub fn marks_below(&mut self, scale: &Scale, span: (f64, f64)) {
        for (value, words) in scale.marks(4) {
            let x = scale.place(value);
            self.line("axis", 1.0, (x, span.0), (x, span.1));
            // At the edges, half of a centred label would be outside of the image.
            let align = match x {
                x if x < 5.0 => Align::Start,
                x if x > 95.0 => Align::End,
                _ => Align::Middle,
            };
            self.text("soft", align, (x, span.1 + 15.0), &words);
        }
    }

    /// Returns an image for an empty plot.
    pub fn nothing(mut self) -> String {
        self.text("soft", Align::Start, (0.0, 15.0), "nothing to show");
        self.finish(26.0)
    }

    /// Returns the complete image, `height` pixels high.
    pub fn finish(self, height: f64) -> String {
        let title = escaped(&tidy(&self.title));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" role="img" width="100%" height="{height:.0}"><title>{title}</title>{}</svg>"#,
            self.body
        )
    }
}

/// Returns the position of each row of height `height`, and true if the row has a heading above it. The first row of
/// each group has a heading.
pub fn places<'a>(groups: impl Iterator<Item = &'a str>, height: f64) -> Vec<(f64, bool)> {
    let (mut y, mut last) = (0.0, "");
    let place = |group: &'a str| {
        let heading = group != last && !group.is_empty();
        last = group;
        y += if heading { 24.0 } else { 0.0 };
        y += height;
        (y - height, heading)
    };
    groups.map(place).collect()
}

/// Adds a width and a style sheet to `svg`.
pub fn stand_alone(svg: &str) -> String {
    let background = r#"<rect width="100%" height="100%" fill="var(--bg)"/>"#;
    let svg = svg.replacen(r#"width="100%""#, &format!(r#"width="{WIDTH}""#), 1);
    svg.replacen("</title>", &format!("</title><style>{STYLE}</style>{background}"), 1) + "\n"
}

/// Cleans text with [`tidy`] and escapes it for XML and HTML.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}
