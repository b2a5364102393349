//! Python's `strftime`, over time as an argument.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAY_S: i64 = 86_400;

/// Python's `strftime` for UTC in the C locale. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    let days = unix_s.div_euclid(DAY_S);
    let second = unix_s.rem_euclid(DAY_S);
    let (year, month, day) = civil(days);
    let weekday = usize::try_from((days + 3).rem_euclid(7)).unwrap_or(0);
    let month_name = MONTHS.get(usize::try_from(month - 1).unwrap_or(0)).copied().unwrap_or_default();
    let hour = second / 3600;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let mut number = |value: i64, width: usize| {
            let width = if unpadded { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(second / 60 % 60, 2),
            Some('S') => number(second % 60, 2),
            Some('j') => number(days - civil_days(year) + 1, 3),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(WEEKDAYS[weekday]),
            Some('a') => out.push_str(&WEEKDAYS[weekday][..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('F') => out.push_str(&strftime("%Y-%m-%d", unix_s)),
            Some('T') => out.push_str(&strftime("%H:%M:%S", unix_s)),
            Some('D') => out.push_str(&strftime("%m/%d/%y", unix_s)),
            Some('s') => number(unix_s, 1),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

/// Year, month (1-12) and day (1-31) of a day counted from 1970-01-01, in the proleptic Gregorian calendar: 400-year
/// eras of 146,097 days, years that begin in March so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day on which a year begins, counted from 1970-01-01.
fn civil_days(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_across_leap_years() {
        for (unix_s, text) in [
            (0, "Thursday 01 January 1970 00:00:00 AM 001"),
            (951_782_400, "Tuesday 29 February 2000 00:00:00 AM 060"),
            (1_735_689_599, "Tuesday 31 December 2024 23:59:59 PM 366"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00 AM 060"),
            (-1, "Wednesday 31 December 1969 23:59:59 PM 365"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S %p %j", unix_s), text);
        }
        assert_eq!(
            strftime("%d %b %Y, %-d.%-m.%y %I:%M %a %e %% %q %", 1_722_470_400),
            "01 Aug 2024, 1.8.24 12:00 Thu  1 % %q %"
        );
    }
}
