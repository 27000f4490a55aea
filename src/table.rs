//! Text for a terminal: aligned columns, and names without control characters.

use std::fmt;

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows of cells in columns, two spaces apart. Empty columns are left out.
pub(crate) struct Table {
    sides: Vec<Side>,
    indent: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, with one column per side.
    pub(crate) fn new(sides: impl Into<Vec<Side>>) -> Table {
        Table {
            sides: sides.into(),
            indent: 0,
            rows: Vec::new(),
        }
    }

    /// Indents the table.
    pub(crate) fn indented(mut self, spaces: usize) -> Table {
        self.indent = spaces;
        self
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();

        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for ((cell, side), width) in row.iter().zip(&self.sides).zip(&widths) {
                if *width == 0 {
                    continue;
                }
                match side {
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
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '"' | '\'' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
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

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "w\u{1b}[31m\n\r\t\u{7}\u{9b}\u{202e}\u{200b}";
        let shown = printable(hostile);
        assert_eq!(
            shown,
            "w\\u{1b}[31m\\n\\r\\t\\u{7}\\u{9b}\\u{202e}\\u{200b}"
        );
        assert_eq!(printable(&shown), shown);
        assert_eq!(
            printable("a.b/c'd\"e\\f größe 层"),
            "a.b/c'd\"e\\f größe 层"
        );
    }
}
