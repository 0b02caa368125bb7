//! Text for measurements and evaluations.

/// Text that contains prose, code, tables, numbers and eight writing systems.
pub const TEXT: &str = include_str!("sample_text.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_of_many_kinds() {
        let has = |range: std::ops::RangeInclusive<char>| TEXT.chars().any(|c| range.contains(&c));
        for script in
            ['a'..='z', '0'..='9', 'а'..='я', 'α'..='ω', 'ぁ'..='ん', '一'..='龥', '가'..='힣', 'ا'..='ي']
        {
            assert!(has(script.clone()), "{script:?}");
        }
        assert!((3 << 10..8 << 10).contains(&TEXT.len()), "{}", TEXT.len());
    }
}
