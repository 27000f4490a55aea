//! Text for a terminal: aligned columns, and names without control characters.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// The maximum length of a cell, in characters. A longer cell would make every line as long.
const MAX_CELL: usize = 240;

/// The maximum length of a cell in the last column, which is not padded.
const MAX_LAST_CELL: usize = 4000;

/// The maximum length of a text that [`printable`] returns whole.
const MAX_TEXT: usize = 16_000;

/// Rows of cells in columns, two spaces apart. Empty columns are left out. Long cells are
/// shortened.
pub(crate) struct Table {
    sides: Vec<Side>,
    indent: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, with one column per side.
    pub(crate) fn new(sides: impl Into<Vec<Side>>) -> Table {
        Table { sides: sides.into(), indent: 0, rows: Vec::new() }
    }

    /// Indents the table.
    pub(crate) fn indented(mut self, spaces: usize) -> Table {
        self.indent = spaces;
        self
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let mut cells: Vec<String> = cells.into();
        let last = self.sides.len().saturating_sub(1);
        for (at, cell) in cells.iter_mut().enumerate() {
            let most = if at == last { MAX_LAST_CELL } else { MAX_CELL };
            if let Cow::Owned(shorter) = shortened(cell, most) {
                *cell = shorter;
            }
        }
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        let last = self.sides.len().saturating_sub(1);

        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (at, (cell, side)) in row.iter().zip(&self.sides).enumerate() {
                let width = &widths[at];
                match side {
                    _ if *width == 0 => {}
                    Side::Left if at == last => line.push_str(cell),
                    Side::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Side::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Escapes control characters in a name, path or message. An untrusted file must not move the
/// cursor, change the window title or reverse the direction of text.
///
/// Very long texts are shortened.
pub(crate) fn printable(text: &str) -> String {
    let text = &*shortened(text, MAX_TEXT);
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '"' | '\'' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// A path for messages, with control characters escaped.
pub(crate) fn display_path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// The start and the end of a text of more than `most` characters.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let is_short = text.len() <= most || text.chars().nth(most).is_none();
    if is_short {
        return Cow::Borrowed(text);
    }
    let start: String = text.chars().take(most * 3 / 4).collect();
    let end: Vec<char> = text.chars().rev().take(most / 8).collect();
    let end: String = end.into_iter().rev().collect();
    let left_out = text.chars().count() - most * 3 / 4 - most / 8;
    Cow::Owned(format!("{start}..({left_out} more)..{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new([Side::Left, Side::Left, Side::Right]).indented(1);
        table.row(["a".into(), "".into(), "1".into()]);
        table.row(["größe".into(), "".into(), "100".into()]);
        assert_eq!(table.to_string(), " a        1\n größe  100\n");
    }

    /// A long cell does not make the other lines long or the table large.
    #[test]
    fn long_cells_are_shortened() {
        let long = "\u{e4}".repeat(1 << 20);
        let mut table = Table::new([Side::Left, Side::Right, Side::Left]);
        table.row([long.clone(), long.clone(), long.clone()]);
        for _ in 0..100 {
            table.row(["a".into(), "b".into(), "c".into()]);
        }
        let shown = table.to_string();
        assert!(shown.lines().next().unwrap().contains("..(1048366 more).."));
        assert!(shown.lines().skip(1).all(|line| line.chars().count() < 600));
        assert!(printable(&long).len() < 40_000);
        assert_eq!(shortened(&long[..2 * 240], 240), long[..2 * 240]);
    }

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "w\u{1b}[31m\n\r\t\u{7}\u{9b}\u{202e}\u{200b}";
        let shown = printable(hostile);
        assert_eq!(shown, "w\\u{1b}[31m\\n\\r\\t\\u{7}\\u{9b}\\u{202e}\\u{200b}");
        assert_eq!(printable(&shown), shown);
        assert_eq!(printable("a.b/c'd\"e\\f größe 层"), "a.b/c'd\"e\\f größe 层");
    }
}
