//! NVIDIA GPUs, detected through the driver's library, with `nvidia-smi` as a fallback. Nothing is queried unless a
//! driver is loaded.

mod card;
mod driver;
mod smi;

use crate::nvml::{Identity, PATIENCE, SIGNS, Selection, Unanswered};
use build_info::host::Gpu;

pub use self::card::Card;
use self::smi::Trouble;
use crate::root::Root;

/// State of NVIDIA's driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// True if a driver is loaded, according to the file system.
    pub is_loaded: bool,
    /// Version of the driver, `570.133.07`; `None` if the driver did not answer.
    pub version: Option<String>,
    /// Newest CUDA version that the driver supports; `None` if the driver did not answer.
    pub cuda: Option<(u32, u32)>,
    /// GPUs that remain after `CUDA_VISIBLE_DEVICES` and MIG.
    pub cards: Vec<Card>,
}

impl Driver {
    /// Creates a state in which only the cards are known.
    fn of(cards: Vec<Card>) -> Self {
        let version = cards.first().map(|card| card.gpu.driver.clone());
        Self { is_loaded: true, version, cuda: None, cards }
    }
}

pub(crate) fn nvidia(root: &Root, warnings: &mut Vec<String>) -> Vec<Gpu> {
    ask(root, warnings).cards.into_iter().map(|card| card.gpu).collect()
}

pub(crate) fn ask(root: &Root, warnings: &mut Vec<String>) -> Driver {
    if !SIGNS.iter().any(|sign| root.exists(sign)) {
        return Driver::default();
    }
    let failed = match root.nvml() {
        None => None,
        Some(place) => match driver::list(place, PATIENCE) {
            Ok(listed) => return driver::visible(listed, root.cuda(), warnings),
            Err(failed) if !failed.is_of_the_library() => {
                warnings.push(format!("cannot list NVIDIA GPUs: {failed}{}", loaded(root, &failed)));
                return Driver::of(Vec::new());
            }
            Err(failed) => Some(failed),
        },
    };
    match (smi::list(root.nvidia_smi(), warnings), failed) {
        (Ok(cards), None) => Driver::of(by_number(cards, root, warnings)),
        (Ok(cards), Some(failed)) => {
            warnings.push(format!(
                "nvidia-smi lists the GPUs, but their utilisation cannot be measured: {failed}"
            ));
            Driver::of(by_number(cards, root, warnings))
        }
        (Err(Trouble::NotThere), failed) => {
            // WSL shows /dev/dxg for any GPU, so only the other signs prove that an NVIDIA driver is loaded.
            let by_whom = failed.map_or("nvidia-smi is not on the PATH".to_string(), |failed| {
                format!("{failed}; the fallback, nvidia-smi, is not on the PATH")
            });
            if SIGNS[..2].iter().any(|sign| root.exists(sign)) && root.asks_for_gpus() {
                warnings.push(format!("cannot list NVIDIA GPUs: an NVIDIA driver is loaded, but {by_whom}"));
            }
            Driver::of(Vec::new())
        }
        (Err(Trouble::Failed(why)), failed) => {
            let first = failed.map_or(String::new(), |failed| format!("{failed}; "));
            warnings.push(format!("cannot list NVIDIA GPUs: {first}{why}"));
            Driver::of(Vec::new())
        }
    }
}

/// Applies `CUDA_VISIBLE_DEVICES` to GPUs whose UUIDs are unknown. If the variable contains UUIDs, all GPUs are kept.
fn by_number(cards: Vec<Card>, root: &Root, warnings: &mut Vec<String>) -> Vec<Card> {
    let cuda = root.cuda();
    let visible = cuda.visible.as_deref().filter(|visible| !visible.contains('-') || visible.trim() == "-1");
    let unknown = vec![Identity { uuid: None, card: None }; cards.len()];
    let alike = are_alike(cards.iter().map(|card| &card.gpu));
    let selection = Selection::of(&unknown, visible, cuda.order.as_deref(), alike);
    warnings.extend(selection.remarks);
    selection.chosen.into_iter().map(|at| cards[at].clone()).collect()
}

fn are_alike<'a>(names: impl IntoIterator<Item = &'a Gpu>) -> bool {
    let mut names = names.into_iter().map(|gpu| &gpu.name);
    names.next().is_none_or(|first| names.all(|name| name == first))
}

/// Returns a remark with the loaded driver's version if the versions of the driver and the library do not match.
fn loaded(root: &Root, failed: &Unanswered) -> String {
    let version = || {
        let text = root.read(SIGNS[0])?;
        let is_version =
            |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        text.split_whitespace().find(is_version).map(str::to_string)
    };
    match failed.is_version_mismatch().then(version).flatten() {
        Some(version) => format!("; version {version} is loaded"),
        None => String::new(),
    }
}
