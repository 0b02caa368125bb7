//! Selection of GPUs by `CUDA_VISIBLE_DEVICES` (CUDA C++ programming guide, environment variables). The driver's
//! library lists all GPUs of the machine; CUDA only shows the selected GPUs.

/// Identity of a GPU or of a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID: `GPU-…`, or `MIG-…` for an instance.
    pub uuid: Option<String>,
    /// UUID of the GPU that an instance belongs to.
    pub card: Option<String>,
}

/// Result of the selection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Indices in the list of all devices, in the order of the variable.
    pub chosen: Vec<usize>,
    /// Warnings for the user, with hints.
    pub remarks: Vec<String>,
    /// True if the selection or its order is uncertain, because the GPUs differ and CUDA numbers them from fastest
    /// to slowest.
    pub is_unclear: bool,
}

impl Selection {
    /// Applies the value `variable` of `CUDA_VISIBLE_DEVICES` to `devices`, which are in the order of their bus
    /// positions. `order` is the value of `CUDA_DEVICE_ORDER`. `are_alike` is true if all GPUs are of the same
    /// kind; if they are not, CUDA numbers them from fastest to slowest.
    pub fn of(devices: &[Identity], variable: Option<&str>, order: Option<&str>, are_alike: bool) -> Self {
        let by_bus = order.is_some_and(|order| order.trim() == "PCI_BUS_ID");
        let Some(variable) = variable else {
            let is_unclear = !by_bus && !are_alike && devices.len() > 1;
            return Self { chosen: (0..devices.len()).collect(), is_unclear, ..Self::default() };
        };
        if devices.is_empty() {
            return Self::default();
        }
        let count = devices.len();
        if variable.trim().is_empty() {
            let remark = format!("CUDA_VISIBLE_DEVICES is empty, which hides {}", gpus(count));
            return Self {
                remarks: vec![remark + "\nhint: unset the variable to make GPUs visible"],
                ..Self::default()
            };
        }
        let mut selection = Self::default();
        for word in variable.split(',').map(str::trim) {
            match place(devices, word) {
                Ok(at) if selection.chosen.contains(&at) => {
                    selection.chosen.clear();
                    let remark = format!("CUDA_VISIBLE_DEVICES={variable} contains {word:?} twice");
                    selection.remarks = vec![
                        remark + ", so CUDA shows no GPU\nhint: list each GPU once, or unset the variable",
                    ];
                    return selection;
                }
                Ok(at) => selection.chosen.push(at),
                // CUDA uses the entries before the first invalid one.
                Err(why) => {
                    let hidden = match selection.chosen.len() {
                        0 => format!("hides {}", gpus(count)),
                        _ => "ends the list at this entry".to_string(),
                    };
                    let mend = "unset the variable, or list the GPUs by the UUIDs that `nvidia-smi -L` shows";
                    selection.remarks.push(format!(
                        "CUDA_VISIBLE_DEVICES={variable}: {why}, which {hidden}\nhint: {mend}"
                    ));
                    break;
                }
            }
        }
        let counted = variable.split(',').any(|word| word.trim().parse::<u32>().is_ok());
        let two_orders = counted && !by_bus && !are_alike;
        selection.is_unclear = two_orders && !selection.chosen.is_empty();
        if two_orders && selection.chosen.len() < count {
            selection.remarks.push(format!(
                "CUDA_VISIBLE_DEVICES={variable} numbers GPUs from fastest to slowest, but \
                 nvidia-smi numbers them by bus position\nhint: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or \
                 specify GPUs by UUID"
            ));
        }
        selection
    }
}

/// Returns the index of the device that `word` identifies.
fn place(devices: &[Identity], word: &str) -> Result<usize, String> {
    if let Ok(number) = word.parse::<i64>() {
        return match usize::try_from(number) {
            Ok(at) if at < devices.len() => Ok(at),
            Ok(_) => Err(format!(
                "there is no GPU {number} (the last of {} GPUs has number {})",
                devices.len(),
                devices.len() - 1
            )),
            Err(_) => Err(format!("{number} is not the number of a GPU")),
        };
    }
    // An unambiguous prefix of a UUID is sufficient.
    let begins = |uuid: &Option<String>| uuid.as_deref().is_some_and(|uuid| uuid.starts_with(word));
    if !(word.starts_with("GPU-") || word.starts_with("MIG-")) {
        return Err(format!("{word:?} is neither a number nor a UUID"));
    }
    let of_card = |device: &Identity| begins(&device.card);
    let matching: Vec<usize> =
        (0..devices.len()).filter(|at| begins(&devices[*at].uuid) || of_card(&devices[*at])).collect();
    match matching[..] {
        [] => Err(format!("there is no GPU {word}")),
        [at] => Ok(at),
        // The GPU is divided by MIG, and CUDA uses its first instance.
        [at, ..] if matching.iter().all(|at| of_card(&devices[*at])) => Ok(at),
        _ => Err(format!("{word} matches the UUIDs of several GPUs")),
    }
}

