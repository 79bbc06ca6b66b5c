//! Aligned columns for the terminal.

/// Formats rows under a head. The first `left` columns are text, the others are numbers and right-aligned.
pub fn align(head: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let widths: Vec<usize> = (0..head.len()).map(|column| width(&head, rows, column)).collect();
    let rule = widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>();
    let lines = [&head, &rule].into_iter().chain(rows).map(|row| line(row, &widths, left));
    lines.collect::<Vec<_>>().join("\n")
}

fn width(head: &[String], rows: &[Vec<String>], column: usize) -> usize {
    let cells = std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

fn line(row: &[String], widths: &[usize], left: usize) -> String {
    let cell = |(column, (cell, &width)): (usize, (&String, &usize))| {
        if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    };
    let cells: Vec<String> = row.iter().zip(widths).enumerate().map(cell).collect();
    cells.join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_left_and_numbers_right() {
        let rows = vec![vec!["a".to_owned(), "7".to_owned()], vec!["longer".to_owned(), "1234".to_owned()]];
        let expected = "name    tps\n------  ----\na          7\nlonger  1234".replace("name    tps", "name     tps");
        assert_eq!(align(&["name", "tps"], &rows, 1), expected);
    }
}
