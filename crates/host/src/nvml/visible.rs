//! `CUDA_VISIBLE_DEVICES`: which of the machine's GPUs a program may use (CUDA C++ programming guide, environment
//! variables). The driver's library shows all of them, CUDA only those.

/// What tells a card, or an instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GPU-…`, or of an instance `MIG-…`.
    pub uuid: Option<String>,
    /// The same of the card that it is an instance of.
    pub card: Option<String>,
}

/// What the variable leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Places in the list of all, in the variable's order.
    pub chosen: Vec<usize>,
    /// What is to be said of it, with its mend.
    pub remarks: Vec<String>,
    /// Whether CUDA may mean other cards, or have them in another order: it counts the fastest first, and these are not alike.
    pub is_unclear: bool,
}

impl Selection {
    /// Of `devices`, in the order of their places on the bus, what `variable` leaves; `order` is `CUDA_DEVICE_ORDER`.
    /// `are_alike` says whether all are of one kind, since CUDA counts the fastest first.
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
            let remark = format!("CUDA_VISIBLE_DEVICES is set and empty, which hides {}", gpus(count));
            return Self { remarks: vec![remark + ": unset it to use them"], ..Self::default() };
        }
        let mut selection = Self::default();
        for word in variable.split(',').map(str::trim) {
            match place(devices, word) {
                Ok(at) if selection.chosen.contains(&at) => {
                    selection.chosen.clear();
                    let remark = format!("CUDA_VISIBLE_DEVICES={variable} names {word:?} twice");
                    selection.remarks =
                        vec![remark + ", and CUDA then shows no GPU at all: name each once, or unset it"];
                    return selection;
                }
                Ok(at) => selection.chosen.push(at),
                // CUDA takes what stands before the first that is none.
                Err(why) => {
                    let hidden = match selection.chosen.len() {
                        0 => format!("hides {}", gpus(count)),
                        _ => "ends the list there".to_string(),
                    };
                    let mend = "unset it, or name GPUs as `nvidia-smi -L` lists them";
                    selection
                        .remarks
                        .push(format!("CUDA_VISIBLE_DEVICES={variable}: {why}, which {hidden}: {mend}"));
                    break;
                }
            }
        }
        let counted = variable.split(',').any(|word| word.trim().parse::<u32>().is_ok());
        let two_orders = counted && !by_bus && !are_alike;
        selection.is_unclear = two_orders && !selection.chosen.is_empty();
        if two_orders && selection.chosen.len() < count {
            selection.remarks.push(format!(
                "CUDA_VISIBLE_DEVICES={variable} counts the fastest GPU first, and nvidia-smi by the places on the bus: \
                 set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUID, so that both mean the same one"
            ));
        }
        selection
    }
}

/// Which of `devices` `word` names.
fn place(devices: &[Identity], word: &str) -> Result<usize, String> {
    if let Ok(number) = word.parse::<i64>() {
        return match usize::try_from(number) {
            Ok(at) if at < devices.len() => Ok(at),
            Ok(_) => Err(format!(
                "there is no GPU {number} (the last of {} is {})",
                devices.len(),
                devices.len() - 1
            )),
            Err(_) => Err(format!("{number} is no GPU")),
        };
    }
    // As much of it as is clear will do.
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
        // A card that is cut up: CUDA takes its first instance.
        [at, ..] if matching.iter().all(|at| of_card(&devices[*at])) => Ok(at),
        _ => Err(format!("{word} is the beginning of several GPUs' UUIDs")),
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
        // The variable, what is chosen, a word of each remark.
        let cases: [(Option<&str>, &[usize], &[&str]); 15] = [
            (None, &[0, 1, 2], &[]),
            (Some(""), &[], &["empty"]),
            (Some(" "), &[], &["empty"]),
            (Some("-1"), &[], &["-1 is no GPU"]),
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
            // Nothing to hide, nothing to say.
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
        // All of them, in whichever order.
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
            // In the order of their names; and none is none.
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