fn gpus(count: usize) -> String {
    match count {
        1 => "the only NVIDIA GPU".to_string(),
        2 => "both NVIDIA GPUs".to_string(),
        _ => format!("all {count} NVIDIA GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Identity> {
        let card = |uuid: &str| Identity { uuid: Some(uuid.to_string()), card: None };
        vec![card("GPU-aa11"), card("GPU-aa22"), card("GPU-bb33")]
    }

    #[test]
    fn cuda_sees_what_the_variable_leaves() {
        // Value of the variable, expected selection, a word of each warning.
        let cases: [(Option<&str>, &[usize], &[&str]); 15] = [
            (None, &[0, 1, 2], &[]),
            (Some(""), &[], &["empty"]),
            (Some(" "), &[], &["empty"]),
            (Some("-1"), &[], &["-1 is not the number of a GPU"]),
            (Some("NoDevFiles"), &[], &["neither a number nor a UUID"]),
            (Some("0"), &[0], &[]),
            (Some("2, 0"), &[2, 0], &[]),
            (Some("1,-1,0"), &[1], &["ends the list"]),
            (Some("7"), &[], &["no GPU 7"]),
            (Some("0,0"), &[], &["twice"]),
            (Some("GPU-bb"), &[2], &[]),
            (Some("GPU-aa22,GPU-bb33"), &[1, 2], &[]),
            (Some("GPU-aa"), &[], &["several"]),
            (Some("GPU-cc"), &[], &["no GPU GPU-cc"]),
            (Some("99999999999999999999"), &[], &["neither"]),
        ];
        for (variable, chosen, words) in cases {
            let found = Selection::of(&devices(), variable, None, true);
            assert_eq!(found.chosen, chosen, "{variable:?}");
            assert_eq!(found.remarks.len(), words.len(), "{variable:?}: {:?}", found.remarks);
            for (remark, word) in found.remarks.iter().zip(words) {
                assert!(remark.contains(word) && remark.contains(": "), "{variable:?}: {remark}");
            }
            // Without GPUs, the variable hides no GPU and causes no warning.
            assert_eq!(Selection::of(&[], variable, None, true), Selection::default());
        }
    }

    #[test]
    fn numbers_mean_two_things_where_cards_differ() {
        let remarks =
            |variable, order, alike| Selection::of(&devices(), variable, order, alike).remarks.len();
        assert_eq!(remarks(Some("1"), None, false), 1);
        assert_eq!(remarks(Some("1"), Some("FASTEST_FIRST"), false), 1);
        assert_eq!(remarks(Some("1"), Some("PCI_BUS_ID"), false), 0);
        assert_eq!(remarks(Some("1"), None, true), 0);
        assert_eq!(remarks(Some("GPU-bb33"), None, false), 0);
        // All GPUs are selected, so the order does not matter.
        assert_eq!(remarks(Some("2,1,0"), None, false), 0);
    }

    #[test]
    fn what_cuda_means_is_unclear_where_it_may_count_otherwise() {
        let cases = [
            (None, None, false, true),
            (None, None, true, false),
            (None, Some("PCI_BUS_ID"), false, false),
            (Some("2,1,0"), None, false, true),
            (Some("1"), None, false, true),
            (Some("1"), Some("PCI_BUS_ID"), false, false),
            (Some("GPU-bb33,1"), None, false, true),
            // UUIDs are unambiguous, and an empty selection is unambiguous, too.
            (Some("GPU-bb33,GPU-aa11"), None, false, false),
            (Some("7"), None, false, false),
            (Some(""), None, false, false),
        ];
        for (variable, order, alike, expected) in cases {
            let found = Selection::of(&devices(), variable, order, alike);
            assert_eq!(found.is_unclear, expected, "{variable:?} {order:?} {alike}");
        }
    }

    #[test]
    fn an_instance_is_named_by_itself_or_by_its_card() {
        let part = |uuid: &str| Identity { uuid: Some(uuid.to_string()), card: Some("GPU-aa11".to_string()) };
        let devices = [part("MIG-1"), part("MIG-2")];
        for (variable, chosen) in [("MIG-2", 1), ("GPU-aa11", 0), ("0", 0)] {
            assert_eq!(Selection::of(&devices, Some(variable), None, true).chosen, [chosen], "{variable}");
        }
    }
}
