//! Formats numbers for display.

use std::time::Duration;

/// `0.4s`, `12s`, `1m41s`, `2h05m`, `3d04h`: two units at most.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);

    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// `999 B`, `412 MB`, `1.5 GB`: decimal units, three digits.
pub fn bytes(count: u64) -> String {
    let (value, unit) = scaled(count);
    match unit {
        "" => format!("{count} B"),
        "K" => format!("{value} kB"),
        unit => format!("{value} {unit}B"),
    }
}

/// `950`, `3.42M`, `30.5B`: three digits.
pub fn count(count: u64) -> String {
    let (value, unit) = scaled(count);
    format!("{value}{unit}")
}

fn scaled(count: u64) -> (String, &'static str) {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];

    let mut value = count as f64;
    let mut unit = 0;
    // 999.5 and more would be shown as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let text = match value {
        _ if unit == 0 => count.to_string(),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    };
    (text, UNITS[unit])
}

/// `9,812`: rounded to a whole number, with commas.
pub fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }

    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

/// `9.8e-4`: two digits; `0` for zero.
pub fn rate(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") }
}

/// `[12 13 50 25]%`: each share in percent; minimum and maximum if there are too many.
pub fn shares(shares: &[f64]) -> String {
    const READABLE: usize = 16;

    let percent = |share: &f64| format!("{:.0}", 100.0 * share);
    if shares.len() <= READABLE {
        let parts: Vec<String> = shares.iter().map(percent).collect();
        return format!("[{}]%", parts.join(" "));
    }
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.1}% to {:.1}%", 100.0 * least, 100.0 * most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            (0.0, "0.0s"),
            (0.44, "0.4s"),
            (9.4, "9.4s"),
            (9.97, "10s"),
            (59.4, "59s"),
            (59.6, "1m00s"),
            (101.0, "1m41s"),
            (3599.6, "1h00m"),
            (7500.0, "2h05m"),
            (273_600.0, "3d04h"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn sizes_and_counts() {
        let cases = [
            (0, "0 B", "0"),
            (999, "999 B", "999"),
            (1000, "1.00 kB", "1.00K"),
            (9_994, "9.99 kB", "9.99K"),
            (9_996, "10.0 kB", "10.0K"),
            (412_345_678, "412 MB", "412M"),
            (999_499, "999 kB", "999K"),
            (999_600, "1.00 MB", "1.00M"),
            (1_500_000_000, "1.50 GB", "1.50G"),
            (u64::MAX, "18446744 TB", "18446744T"),
        ];
        for (value, as_bytes, as_count) in cases {
            assert_eq!(bytes(value), as_bytes);
            assert_eq!(count(value), as_count);
        }
    }

    #[test]
    fn thousands_have_commas() {
        let cases = [
            (0.0, "0"),
            (999.4, "999"),
            (999.5, "1,000"),
            (9_812.0, "9,812"),
            (1_234_567.0, "1,234,567"),
            (-1_000.0, "-1,000"),
            (-0.2, "0"),
            (f64::NAN, "NaN"),
        ];
        for (value, expected) in cases {
            assert_eq!(thousands(value), expected);
        }
    }

    #[test]
    fn rates_and_shares() {
        assert_eq!(rate(9.8e-4), "9.8e-4");
        assert_eq!(rate(0.0), "0");
        assert_eq!(shares(&[0.124, 0.376, 0.5]), "[12 38 50]%");
        assert_eq!(shares(&[1.0 / 128.0; 128]), "0.8% to 0.8%");
        assert_eq!(shares(&[]), "[]%");
    }
}
