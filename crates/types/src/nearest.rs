//! What a mistyped name was meant to be.

/// The known name closest to `name`: by the whole name, or, for dotted keys, by the last part alone.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let last = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
    let name_last = name.rsplit('.').next().unwrap_or(name);
    known.into_iter().min_by_key(|key| {
        // A matching last part is worth less than a matching whole.
        distance(name, key).min(distance(name_last, last(key)) * 2 + 1)
    })
}

/// Edits (insert, delete, replace, swap of neighbours) that turn one text into the other.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().map(plain).collect();
    let b: Vec<char> = b.chars().map(plain).collect();
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Case, and the choice between `-` and `_`, are not what people get wrong.
fn plain(c: char) -> char {
    if c == '-' { '_' } else { c.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_find_their_key() {
        let known = ["frontend.port", "frontend.host", "router.mode", "worker.threads", "log_format"];
        for (typo, meant) in [
            ("frontend.prot", "frontend.port"),
            ("fronted.host", "frontend.host"),
            ("port", "frontend.port"),
            ("threads", "worker.threads"),
            ("router_mode", "router.mode"),
            ("Log-Format", "log_format"),
        ] {
            assert_eq!(nearest(typo, known), Some(meant), "{typo}");
        }
        assert_eq!(nearest("x", []), None);
        assert_eq!([distance("ab", "ba"), distance("", "abc"), distance("kitten", "sitting")], [1, 3, 3]);
    }
}
