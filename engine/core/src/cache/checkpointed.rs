//! State of a sequence together with its checkpoints, as one block of bytes, for models whose memory cannot be
//! truncated at an arbitrary token ([`PrefixReuse`](llama::PrefixReuse)).
//!
//! The state comes first, so that it need not be copied. The checkpoints follow, and each is followed by its number of
//! tokens and its size. The last number is the number of checkpoints. All numbers are little-endian and have 8 bytes.

use llama::{Model, PrefixReuse};

use crate::checkpoints::CheckpointState;

/// Returns the bytes to store for `state`, the whole state of a sequence of `model`. `cuts` are its checkpoints. Most
/// models need no checkpoints, so their bytes are only the state.
pub fn stored(model: &Model, state: Vec<u8>, cuts: &[CheckpointState<'_>]) -> Vec<u8> {
    match model.prefix_reuse() {
        PrefixReuse::AnyToken => state,
        _ => join(state, cuts),
    }
}

/// Returns the state and the checkpoints in `bytes`, which [`stored`] returned for the same model. `None` if a length
/// does not fit.
pub fn parts<'a>(model: &Model, bytes: &'a [u8]) -> Option<(&'a [u8], Vec<CheckpointState<'a>>)> {
    match model.prefix_reuse() {
        PrefixReuse::AnyToken => Some((bytes, Vec::new())),
        _ => split(bytes),
    }
}

/// Appends `cuts` to `state`.
fn join(mut state: Vec<u8>, cuts: &[CheckpointState<'_>]) -> Vec<u8> {
    for cut in cuts {
        state.extend_from_slice(cut.state);
        state.extend_from_slice(&(cut.tokens as u64).to_le_bytes());
        state.extend_from_slice(&(cut.state.len() as u64).to_le_bytes());
    }
    state.extend_from_slice(&(cuts.len() as u64).to_le_bytes());
    state
}

/// Returns the state and the checkpoints of `bytes`, which [`join`] wrote. `None` if a length does not fit.
fn split(bytes: &[u8]) -> Option<(&[u8], Vec<CheckpointState<'_>>)> {
    let number = |bytes: &mut &[u8]| -> Option<usize> {
        let (rest, last) = bytes.split_last_chunk::<8>()?;
        *bytes = rest;
        usize::try_from(u64::from_le_bytes(*last)).ok()
    };
    let mut rest = bytes;
    let count = number(&mut rest)?;
    let mut cuts = Vec::new();
    for _ in 0..count {
        let (len, tokens) = (number(&mut rest)?, number(&mut rest)?);
        let (before, state) = rest.split_at_checked(rest.len().checked_sub(len)?)?;
        rest = before;
        cuts.push(CheckpointState { tokens, state });
    }
    cuts.reverse();
    Some((rest, cuts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_joined_is_split() {
        let cuts = [CheckpointState { tokens: 3, state: &[1, 2] }, CheckpointState { tokens: 9, state: &[] }];
        for cuts in [&cuts[..], &cuts[..1], &[]] {
            assert_eq!(split(&join(vec![7; 5], cuts)), Some((&[7; 5][..], cuts.to_vec())));
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let whole = join(vec![7; 5], &[CheckpointState { tokens: 3, state: &[1, 2] }]);
        for len in 0..8 {
            assert_eq!(split(&whole[..len]), None, "{len} bytes");
        }
        let mut many = whole.clone();
        let count = many.len() - 8;
        many[count..].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(split(&many), None);
        let mut long = whole;
        long[count - 8..count].copy_from_slice(&100_u64.to_le_bytes());
        assert_eq!(split(&long), None);
    }
}
