//! Scripts that make zig usable as a set of conventional compilers. The scripts pass zig's target and come first on
//! PATH.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::shell_quote;
use build_info::record::Tool;
use plan::zig::{AR, CC, CXX, RANLIB};
use plan::{Plan, Zig};

use super::places::places;
use crate::tools;
use crate::workspace::Workspace;

/// Returns the folder of the scripts for `plan`, which are written if they are missing or outdated; `None` if the
/// plan uses another compiler.
///
/// # Errors
/// If zig is missing or a script cannot be written.
pub fn scripts(plan: &Plan, workspace: &Workspace) -> Result<Option<PathBuf>> {
    let Some(zig) = &plan.zig else { return Ok(None) };
    let program = program(plan, zig, workspace)?;
    let folder = workspace.anneal().join("zig").join(format!("{}-{}", zig.version, zig.target));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in texts(&program.path, zig, workspace.root(), &folder) {
        let script = folder.join(name);
        // An unchanged script is not rewritten, because Ninja and cargo check the modification times of compilers.
        if !std::fs::read(&script).is_ok_and(|there| there == text.as_bytes()) {
            crate::fs::write_script(&script, &text)?;
        }
    }
    Ok(Some(folder))
}

/// Returns zig itself.
fn program(plan: &Plan, zig: &Zig, workspace: &Workspace) -> Result<Tool> {
    let search = tools::search(workspace);
    toolchain::discover(&search, Some(&workspace.tool_cache())).zig.with_context(|| {
        format!(
            "zig {} is missing\nhint: `cargo xtask setup --profile {}` installs it",
            zig.version, plan.profile
        )
    })
}

/// Returns the value of the variable with bindgen's additional arguments, which give the header folders of a foreign
/// target. `None` if the target's headers are installed on this machine.
///
/// # Errors
/// If zig cannot be found.
pub fn bindgen_arguments(plan: &Plan, workspace: &Workspace) -> Result<Option<String>> {
    let (Some(zig), Some(_)) = (&plan.zig, &plan.cross) else { return Ok(None) };
    let program = program(plan, zig, workspace)?.path;
    // Links are resolved because zig looks for its files next to the real program, where pip installs them.
    let program = program.canonicalize().with_context(|| format!("cannot find {}", program.display()))?;
    let headers = zig.headers(program.parent().unwrap_or(Path::new("/")));
    let words = headers.iter().map(|folder| format!("-isystem {}", shell_quote(&folder.to_string_lossy())));
    Ok(Some(words.collect::<Vec<_>>().join(" ")))
}

/// Returns the name of cargo's environment variable for the linker of the target of `plan`.
pub fn linker_variable(plan: &Plan) -> String {
    format!("CARGO_TARGET_{}_LINKER", plan.target.replace(['-', '.'], "_").to_uppercase())
}

/// Returns a digest of the scripts, so that a change to the scripts causes a new compilation.
///
/// # Errors
/// If a script cannot be read.
pub fn digest(plan: &Plan, workspace: &Workspace) -> Result<String> {
    let Some(folder) = scripts(plan, workspace)? else { return Ok(String::new()) };
    let path = folder.join(CXX);
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(format!(" {}", build_info::Sha256::of(&text)))
}

