//! BOLT: links a tested program with relocations, runs it with counters, and rewrites its layout according to the
//! counts. <https://github.com/llvm/llvm-project/blob/main/bolt/README.md>

mod asked;
mod elf;
mod gather;
mod report;
mod request;
mod rewrite;

use anyhow::{Context, Result, bail};
use build_info::Bytes;
use build_info::optimized::{Bolt, BoltMethod, Gain};
use build_info::record::StageTime;
use plan::bolt::BoltTools;

use super::folder::Folder;
use super::state::{BOLT, Build, Outcome, SMOKE};
use super::{record, smoke};

pub use asked::Gather;
pub use gather::branch_records;
pub use request::{BoltRequest, BoltTarget, Train};

/// Makes the build that BOLT derives from `base`, or returns it if it exists. Does not change which build is current.
///
/// # Errors
/// If a stage fails. The current build is untouched, and the same command resumes at the failed stage.
pub fn optimize(base: &Build, request: &BoltRequest, train: &mut Train) -> Result<Outcome> {
    let before = base.complete(request.hostname)?;
    let size = before.info.artifacts.first().context("the build's record lists no program")?.size;
    let plan = base.plan.relocatable();
    let relocatable = base.linked_anew(&plan, &before.info)?;
    let linked = relocatable.complete(request.hostname)?.ran;
    let program = BoltTarget { name: "anneal".to_string(), path: relocatable.folder.anneal() };
    elf::check_input(&program.path, &plan.target)?;
    let profile = gather::gather(&relocatable, std::slice::from_ref(&program), request, train)?;

    let plan = base.plan.bolted(&profile.digest);
    let build = base.linked_anew(&plan, &before.info)?;
    build.folder.write_plan(&plan)?;
    let input = rewrite::input(&program.path, request.tools)?;
    let made = build.folder.stamp(BOLT).is_some_and(|stamp| stamp.input == input);
    if let Some(info) = build.finished().filter(|info| made && info.bolt.is_some()) {
        return Ok(Outcome {
            info,
            folder: build.folder.path().to_path_buf(),
            built: false,
            ran: both(linked, relocatable.ran.take()),
        });
    }
    build.forget_what_is_lost();
    let flags = build.cpp()?;
    build.stage(BOLT, &input, |build, progress| {
        rewrite::rewrite(build, &program, &profile, request.tools, size, progress)
    })?;
    build.stage(SMOKE, &build.engine_source, |build, progress| {
        smoke::smoke(build, progress)?;
        smoke::same_tokens(build, &program.path)
    })?;
    build.prove()?;

    let mut info = record::record(&build, flags, request.hostname)?;
    let (layout, options) = rewrite::result(&build)?;
    info.pgo = before.info.pgo.clone();
    info.toolchain.insert("llvm-bolt".to_string(), request.tools.bolt.clone());
    info.stages = both(relocatable.stage_times(), build.stage_times());
    info.bolt = Some(Bolt {
        method: request.method,
        profile: profile.digest,
        training: profile.training,
        options,
        layout,
        size_before: size,
        size_after: info.artifacts.first().map_or(Bytes(0), |anneal| anneal.size),
    });
    build.folder.finish(&info)?;
    let ran = both(linked, both(relocatable.ran.take(), build.ran.take()));
    Ok(Outcome { info, folder: build.folder.path().to_path_buf(), built: true, ran })
}

/// Stores the comparison of `bolted` with `rival` in the records. Makes `bolted` current if `kept` is true, else
/// `rival`.
///
/// # Errors
/// If a record or the link cannot be written.
pub fn settle(rival: &Build, bolted: Outcome, gain: Gain, kept: bool) -> Result<Outcome> {
    let folder = Folder::create(&bolted.folder)?;
    let mut info = bolted.info;
    if !gain.kept {
        let mut stays = rival.complete(true)?.info;
        stays.rejected = Some(gain.clone());
        rival.folder.write_record(&stays)?;
    }
    info.gain = Some(gain);
    folder.write_record(&info)?;
    if kept {
        folder.make_current(&rival.workspace.current(&rival.plan.profile))?;
    } else {
        rival.make_current()?;
    }
    Ok(Outcome { info, ..bolted })
}

/// Returns the stage times of the relocatable build and of the rewritten build. Times of stages in both, such as the
/// smoke test, are added.
fn both(relocatable: Vec<StageTime>, bolted: Vec<StageTime>) -> Vec<StageTime> {
    let mut all = relocatable;
    for stage in bolted {
        match all.iter_mut().find(|known| known.name == stage.name) {
            Some(known) => {
                known.seconds += stage.seconds;
                known.cpu_seconds = known.cpu_seconds.zip(stage.cpu_seconds).map(|(a, b)| a + b);
            }
            None => all.push(stage),
        }
    }
    all
}

/// Checks that the other programs of BOLT exist next to `llvm-bolt`, before anything is linked.
///
/// # Errors
/// If a tool is missing.
pub fn check_tools(tools: &BoltTools, method: BoltMethod) -> Result<()> {
    let needed = match method {
        BoltMethod::Instrument => &tools.merge_fdata,
        BoltMethod::Perf => &tools.perf2bolt,
    };
    for tool in [needed, &tools.merge_fdata] {
        if !tool.is_file() {
            bail!(
                "{} is missing, although {} exists\nhint: install all programs of BOLT",
                tool.display(),
                tools.bolt.path.display()
            );
        }
    }
    Ok(())
}
