//! A drawing of a simulated run: one row per rank, time from left to right.
//!
//! Plain SVG text. A plotting library would need as many lines for its elements and bring fonts,
//! and this crate would depend on it.

use std::fmt::{self, Write};

use crate::simulation::{Simulation, Span};
use crate::{Action, Compute, Op, Program};

const ROW: f64 = 26.0;
const GAP: f64 = 4.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 92.0;
const TOP: f64 = 78.0;
const BOTTOM: f64 = 44.0;
/// The width of a short computation, which leaves room for two digits.
const CELL: f64 = 17.0;
const MIN_WIDTH: f64 = 640.0;
const MAX_WIDTH: f64 = 12_000.0;
/// The width of a digit at the size of the microbatch numbers.
const DIGIT: f64 = 6.2;

/// The number of shades of a color, for the stages of a rank. Text on the first one is white.
const SHADES: usize = 3;

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif;fill:#24292f}\
.title{font-size:16px;font-weight:600}.note{font-size:12px;fill:#57606a}.axis{font-size:11px;fill:#57606a}\
.n{font-size:10.5px;text-anchor:middle}.light{fill:#fff}.end{text-anchor:end}.mid{text-anchor:middle}";

impl Program {
    /// Draws a run of this program, with a title. Every computation is a box with the number of its
    /// microbatch. Its color is its kind; later stages of a rank are lighter. An overlapped pair shares
    /// a box.
    pub fn svg(&self, simulation: &Simulation, title: &str) -> String {
        let mut text = String::new();
        let drawn = Drawing::new(self, simulation).draw(&mut text, title);
        debug_assert!(drawn.is_ok(), "writing to a string does not fail");
        text
    }
}

struct Drawing<'a> {
    program: &'a Program,
    simulation: &'a Simulation,
    /// Pixels per unit of time.
    scale: f64,
    width: f64,
}

impl<'a> Drawing<'a> {
    fn new(program: &'a Program, simulation: &'a Simulation) -> Drawing<'a> {
        let makespan = simulation.makespan();
        let scale = match makespan > 0.0 {
            true => (CELL / short_duration(program, simulation))
                .clamp(MIN_WIDTH / makespan, MAX_WIDTH / makespan),
            false => 1.0,
        };
        Drawing { program, simulation, scale, width: f64::max(scale * makespan, MIN_WIDTH) }
    }

    fn draw(&self, out: &mut String, title: &str) -> fmt::Result {
        let ranks = self.program.ranks();
        let bottom = TOP + ranks.len() as f64 * (ROW + GAP);
        let (width, height) = (LEFT + self.width + RIGHT, bottom + BOTTOM);
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}">"#
        )?;
        writeln!(out, "<style>{STYLE}</style>")?;
        writeln!(out, r##"<rect width="100%" height="100%" fill="#fff"/>"##)?;
        writeln!(out, r#"<text class="title" x="{LEFT}" y="26">{}</text>"#, escaped(title))?;
        writeln!(
            out,
            r#"<text class="note" x="{LEFT}" y="46">idle {:.1} %, makespan {}, peak memory {}</text>"#,
            100.0 * self.simulation.idle_share(),
            short(self.simulation.makespan()),
            short(self.simulation.peak_memory()),
        )?;
        self.legend(out)?;
        self.axis(out, bottom)?;
        for (rank, list) in ranks.iter().enumerate() {
            self.row(out, rank, list)?;
        }
        writeln!(out, "</svg>")
    }

    fn legend(&self, out: &mut String) -> fmt::Result {
        let names = [
            (Op::Forward, "F forward"),
            (Op::Backward, "B backward"),
            (Op::BackwardInput, "I input gradients"),
            (Op::BackwardWeight, "W weight gradients"),
        ];
        let computes = || self.program.ranks().iter().flatten().flat_map(|it| it.computes());
        let used = names.iter().filter(|(op, _)| computes().any(|it| it.op == *op));
        let mut x = LEFT;
        for (op, name) in used {
            let fill = color(*op, 0);
            writeln!(out, r#"<rect x="{x}" y="56" width="12" height="12" rx="2" fill="{fill}"/>"#)?;
            writeln!(out, r#"<text class="note" x="{}" y="66">{name}</text>"#, x + 17.0)?;
            x += 40.0 + 6.4 * name.len() as f64;
        }
        let placement = self.program.placement();
        match placement.stages() > placement.ranks() {
            true => writeln!(
                out,
                r#"<text class="note" x="{x}" y="66">lighter: later stages of a rank</text>"#
            ),
            false => Ok(()),
        }
    }

    /// Grid lines at round times.
    fn axis(&self, out: &mut String, bottom: f64) -> fmt::Result {
        let makespan = self.simulation.makespan();
        if makespan <= 0.0 {
            return Ok(());
        }
        let step = round_step(90.0 / self.scale);
        let count = (makespan / step) as usize;
        for time in (0..=count).map(|it| it as f64 * step) {
            let x = LEFT + time * self.scale;
            writeln!(
                out,
                r##"<line x1="{x:.2}" y1="{TOP}" x2="{x:.2}" y2="{bottom}" stroke="#d8dee4"/><text class="axis mid" x="{x:.2}" y="{}">{}</text>"##,
                bottom + 16.0,
                short(time)
            )?;
        }
        let (middle, y) = (LEFT + self.width / 2.0, bottom + 34.0);
        writeln!(out, r#"<text class="axis mid" x="{middle:.2}" y="{y}">time</text>"#)
    }

    fn row(&self, out: &mut String, rank: usize, list: &[Action]) -> fmt::Result {
        let y = TOP + rank as f64 * (ROW + GAP) + GAP / 2.0;
        let (text_y, x) = (y + ROW / 2.0 + 4.0, LEFT - 10.0);
        writeln!(out, r#"<text class="axis end" x="{x}" y="{text_y}">rank {rank}</text>"#)?;
        writeln!(
            out,
            r##"<rect x="{LEFT}" y="{y}" width="{:.2}" height="{ROW}" fill="#f3f4f6"/>"##,
            self.simulation.makespan() * self.scale
        )?;
        for (action, &span) in list.iter().zip(self.simulation.spans(rank)) {
            match *action {
                Action::Compute(compute) => self.cell(out, compute, span, y, ROW)?,
                Action::Overlapped(forward, backward) => {
                    self.cell(out, forward, span, y, ROW / 2.0)?;
                    self.cell(out, backward, span, y + ROW / 2.0, ROW / 2.0)?;
                }
                _ => {}
            }
        }
        let memory = short(self.simulation.peak(rank).total);
        let x = LEFT + self.simulation.makespan() * self.scale + 10.0;
        writeln!(out, r#"<text class="axis" x="{x:.2}" y="{text_y}">peak {memory}</text>"#)
    }

    fn cell(
        &self,
        out: &mut String,
        compute: Compute,
        span: Span,
        y: f64,
        height: f64,
    ) -> fmt::Result {
        let (x, width) = (LEFT + span.start * self.scale, (span.end - span.start) * self.scale);
        let chunk = self.chunk(compute.stage);
        let fill = color(compute.op, chunk);
        write!(
            out,
            r##"<rect x="{x:.2}" y="{y}" width="{width:.2}" height="{height}" rx="2" fill="{fill}" stroke="#fff" stroke-width="0.8"><title>{compute}: {} to {}</title></rect>"##,
            short(span.start),
            short(span.end)
        )?;
        let number = compute.microbatch.to_string();
        if DIGIT * number.len() as f64 + 1.0 < width {
            let light = if chunk == 0 { " light" } else { "" };
            let (x, y) = (x + width / 2.0, y + height / 2.0 + 3.8);
            write!(out, r#"<text class="n{light}" x="{x:.2}" y="{y}">{number}</text>"#)?;
        }
        writeln!(out)
    }

    /// The shade of a stage: 0 is the first stage of its rank.
    fn chunk(&self, stage: usize) -> usize {
        let placement = self.program.placement();
        let stages = placement.stages_of(placement.rank_of(stage));
        let position = stages.iter().position(|&it| it == stage).unwrap_or(0);
        match stages.len() {
            0..=SHADES => position,
            len => position * SHADES / len,
        }
    }
}

fn color(op: Op, chunk: usize) -> &'static str {
    let shades: [&str; SHADES] = match op {
        Op::Forward => ["#2f6fde", "#8fb8f6", "#c9defb"],
        Op::Backward => ["#1a8f5c", "#7fcfa5", "#c0e8d2"],
        Op::BackwardInput => ["#0f8f8f", "#78cccb", "#bde7e6"],
        Op::BackwardWeight => ["#d9822b", "#f6bd7d", "#fbdfbf"],
    };
    shades[chunk]
}

/// A duration that nine of ten computations reach, of those that take time.
fn short_duration(program: &Program, simulation: &Simulation) -> f64 {
    let ranks = program.ranks().iter().enumerate();
    let timed = ranks.flat_map(|(rank, list)| list.iter().zip(simulation.spans(rank)));
    let computes = timed.filter(|(action, _)| action.computes().next().is_some());
    let durations = computes.map(|(_, span)| span.end - span.start);
    let mut durations: Vec<f64> = durations.filter(|&it| it > 0.0).collect();
    durations.sort_by(f64::total_cmp);
    durations.get(durations.len() / 10).copied().unwrap_or(1.0)
}

/// The smallest of 1, 2, 5, 10, .. that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|it| it * power);
    steps.into_iter().find(|&it| it >= least).unwrap_or(10.0 * power)
}

/// A number with at most three decimals.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