fn texts(program: &Path, zig: &Zig, root: &Path, folder: &Path) -> [(&'static str, String); 4] {
    // The crate `cc` passes rustc's target, which zig spells differently. rustc prefixes archives with `-Wl,`, so zig
    // mistakes them for options. rustc also passes --strip-debug, which would make zig strip function names too.
    let filter = "for argument; do\n  shift\n  case $argument in\n    \
                  --target=* | -Wl,--strip-debug) continue ;;\n    -Wl,/*) argument=${argument#-Wl,} ;;\n    \
                  -c | -S | -E) compiles=yes ;;\n    \
                  -I/*/.. | -I/*/../*) plain ;;\n  esac\n  set -- \"$@\" \"$argument\"\ndone";
    // Normalises header folders as ccache does, because the folder's spelling appears in assertions.
    let plain = "plain() {\n  while :; do\n    case $argument in\n      \
                 */../*) rest=${argument#*/../} argument=${argument%%/../*} argument=${argument%/*}/$rest ;;\n      \
                 */..) argument=${argument%/..} argument=${argument%/*} ;;\n      *) return ;;\n    esac\n  done\n}";
    // A script derives the checkout's path from its own path. The scripts of two checkouts are therefore equal, and
    // sccache, which compares a compiler's content, can share objects between checkouts. The script also contains
    // zig's version, so that another version changes the content.
    let own = shell_quote(&folder.strip_prefix(root).unwrap_or(folder).to_string_lossy());
    let program = below(program, root);
    let text = |command: &str, compiling: &str| {
        let version = &zig.version;
        format!(
            "#!/bin/sh\n# zig {version}\nroot=${{0%/{own}/*}}\ncompiles=\n{plain}\n{filter}\n{compiling}exec {program} {command} \"$@\"\n"
        )
    };
    let target = shell_quote(&zig.target);
    // These flags come first, as defaults. zig compiles the C++ runtime with the flags of the link, once per
    // optimisation level; without a level, zig would make a debug build.
    let compiler = |name: &str| format!("{name} -target {target} -O2 -g0 -fomit-frame-pointer");
    // Keeps this machine's folders out of the compiled code: assertions contain file names, and the crate `ring` asks
    // for debug information. The flags are not passed when linking, because zig caches the runtime by its flags, and
    // would spend minutes compiling it again in each checkout. The runtime's debug information is stripped from the
    // program.
    let maps = places(root).map(|(place, name)| format!("-ffile-prefix-map={}={name}", below(&place, root)));
    // ccache makes paths below the checkout relative to the compiler's working folder, which for llama.cpp is `cmake`
    // in a build folder.
    let maps = maps.chain(["-ffile-prefix-map=../..=anneal/target/anneal".to_string()]);
    let maps = format!("[ -z \"$compiles\" ] || set -- {} \"$@\"\n", maps.collect::<Vec<_>>().join(" "));
    [
        (CC, text(&compiler("cc"), &maps)),
        (CXX, text(&compiler("c++"), &maps)),
        (AR, text("ar", "")),
        (RANLIB, text("ranlib", "")),
    ]
}

/// Returns `path` as a word of a script in which `$root` is the checkout.
fn below(path: &Path, root: &Path) -> String {
    match path.strip_prefix(root) {
        Ok(rest) if rest.as_os_str().is_empty() => "\"$root\"".to_string(),
        Ok(rest) => format!("\"$root\"/{}", shell_quote(&rest.to_string_lossy())),
        Err(_) => shell_quote(&path.to_string_lossy()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::write_script;

    /// Creates a checkout with a fake zig that prints its arguments. Returns the text and the path of the C++
    /// compiler script.
    fn checkout(root: &Path) -> (String, PathBuf) {
        let zig = Zig {
            version: "1.2.3".into(),
            target: "x-linux-gnu.2.28".into(),
            glibc: "2.28".parse().unwrap(),
        };
        let (tools, folder) = (root.join("target/anneal/tools"), root.join("target/anneal/zig/1.2.3-x"));
        for folder in [&tools, &folder] {
            std::fs::create_dir_all(folder).unwrap();
        }
        write_script(&tools.join("zig"), "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
        let texts = texts(&tools.join("zig"), &zig, root, &folder);
        let (name, text) = texts.into_iter().find(|(name, _)| *name == CXX).unwrap();
        write_script(&folder.join(name), &text).unwrap();
        (text, folder.join(name))
    }

    /// Checks that scripts are equal in all checkouts, because a cache compares a compiler's content.
    #[test]
    fn scripts_of_two_checkouts_hold_the_same_and_each_finds_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let roots = ["one", "the other one"].map(|name| folder.path().join(name));
        let [one, other] = roots.each_ref().map(|root| checkout(root));
        assert_eq!(one.0, other.0);
        assert!(one.0.contains("\n# zig 1.2.3\n"), "{}", one.0);
        for (root, script) in roots.iter().zip([one.1, other.1]) {
            let says = |arguments: &[&str]| {
                let output = std::process::Command::new(&script).args(arguments).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            };
            let said = says(&["-c", "a b.c", "--target=z"]);
            let map = format!("|-ffile-prefix-map={}=anneal|", root.display());
            assert!(said.starts_with("c++|-target|x-linux-gnu.2.28|") && said.contains(&map), "{said}");
            assert!(said.ends_with("|-c|a b.c|"), "{said}");
            let said = says(&["-c", "-I/a b/c/..", "-I/a/b/../c/../d e", "-I../../f", "x.c"]);
            assert!(said.ends_with("|-c|-I/a b|-I/a/d e|-I../../f|x.c|"), "{said}");
            // When linking, zig gets the same flags in all checkouts.
            let said = says(&["a b.o", "-Wl,--strip-debug", "-Wl,/x/y.a", "-o", "a b"]);
            assert!(said.ends_with("|a b.o|/x/y.a|-o|a b|") && !said.contains("prefix-map"), "{said}");
        }
    }

    /// Tests with the installed ccache, if there is one, and a fake zig that calls this machine's compiler.
    #[test]
    fn a_cache_changes_no_object() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (_, script) = checkout(&root);
        let zig = root.join("target/anneal/tools/zig");
        write_script(&zig, "#!/bin/sh\nshift 3\nexec c++ \"$@\"\n").unwrap();
        let (tree, source) = (root.join("target/anneal/x-1/cmake"), root.join("target/anneal/sources/a.cpp"));
        let below = source.with_file_name("below");
        for folder in [&tree, &below] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(&source, "#include <a.h>\nconst char *name = __FILE__;\n").unwrap();
        std::fs::write(
            source.with_file_name("a.h"),
            "static const char *header = __FILE__;\nconst char *get() { return header; }\n",
        )
        .unwrap();
        let object = |name: &str, launcher: Option<&str>| {
            let script = script.to_string_lossy();
            let words: Vec<&str> = launcher.into_iter().chain([&*script]).collect();
            let compile = || {
                let run = std::process::Command::new(words[0])
                    .args(&words[1..])
                    .args(["-c", "-o", name])
                    // ggml passes header folders in this form.
                    .arg(format!("-I{}/..", below.display()))
                    .arg(&source)
                    .current_dir(&tree)
                    .env("CCACHE_DIR", root.join("ccache"))
                    .envs(crate::stages::cache::of_ccache(&root.to_string_lossy()))
                    .status();
                run.is_ok_and(|status| status.success())
            };
            // A process forked by another test may still have a script open for writing (`ETXTBSY`).
            let succeeded = (0..10).any(|_| {
                compile() || {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    false
                }
            });
            succeeded.then(|| std::fs::read(tree.join(name)).unwrap())
        };
        let plain = object("plain.o", None).expect("c++ compiles");
        let text = String::from_utf8_lossy(&plain);
        for name in ["a.cpp", "a.h"] {
            assert!(text.contains(&format!("anneal/target/anneal/sources/{name}\0")), "{text}");
        }
        match object("cached.o", Some("ccache")) {
            Some(cached) => assert!(plain == cached),
            // ccache is never installed for a test, because the user's builds would then use it.
            None => skipped::because("ccache is missing (install ccache)"),
        }
    }
}
