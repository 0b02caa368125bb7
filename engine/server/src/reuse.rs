//! Which slot a prompt goes to, and what it finds there: a pure function.

use llama::Token;

/// Tokens that a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct SlotTokens<'a> {
    /// Its tokens.
    pub tokens: &'a [Token],
    /// True if they belong to the scope of the prompt.
    pub own: bool,
    /// Whether it can be taken.
    pub free: bool,
    /// When it was taken last, as a number that grows.
    pub used: u64,
}

/// Where a prompt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChoice {
    /// The slot.
    pub slot: usize,
    /// Whose beginning it shares.
    pub from: usize,
    /// How many tokens of it; 0 for a fresh start.
    pub keep: usize,
}

/// Where `prompt` goes; `None` where no slot is free.
///
/// Slots of another scope count as if they shared nothing, so that no prompt is compared with another client's.
///
/// The longest beginning that any slot holds is shared: it costs nothing, since sequences can share cells. The slot that
/// holds it is taken itself where the prompt goes on from most of what it holds, as the next turn of a conversation does;
/// otherwise the one that was taken longest ago, so that what others hold stays for who comes back.
pub fn choose(held: &[SlotTokens<'_>], prompt: &[Token], reuse: bool) -> Option<SlotChoice> {
    let oldest = |but: Option<usize>| {
        let free = held.iter().enumerate().filter(|(slot, held)| held.free && Some(*slot) != but);
        free.min_by_key(|(_, held)| (!held.tokens.is_empty(), held.used)).map(|(slot, _)| slot)
    };
    // The last token is evaluated anew: its logits choose the first token.
    let most = prompt.len().saturating_sub(1);
    let common =
        |tokens: &[Token]| tokens.iter().zip(&prompt[..most]).take_while(|(one, other)| one == other).count();
    let longest = held
        .iter()
        .enumerate()
        .map(|(slot, held)| (if held.own { common(held.tokens) } else { 0 }, held.free, slot))
        .max_by_key(|(keep, free, slot)| (*keep, *free, std::cmp::Reverse(*slot)))
        .filter(|(keep, _, _)| reuse && *keep > 0);
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
            // On from what a slot holds; never all of the prompt.
            (&[(&[1, 2, 3], true, 1), (&[], true, 0)], &[1, 2, 3, 4], true, Some((0, 0, 3))),
            (&[(&[1, 2, 3], true, 1), (&[], true, 0)], &[1, 2, 3], true, Some((0, 0, 2))),
            (&[(&[1], true, 1)], &[1], true, Some((0, 0, 0))),
            // Only a beginning in common: it is shared, and the slot keeps what it has.
            (&[(&[1, 2, 3, 4, 5], true, 9), (&[7], true, 1)], &[1, 2, 8], true, Some((1, 0, 2))),
            // The same where there is no other slot.
            (&[(&[1, 2, 3, 4, 5], true, 9)], &[1, 2, 8], true, Some((0, 0, 2))),
            // From one that is busy.
            (&[(&[1, 2, 3], false, 9), (&[], true, 0)], &[1, 2, 3, 4], true, Some((1, 0, 3))),
            (&[(&[1, 2, 3], false, 9)], &[1, 2, 3, 4], true, None),
            // Taken longest ago, empty ones first.
            (&[(&[5], true, 1), (&[6], true, 3), (&[], true, 7)], &[1, 2], true, Some((2, 2, 0))),
            // Not wanted.
            (&[(&[1, 2, 3], true, 9), (&[4], true, 5)], &[1, 2, 3, 4], false, Some((1, 1, 0))),
        ];
        for (slots, prompt, reuse, expected) in cases {
            let held: Vec<SlotTokens<'_>> = slots
                .iter()
                .map(|&(tokens, free, used)| SlotTokens { tokens, own: true, free, used })
                .collect();
            let found = choose(&held, prompt, reuse).map(|choice| (choice.slot, choice.from, choice.keep));
            assert_eq!(found, expected, "{prompt:?} to {slots:?}");
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
            let found = choose(slots, &[1, 2, 3, 4], true);
            assert_eq!(found.map(|choice| (choice.slot, choice.from, choice.keep)), expected, "{slots:?}");
        }
    }
}
