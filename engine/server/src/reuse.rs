//! Choice of the slot for a prompt, and of the cached tokens to reuse, as a pure function.

use llama::Token;

/// Tokens that a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct SlotTokens<'a> {
    /// Tokens in the slot.
    pub tokens: &'a [Token],
    /// True if the tokens belong to the prompt's scope.
    pub own: bool,
    /// True if no request runs in the slot.
    pub free: bool,
    /// Counter value when the slot was last taken, for LRU order.
    pub used: u64,
}

/// Slot for a prompt, and the tokens to reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChoice {
    /// Index of the slot for the prompt.
    pub slot: usize,
    /// Index of the slot whose tokens are reused.
    pub from: usize,
    /// Number of tokens to reuse. 0 if no token can be reused.
    pub keep: usize,
}

/// Chooses a slot for `prompt`. `None` if no slot is free. `keepable` returns how many of the common tokens can be
/// kept. Its arguments are the number of common tokens, and true if these are all tokens of the slot.
///
/// A prompt is never compared with tokens of another scope, so a slot of another scope counts as having no common
/// prefix.
///
/// The longest common prefix with any slot is reused, at no cost, because sequences can share cells. If the prefix is
/// at least half of a slot's tokens, as in the next turn of a conversation, the prompt gets that slot. Otherwise, the
/// prompt gets the least recently used slot, so that the other slots keep their tokens for returning clients.
pub fn choose(
    held: &[SlotTokens<'_>],
    prompt: &[Token],
    keepable: impl Fn(usize, bool) -> usize,
) -> Option<SlotChoice> {
    let oldest = |but: Option<usize>| {
        let free = held.iter().enumerate().filter(|(slot, held)| held.free && Some(*slot) != but);
        free.min_by_key(|(_, held)| (!held.tokens.is_empty(), held.used)).map(|(slot, _)| slot)
    };
    // The last token is always evaluated, because its logits are needed to sample the first token.
    let most = prompt.len().saturating_sub(1);
    let common = |tokens: &[Token]| {
        let common = tokens.iter().zip(&prompt[..most]).take_while(|(one, other)| one == other).count();
        keepable(common, common == tokens.len())
    };
    let longest = held
        .iter()
        .enumerate()
        .map(|(slot, held)| (if held.own { common(held.tokens) } else { 0 }, held.free, slot))
        .max_by_key(|(keep, free, slot)| (*keep, *free, std::cmp::Reverse(*slot)))
        .filter(|(keep, _, _)| *keep > 0);
    let Some((keep, free, from)) = longest else {
        return oldest(None).map(|slot| SlotChoice { slot, from: slot, keep: 0 });
    };
    if free && keep * 2 >= held[from].tokens.len() {
        return Some(SlotChoice { slot: from, from, keep });
    }
    let slot = oldest(Some(from)).or(free.then_some(from))?;
    Some(SlotChoice { slot, from, keep })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_goes_where_most_of_it_is_and_least_is_lost() {
        type Slots = &'static [(&'static [Token], bool, u64)];
        type Case = (Slots, &'static [Token], bool, Option<(usize, usize, usize)>);
        let cases: [Case; 12] = [
            (&[(&[], true, 0), (&[], true, 0)], &[1, 2], true, Some((0, 0, 0))),
            (&[(&[], false, 0), (&[], true, 0)], &[1, 2], true, Some((1, 1, 0))),
            (&[(&[], false, 0)], &[1, 2], true, None),
            // The prompt continues the slot's tokens. The last token is evaluated again.
            (&[(&[1, 2, 3], true, 1), (&[], true, 0)], &[1, 2, 3, 4], true, Some((0, 0, 3))),
            (&[(&[1, 2, 3], true, 1), (&[], true, 0)], &[1, 2, 3], true, Some((0, 0, 2))),
            (&[(&[1], true, 1)], &[1], true, Some((0, 0, 0))),
            // A short common prefix is shared, and the slot keeps its tokens.
            (&[(&[1, 2, 3, 4, 5], true, 9), (&[7], true, 1)], &[1, 2, 8], true, Some((1, 0, 2))),
            // Without another slot, the prompt replaces the slot's tokens.
            (&[(&[1, 2, 3, 4, 5], true, 9)], &[1, 2, 8], true, Some((0, 0, 2))),
            // Tokens of a busy slot are reused.
            (&[(&[1, 2, 3], false, 9), (&[], true, 0)], &[1, 2, 3, 4], true, Some((1, 0, 3))),
            (&[(&[1, 2, 3], false, 9)], &[1, 2, 3, 4], true, None),
            // Empty slots come first, then the least recently used slot.
            (&[(&[5], true, 1), (&[6], true, 3), (&[], true, 7)], &[1, 2], true, Some((2, 2, 0))),
            // Reuse is turned off.
            (&[(&[1, 2, 3], true, 9), (&[4], true, 5)], &[1, 2, 3, 4], false, Some((1, 1, 0))),
        ];
        for (slots, prompt, reuse, expected) in cases {
            let held: Vec<SlotTokens<'_>> = slots
                .iter()
                .map(|&(tokens, free, used)| SlotTokens { tokens, own: true, free, used })
                .collect();
            let found = choose(&held, prompt, |common, _| if reuse { common } else { 0 });
            let found = found.map(|choice| (choice.slot, choice.from, choice.keep));
            assert_eq!(found, expected, "{prompt:?} to {slots:?}");
        }
    }

    #[test]
    fn only_what_can_be_kept_counts() {
        // A checkpoint exists after two tokens. A slot whose tokens are all common does not need a checkpoint.
        let keepable = |common: usize, whole: bool| match (whole, common) {
            (true, common) => common,
            (false, common) if common >= 2 => 2,
            (false, _) => 0,
        };
        let held = |tokens, free| SlotTokens { tokens, own: true, free, used: 1 };
        type Case<'a> = (&'a [SlotTokens<'a>], Option<(usize, usize, usize)>);
        let cases: [Case<'_>; 4] = [
            (&[held(&[1, 2, 3], true)], Some((0, 0, 3))),
            (&[held(&[1, 2, 3, 9], true)], Some((0, 0, 2))),
            (&[held(&[1, 9], true)], Some((0, 0, 0))),
            (&[held(&[1, 2, 3, 9, 9], false), held(&[1, 2, 9, 9, 9], true)], Some((1, 1, 2))),
        ];
        for (slots, expected) in cases {
            let found = choose(slots, &[1, 2, 3, 4], keepable);
            assert_eq!(found.map(|choice| (choice.slot, choice.from, choice.keep)), expected, "{slots:?}");
        }
    }

    #[test]
    fn what_another_scope_holds_is_never_shared() {
        let held = |own, free, used| SlotTokens { tokens: &[1, 2, 3], own, free, used };
        type Case<'a> = (&'a [SlotTokens<'a>], Option<(usize, usize, usize)>);
        let cases: [Case<'_>; 4] = [
            (&[held(false, true, 1)], Some((0, 0, 0))),
            (&[held(false, true, 1), held(false, false, 2)], Some((0, 0, 0))),
            (&[held(false, true, 1), held(true, false, 2)], Some((0, 1, 3))),
            (&[held(false, true, 9), held(true, true, 1)], Some((1, 1, 3))),
        ];
        for (slots, expected) in cases {
            let found = choose(slots, &[1, 2, 3, 4], |common, _| common);
            assert_eq!(found.map(|choice| (choice.slot, choice.from, choice.keep)), expected, "{slots:?}");
        }
    }
}
