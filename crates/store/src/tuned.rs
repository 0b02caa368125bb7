//! Tuned settings of the store's builds, by the CPU on which they were measured.

use anyhow::{Context, Result, ensure};
use build_info::tuning::{CpuKey, Entry as TuningEntry, TuningError};
use build_info::{Bytes, TuningRecord};

use crate::entry::Entry;
use crate::order::{Tune, Tuned};
use crate::place::{self, StoreBackend};
use crate::{ask, layout};

/// Maximum size of a record. A record contains all samples: some hundred kilobytes for each model and purpose.
const LARGEST: Bytes = Bytes(16 << 20);

/// Returns the stored settings for the build `entry` on `cpu`. A failure becomes a note, because a build also runs
/// without settings.
pub fn fetch(
    place: &dyn StoreBackend,
    entry: &Entry,
    cpu: Option<&CpuKey>,
    notes: &mut Vec<String>,
) -> Option<TuningRecord> {
    let cpu = cpu?;
    let path = layout::tuning(&entry.key, cpu);
    let read = || {
        let Some(text) = place.small(&path, LARGEST)? else { return Ok(None) };
        let mut record = TuningRecord::parse(&text)?;
        let build = entry.build.plan_hash.as_str();
        record.entries.retain(|tuned| tuned.key.build == build && tuned.key.cpu == *cpu);
        anyhow::Ok(Some(record).filter(|record| !record.entries.is_empty()))
    };
    read().unwrap_or_else(|error| {
        notes.push(format!("the tuned settings of this build are not used: {path}: {error:#}"));
        None
    })
}

/// Publishes the tuned settings of a build, one file per CPU. If two entries have the same key, the later entry is
/// kept.
///
/// # Errors
/// If the store does not have the build or cannot be written.
pub fn publish(order: &Tune) -> Result<Tuned> {
    let place = place::open(&order.store)?;
    let entry = ask::entry(&*place, &order.store, &order.key)?
        .with_context(|| format!("the store {} has no build {}", order.store, order.key))?;
    let mut groups: Vec<(CpuKey, Vec<TuningEntry>)> = Vec::new();
    for tuned in order.record.entries.iter().filter(|tuned| tuned.key.build == order.build.as_str()) {
        // The entries identify the build by the first publisher's plan hash, because every user downloaded the build
        // from this store.
        let mut tuned = tuned.clone();
        tuned.key.build = entry.build.plan_hash.to_string();
        match groups.iter_mut().find(|(cpu, _)| *cpu == tuned.key.cpu) {
            Some((_, group)) => group.push(tuned),
            None => groups.push((tuned.key.cpu.clone(), vec![tuned])),
        }
    }
    let mut entries = 0;
    for (cpu, group) in groups {
        let path = layout::tuning(&entry.key, &cpu);
        let mut put = 0;
        place
            .change(&path, LARGEST, &mut |there| {
                let mut record = match there.map(TuningRecord::parse) {
                    Some(Ok(record)) => record,
                    Some(Err(newer @ TuningError::Newer { .. })) => return Err(newer.into()),
                    // A damaged record is useless, so it is replaced.
                    Some(Err(TuningError::Damaged(_))) | None => TuningRecord::default(),
                };
                let mut newer = put_newer(&mut record, &group);
                if newer.is_empty() {
                    return Ok(None);
                }
                let text = fitted(&mut record)?;
                newer.retain(|tuned| record.entries.contains(tuned));
                put = newer.len();
                Ok((put > 0).then_some(text))
            })
            .with_context(|| format!("cannot write {path} to the store {}", order.store))?;
        entries += put;
    }
    Ok(Tuned { entries })
}

/// Adds the entries of `group` that are missing from `record` or later than its entries, and returns the added
/// entries.
fn put_newer<'a>(record: &mut TuningRecord, group: &'a [TuningEntry]) -> Vec<&'a TuningEntry> {
    let mut put = Vec::new();
    for tuned in group {
        let there = record.entries.iter().find(|other| other.key == tuned.key);
        // Times in RFC 3339 and UTC sort as text.
        if there.is_none_or(|there| there.date < tuned.date) {
            record.put(tuned.clone());
            put.push(tuned);
        }
    }
    put
}

/// Returns `record` as text, after removing the oldest entries if the record is too large for readers.
fn fitted(record: &mut TuningRecord) -> Result<Vec<u8>> {
    loop {
        let text = serde_json::to_vec_pretty(record)?;
        if text.len() as u64 <= LARGEST.0 {
            return Ok(text);
        }
        ensure!(
            record.entries.len() > 1,
            "a single entry is larger than {LARGEST}, the most that readers accept"
        );
        let oldest =
            record.entries.iter().enumerate().min_by(|(_, one), (_, other)| one.date.cmp(&other.date));
        if let Some((at, _)) = oldest {
            record.entries.remove(at);
        }
    }
}
