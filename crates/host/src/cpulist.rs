//! Lists of CPUs in the kernel's format, `0-3,8,10-11`.

/// Limit for CPU numbers. No kernel supports more CPUs (NR_CPUS is at most 8192 on x86, 4096 on ARM), so larger numbers
/// are invalid. A damaged range must not make the parser allocate gigabytes.
const LIMIT: u32 = 1 << 16;

/// Parses the CPUs in `text`, ascending and without duplicates; an empty text is an empty list.
///
/// # Errors
/// A description of the fault.
pub(crate) fn parse(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| match part.trim().parse::<u32>() {
        Ok(number) if number < LIMIT => Ok(number),
        _ => Err(format!("{part:?} is not a CPU number below {LIMIT}")),
    };
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return Err(format!("{part:?} is a reversed range"));
                }
                cpus.extend(first..=last);
            }
            None => cpus.push(number(part)?),
        }
        // Ranges may overlap, so a file that repeats "0-65535," must not use unlimited memory.
        if cpus.len() > LIMIT as usize {
            return Err(format!("more than {LIMIT} CPUs"));
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        let cases: [(&str, &[u32]); 8] = [
            ("0\n", &[0]),
            ("0-3\n", &[0, 1, 2, 3]),
            ("0-1,8,10-11", &[0, 1, 8, 10, 11]),
            ("5,1", &[1, 5]),
            ("0-2,1-3", &[0, 1, 2, 3]),
            ("\n", &[]),
            ("", &[]),
            ("65535", &[65535]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn garbage_is_refused_and_costs_nothing() {
        let many = "0-65535,".repeat(10_000);
        for text in [
            "0-",
            "-",
            "-1",
            "3-1",
            "9999999999",
            "0-9999999999",
            "0-4294967295",
            "65536",
            "a",
            "0x3",
            "0-3:2/4",
            &many,
        ] {
            assert!(parse(text).is_err(), "{:?} was taken", &text[..text.len().min(20)]);
        }
    }
}
