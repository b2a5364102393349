//! Tables for people: columns as wide as their longest entry; on a narrow terminal without those that matter least.

use std::io::IsTerminal;
use std::process::{Command, Stdio};

/// Narrower than this no name is cut.
const NAME_MIN_CHARS: usize = 8;

/// Between columns.
const GAP: &str = "  ";

/// The head of a column, and how soon it is left out: 0 never, else the largest first.
pub(super) type Head = (&'static str, u8);

/// A table, and what of it does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) text: String,
    pub(super) hidden: Vec<&'static str>,
}

/// An empty line, then the head and the rows. `width`: what a line may have, if there is a limit; `name`: the column whose
/// entries are cut if leaving out columns is not enough.
pub(super) fn table<const N: usize>(
    head: [Head; N],
    rows: impl Iterator<Item = [String; N]>,
    name: usize,
    width: Option<usize>,
) -> Table {
    let mut lines: Vec<[String; N]> =
        std::iter::once(head.map(|(title, _)| title.to_owned())).chain(rows).collect();
    let mut widths: [usize; N] = std::array::from_fn(|column| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let mut shown: Vec<usize> = (0..N).collect();
    let mut hidden = Vec::new();
    if let Some(width) = width {
        while too_wide(&shown, &widths, width) > 0 {
            // Of those that matter alike, the right one.
            let matters = |column: &usize| head.get(*column).map_or(0, |head| head.1);
            let Some(least) = shown
                .iter()
                .copied()
                .filter(|column| matters(column) > 0)
                .max_by_key(|column| (matters(column), *column))
            else {
                break;
            };
            shown.retain(|column| *column != least);
            hidden.push(least);
        }
        let room = widths.get(name).copied().unwrap_or(0).saturating_sub(too_wide(&shown, &widths, width));
        let room = room.max(NAME_MIN_CHARS);
        for cell in lines.iter_mut().skip(1).filter_map(|line| line.get_mut(name)) {
            *cell = cut(cell, room);
        }
        if let Some(known) = widths.get_mut(name) {
            *known = room.min(*known);
        }
    }
    hidden.sort_unstable();
    let mut text = "\n".to_owned();
    for line in &lines {
        let cells = shown.iter().filter_map(|&column| Some((line.get(column)?, *widths.get(column)?)));
        let cells: Vec<String> = cells.map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join(GAP).trim_end());
        text.push('\n');
    }
    let hidden = hidden.into_iter().filter_map(|column| head.get(column)).map(|head| head.0).collect();
    Table { text, hidden }
}

/// Characters beyond `width`.
fn too_wide(shown: &[usize], widths: &[usize], width: usize) -> usize {
    let gaps = shown.len().saturating_sub(1) * GAP.len();
    let cells: usize = shown.iter().filter_map(|&column| widths.get(column)).sum();
    (cells + gaps).saturating_sub(width)
}

/// At most `most` characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Columns of the terminal that the standard output is. None: it is none, or does not say.
pub(super) fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.or_else(ask_terminal).filter(|columns| *columns > 0)
}

/// Asking the kernel takes a call that safe Rust does not have; every system that has terminals has this program.
fn ask_terminal() -> Option<usize> {
    let terminal = std::fs::File::open("/dev/tty").ok()?;
    let answer =
        Command::new("stty").arg("size").stdin(Stdio::from(terminal)).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(answer.stdout).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [Head; 4] = [("ID", 0), ("NAME", 0), ("A", 2), ("B", 1)];

    fn shown(width: Option<usize>) -> Table {
        let rows = [["1", "a-rather-long-name", "aaaa", "bbbb"], ["22", "b", "a", "b"]];
        table(HEAD, rows.into_iter().map(|row| row.map(str::to_owned)), 1, width)
    }

    #[test]
    fn a_table_gives_up_what_matters_least_and_then_cuts_names() {
        let whole = "\nID  NAME                A     B\n1   a-rather-long-name  aaaa  bbbb\n22  b                   a     b\n";
        assert_eq!(shown(None), Table { text: whole.into(), hidden: vec![] });
        assert_eq!(shown(Some(34)).text, whole);
        let narrow = shown(Some(33));
        assert_eq!(narrow.hidden, ["A"]);
        assert!(narrow.text.contains("1   a-rather-long-name  bbbb\n"), "{}", narrow.text);
        let narrower = shown(Some(20));
        assert_eq!(narrower.hidden, ["A", "B"]);
        assert_eq!(narrower.text, "\nID  NAME\n1   a-rather-long-n…\n22  b\n");
        for width in 0..40 {
            let table = shown(Some(width));
            let widest = table.text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width.max(12), "{width}: {}", table.text);
        }
    }
}
