//! The one writer of tables: aligned text for a terminal, Markdown for a page.

use std::fmt::Write;

/// A table. A row may be shorter than the head.
pub(crate) struct Grid {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// An empty table.
    pub(crate) fn new(head: &[&str]) -> Grid {
        Grid { head: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Columns as wide as needed, aligned to the right.
    pub(crate) fn text(&self) -> String {
        let cell = |row: &Vec<String>, n: usize| row.get(n).map_or(0, String::len);
        let widths: Vec<usize> = (0..self.head.len())
            .map(|n| self.rows.iter().map(|row| cell(row, n)).fold(self.head[n].len(), usize::max))
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&self.head).chain(&self.rows) {
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a string cannot fail.
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }

    /// A table of Markdown: the first column to the left, the others to the right.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len().saturating_sub(1)));
        let rows = self.rows.iter().map(|row| {
            let mut row = row.clone();
            row.resize(self.head.len(), String::new());
            line(&row)
        });
        format!("{}{rule}{}", line(&self.head), rows.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_table_is_text_and_markdown() {
        let mut grid = Grid::new(&["bytes", "p50"]);
        grid.push(vec!["8".into(), "45".into()]);
        grid.push(vec!["a|b".into()]);
        assert_eq!(grid.text(), "  bytes  p50\n      8   45\n    a|b\n");
        assert_eq!(grid.markdown(), "| bytes | p50 |\n|---|---:|\n| 8 | 45 |\n| a\\|b |  |\n");
    }
}
