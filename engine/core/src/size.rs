//! Sizes, as users write them.

use build_info::Bytes;

/// Parses sizes such as `8GiB` and `500MiB`.
///
/// # Errors
/// If `text` is not a size; the message shows the valid forms.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let wrong = || format!("{text:?} is not a size\nhint: use a size such as 8GiB or 500MiB");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "GiB" | "G" => 30,
        "MiB" | "M" => 20,
        "KiB" | "K" => 10,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * f64::from(1u32 << shift);
    if !(1.0..1e18).contains(&bytes) {
        return Err(wrong());
    }
    Ok(Bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in
            [("8GiB", 8 << 30), ("1.5G", 3 << 29), ("500MiB", 500 << 20), ("1 KiB", 1 << 10)]
        {
            assert_eq!(parse(text), Ok(Bytes(expected)), "{text}");
        }
        for text in ["", "8", "GiB", "0GiB", "-1GiB", "8TB"] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
