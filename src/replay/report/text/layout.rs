//! Tables, wrapped sentences and sparklines for a terminal of 100 columns.

use super::super::format::shown;

/// Columns of the terminal.
pub(super) const WIDTH: usize = 100;
/// Columns that a text column keeps, however wide the others are.
const MIN_ELASTIC: usize = 12;
/// Columns of a sparkline.
const SPARKLINE: usize = 60;

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) enum TextColumn {
    /// Text, to the left.
    Text(&'static str),
    /// Text that is cut so that the table fits.
    Elastic(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
}

impl TextColumn {
    const fn title(self) -> &'static str {
        match self {
            Self::Text(title) | Self::Elastic(title) | Self::Number(title) => title,
        }
    }
}

/// Writes a table. Values hold printable characters only.
pub(super) fn table(out: &mut String, indent: usize, columns: &[TextColumn], rows: &[Vec<String>]) {
    let width_of = |(index, column): (usize, &TextColumn)| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.chars().count());
        cells.chain([column.title().chars().count()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(width_of).collect();
    let total = indent + widths.iter().sum::<usize>() + 2 * columns.len().saturating_sub(1);
    let elastic = columns.iter().position(|column| matches!(column, TextColumn::Elastic(_)));
    if let Some(width) = elastic.and_then(|elastic| widths.get_mut(elastic)) {
        let excess = total.saturating_sub(WIDTH);
        *width = (*width).min(width.saturating_sub(excess).max(MIN_ELASTIC));
    }
    let titles = columns.iter().map(|column| column.title().to_owned()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        let cells = row.iter().zip(columns.iter().zip(&widths));
        let cells = cells.map(|(cell, (column, width))| match column {
            TextColumn::Text(_) => format!("{cell:<width$}"),
            TextColumn::Elastic(_) => format!("{:<width$}", shown(cell, *width)),
            TextColumn::Number(_) => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line_of(out, indent, line.trim_end());
    }
}

/// Writes an indented line.
pub(super) fn line_of(out: &mut String, indent: usize, text: &str) {
    out.push_str(&" ".repeat(indent));
    out.push_str(text);
    out.push('\n');
}

/// Writes a text in lines that fit. Those after the first are indented by two more.
pub(super) fn wrapped(out: &mut String, indent: usize, text: &str) {
    let mut line = String::new();
    let mut indent_of_line = indent;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let width = indent_of_line + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && width > WIDTH {
            line_of(out, indent_of_line, &line);
            line.clear();
            indent_of_line = indent + 2;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        line_of(out, indent_of_line, &line);
    }
}

/// Numbers as bars of eight heights, and how many numbers each bar adds up. A number above zero has a bar.
pub(super) fn sparkline(numbers: &[u64]) -> (String, usize) {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let group = numbers.len().div_ceil(SPARKLINE).max(1);
    let sums: Vec<u64> = numbers.chunks(group).map(|chunk| chunk.iter().sum()).collect();
    let max = sums.iter().copied().max().unwrap_or(0).max(1);
    let bar = |sum: u64| {
        let height = (u128::from(sum) * 8).div_ceil(u128::from(max));
        // The height is at most eight.
        (height as usize).checked_sub(1).map_or('·', |index| BARS[index.min(7)])
    };
    (sums.into_iter().map(bar).collect(), group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_show_every_number_above_zero() {
        assert_eq!(sparkline(&[]), (String::new(), 1));
        assert_eq!(sparkline(&[0, 0]), ("··".to_owned(), 1));
        assert_eq!(sparkline(&[0, 1, 4, 8]), ("·▁▄█".to_owned(), 1));
        assert_eq!(sparkline(&[1, u64::MAX / 2]), ("▁█".to_owned(), 1));
        let (bars, group) = sparkline(&[1; 240]);
        assert_eq!((bars.chars().count(), group), (60, 4));
    }

    #[test]
    fn tables_and_sentences_fit() {
        let mut out = String::new();
        let columns = [TextColumn::Elastic("key"), TextColumn::Number("n"), TextColumn::Text("t")];
        table(&mut out, 2, &columns, &[vec!["k".repeat(200), "7".to_owned(), "x".repeat(20)]]);
        wrapped(&mut out, 4, &"word ".repeat(60));
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert_eq!(out.matches("word").count(), 60);
        assert!(out.contains("k…  7  x"), "{out}");
    }
}
