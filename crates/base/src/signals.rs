//! Signal dispositions at program start.

/// True if SIGHUP was ignored when the program started, as under `nohup`. Call this function before a handler is
/// installed.
pub fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, libc::SIGHUP)
}

/// True if the mask `SigIgn` in `status` contains `signal`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_bit_for_each() {
        let cases = [
            ("SigIgn:\t0000000000000001\n", 1, true),
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n", 1, false),
            ("SigIgn:\t0000000000001000\n", 13, true),
            ("SigIgn:\tnonsense\n", 1, false),
            ("", 1, false),
        ];
        for (status, signal, expected) in cases {
            assert_eq!(ignores(status, signal), expected, "{status:?}");
        }
    }
}
