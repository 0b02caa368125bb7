//! Builds that fail. Each one prints the reason, exits with the right code, and leaves the last good build unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkout::{Checkout, Run, write};

/// Creates a checkout with a good native build. Returns the checkout and the build's folder.
fn with_good_build() -> (Checkout, PathBuf) {
    let checkout = Checkout::new("checkout");
    checkout.build("native").expect(0, "built");
    let good = std::fs::canonicalize(checkout.current("native")).unwrap();
    (checkout, good)
}

#[track_caller]
fn assert_still_current(checkout: &Checkout, good: &PathBuf) {
    assert_eq!(&std::fs::canonicalize(checkout.current("native")).unwrap(), good);
    assert!(good.join("bin/anneal").is_file());
    checkout.record("native");
}

#[test]
fn switches_that_took_no_effect_are_refused() {
    let checkout = Checkout::new("checkout");
    let path = checkout.source.to_str().unwrap();
    let build = |set: &str| checkout.xtask(&["build", "--set", set, "--path", path]);
    // The fake llama.cpp does not support OpenMP, and the fake engine does not support allocators.
    checkout
        .xtask(&["build", "--set", "threading=openmp", "--set", "compiler=system", "--path", path])
        .expect(1, "without -DGGML_USE_OPENMP, contrary to the key `threading`");
    let small = checkout.build_command("native").env("FAKE_ANNEAL", "small-pages").output().unwrap();
    Run::from(small).expect(1, "large buffers of the CPU backend do not request huge pages");
    build("allocator=mimalloc").expect(1, "mimalloc");
    build("treading=openmp").expect(2, "unknown key `treading`\nhint: did you mean threading?");
    assert!(!checkout.current("native").exists(), "something became current");
    build("fast_math=true").expect(0, "finished gate");
}

#[test]
fn a_compiler_error_is_shown_with_the_log() {
    let (checkout, good) = with_good_build();
    write(&checkout.source.join("src/llama.c"), "this is no C");
    let run = checkout.build("native").expect(1, "stage `compile` of the native build failed");
    assert!(run.err.contains("this is no C") && run.err.contains("build.log"), "{}", run.err);
    assert_still_current(&checkout, &good);
}

#[test]
fn a_fake_native_build_is_refused() {
    let (checkout, good) = with_good_build();
    let profile = checkout.root.join("profiles/build/native.toml");
    let text = std::fs::read_to_string(&profile).unwrap();
    // First removes the flags from all files, then only from files outside ggml-cpu.
    for definitions in ["GGML_NATIVE = \"OFF\"\nCMAKE_C_FLAGS = \"-mavx2\"", "CMAKE_C_FLAGS = \"\""] {
        write(&profile, &format!("{text}\n[definitions]\n{definitions}\n"));
        checkout.build("native").expect(1, "compiled without -march=native");
        assert_still_current(&checkout, &good);
    }
}

#[test]
fn a_portable_build_with_native_flags_is_refused() {
    let checkout = Checkout::new("checkout");
    let profile = checkout.root.join("profiles/build/portable.toml");
    let text = std::fs::read_to_string(&profile).unwrap();
    write(&profile, &format!("{text}\n[definitions]\nCMAKE_C_FLAGS = \"-march=x86-64-v3 -march=native\"\n"));
    checkout.build("portable").expect(1, "compiled with -march=native, which this build must not use");
    assert!(!checkout.current("portable").exists());
}

#[test]
fn a_build_whose_tokens_differ_does_not_become_current() {
    let (checkout, good) = with_good_build();
    write(&checkout.source.join("src/llama.c"), "int llama(void) { return 3; }");
    let output = checkout.build_command("native").env("FAKE_ANNEAL", "flaky").output().unwrap();
    Run::from(output).expect(1, "two greedy runs of the same model differ from token 63 onwards");
    assert_still_current(&checkout, &good);
}

#[test]
fn a_build_with_wrong_logits_is_kept_aside_with_its_report() {
    let (checkout, good) = with_good_build();
    write(&checkout.source.join("src/llama.c"), "int llama(void) { return 3; }");
    let told = [("wrong", "mean KL divergence"), ("nan", "NaN or infinite logits")];
    for (fault, told) in told {
        let output = checkout.build_command("native").env("FAKE_ANNEAL", fault).output().unwrap();
        let run = Run::from(output).expect(1, "stage `gate` of the native build failed");
        for part in ["llama, flash attention on, decode", "5e-5", "99.8 %", "another compiler", told] {
            assert!(run.err.contains(part), "no {part:?} in:\n{}", run.err);
        }
        let report = run.err.lines().find_map(|line| line.split("full report: ").nth(1)).unwrap();
        let report: build_info::Gate =
            serde_json::from_slice(&std::fs::read(report.trim()).unwrap()).unwrap();
        assert!(!report.passed && report.cases.len() == 12, "{report:?}");
        assert_still_current(&checkout, &good);
    }
    checkout.build("native").expect(0, "finished gate");
    let gate = checkout.record("native").gate.unwrap();
    assert!(gate.passed && gate.cases.iter().all(|case| case.mean_kld < 1e-6), "{gate:?}");
}

#[test]
fn an_engine_that_fails_its_smoke_test_does_not_replace_the_good_one() {
    let (checkout, good) = with_good_build();
    let before = std::fs::read(good.join("bin/anneal")).unwrap();
    let main = checkout.root.join("engine/anneal/main.rs");
    let text = std::fs::read_to_string(&main).unwrap();
    write(&main, &text.replace("fn main() {", "fn main() { std::process::exit(7);"));
    checkout.build("native").expect(1, "exit status: 7");
    assert_eq!(std::fs::read(good.join("bin/anneal")).unwrap(), before);
    assert_still_current(&checkout, &good);
}

/// Adds a function to the fake engine. The function is kept although no code calls it.
#[cfg(target_arch = "x86_64")]
fn add_to_engine(checkout: &Checkout, function: &str, instructions: &str) {
    let main = checkout.root.join("engine/anneal/main.rs");
    let text = std::fs::read_to_string(&main).unwrap();
    let assembly = format!(
        "std::arch::global_asm!(\".globl {function}\", \".type {function},@function\", \"{function}:\", \
         \"{instructions}\", \"ret\", \".size {function},.-{function}\");\n\
         unsafe extern \"C\" {{ fn {function}(); }}\n#[used]\nstatic KEPT: unsafe extern \"C\" fn() = {function};\n"
    );
    write(&main, &format!("{text}{assembly}"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_native_build_with_a_scalar_kernel_does_not_become_current() {
    let (checkout, good) = with_good_build();
    let before = std::fs::read(good.join("bin/anneal")).unwrap();
    add_to_engine(&checkout, "ggml_vec_dot_f32", "mulss xmm0, xmm1");
    let run = checkout.build("native").expect(1, "stage `audit` of the native build failed");
    assert!(
        run.err.contains("ggml_vec_dot_f32 at 0x") && run.err.contains("widest found is none"),
        "{}",
        run.err
    );
    assert_eq!(std::fs::read(good.join("bin/anneal")).unwrap(), before);
    assert_still_current(&checkout, &good);
    // The rules cause the failure: the same program passes with other rules.
    write(&checkout.root.join("profiles/audit.toml"), "least_kernels = 0\n");
    checkout.build("native").expect(0, "finished audit");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_portable_build_that_is_not_portable_does_not_become_current() {
    let checkout = Checkout::new("checkout");
    add_to_engine(&checkout, "wide_sum", "vaddps zmm0, zmm1, zmm2");
    let run = checkout.build("portable").expect(1, "is not portable");
    assert!(run.err.contains("vaddps (avx512f) at 0x") && run.err.contains("in wide_sum"), "{}", run.err);
    assert!(!checkout.current("portable").exists());
    let allow = "least_kernels = 0\n[[allow]]\nsymbols = [\"wide_sum\"]\nfeatures = [\"avx512f\"]\n\
                 reason = \"never called\"\n";
    write(&checkout.root.join("profiles/audit.toml"), allow);
    checkout.build("portable").expect(0, "finished audit");
    let audit = checkout.record("portable").audit.unwrap();
    assert_eq!(audit.allowed.len(), 1, "{audit:?}");
    assert!(audit.level <= 3 && audit.beyond.is_empty(), "{audit:?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn rules_that_cannot_be_understood_are_named() {
    let (checkout, good) = with_good_build();
    write(&checkout.root.join("profiles/audit.toml"), "least_kernels = 0\nalow = []\n");
    checkout.build("native").expect(1, "unknown field `alow`");
    assert_still_current(&checkout, &good);
}

#[test]
fn a_damaged_record_or_stamp_is_made_again() {
    let (checkout, good) = with_good_build();
    write(&good.join("build_info.json"), "{\"schema_version\": \"1.0\", ");
    checkout.build("native").expect(0, "built");
    checkout.record("native");
    write(&good.join("stages/compile.json"), "\0\0\0");
    write(&good.join("stages/smoke-test.json"), "");
    checkout.build("native").expect(0, "finished compile");
    assert_still_current(&checkout, &good);
}

#[test]
fn a_lost_engine_is_noticed() {
    let (checkout, good) = with_good_build();
    std::fs::remove_file(good.join("bin/anneal")).unwrap();
    checkout.build("native").expect(0, "finished engine");
    assert_still_current(&checkout, &good);
}

#[test]
fn what_llama_installed_is_made_again_when_it_is_gone() {
    let (checkout, good) = with_good_build();
    std::fs::remove_dir_all(good.join("prefix")).unwrap();
    checkout.build("native").expect(0, "finished install");
    assert!(good.join("prefix/link.json").is_file());
    assert_still_current(&checkout, &good);
}

#[test]
fn a_target_folder_that_cannot_be_written_is_named() {
    let checkout = Checkout::new("checkout");
    // Not even root can write to this folder.
    std::os::unix::fs::symlink("/sys/kernel", checkout.root.join("target")).unwrap();
    checkout.build("native").expect(1, "cannot create");
}

/// Runs a build while a small file system of the given `size` is mounted over `folder`.
fn build_on_small_disk(checkout: &Checkout, folder: &Path, size: &str) -> Run {
    // The mount must not propagate. In a chroot, the root is not a mount, so no mount has to be made private.
    let script = format!(
        "mount --make-rprivate / 2>/dev/null; mount -t tmpfs -o size={size} none '{}' && exec \"$@\"",
        folder.display()
    );
    let inner = checkout.build_command("native");
    let mut command = Command::new("unshare");
    // Root needs no user namespace, and creating one may be forbidden.
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    command.args(if root { vec!["--mount"] } else { vec!["--user", "--map-root-user", "--mount"] });
    command
        .args(["--propagation", "unchanged", "sh", "-c", &script, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args());
    command.env("ANNEAL_WORKSPACE", &checkout.root).current_dir(&checkout.root);
    Run::from(command.output().unwrap())
}

#[test]
fn a_full_disk_is_told_and_the_good_build_stays() {
    let (checkout, good) = with_good_build();
    write(&checkout.source.join("src/llama.c"), "int llama(void) { return 4; }");
    let anneal = checkout.root.join("target/anneal");
    build_on_small_disk(&checkout, &anneal.join("sources"), "16k").expect(1, "No space left on device");
    assert_still_current(&checkout, &good);
    // The first file system has room for the sources, the second also for CMake's files, and the third for everything
    // except the smoke test's model. A compiler or linker may crash, so xtask itself must report the full disk.
    for size in ["200k", "600k", "2m"] {
        build_on_small_disk(&checkout, &anneal, size).expect(1, "free some space");
        assert_still_current(&checkout, &good);
    }
    checkout.build("native").expect(0, "built");
}

#[test]
fn what_an_origin_is_fetched_with_is_a_need_of_the_build() {
    let checkout = Checkout::new("checkout");
    // Anneal's patches need git for every origin.
    for (origin, programs) in [("crate", &["git"][..]), ("sdist", &["pip", "git"]), ("git", &["git"])] {
        let mut command = checkout.command(&["build-native", "--yes", "--origin", origin]);
        // The folder contains neither tools nor a package manager.
        let output = command.env("PATH", checkout.root.join("no such folder")).output().unwrap();
        let run = Run::from(output).expect(1, "still missing: ");
        for name in ["ninja", "git", "pip"] {
            let told = run.err.contains(&format!("\n  {name}: no package manager"))
                || run.err.contains(&format!("\n  {name}: it is installed with pip"));
            assert_eq!(told, name == "ninja" || programs.contains(&name), "{origin}: {}", run.err);
        }
    }
}

#[test]
fn what_vendor_fetches_with_is_offered_as_for_a_build() {
    let checkout = Checkout::new("checkout");
    for (origin, program) in [("sdist", "pip"), ("git", "git")] {
        let mut command = checkout.command(&["vendor", "--yes", "--origin", origin]);
        let output = command.env("PATH", checkout.root.join("no such folder")).output().unwrap();
        Run::from(output).expect(1, &format!("still missing: {program}"));
    }
}

#[test]
fn a_host_file_that_is_none_says_how_to_make_one() {
    let checkout = Checkout::new("checkout");
    write(&checkout.root.join("README.md"), "# no JSON");
    write(&checkout.root.join("other.json"), "{\"name\": \"no machine\"}");
    for (file, part) in [
        ("README.md", "README.md is not a description of a machine"),
        ("other.json", "other.json is not a description of a machine"),
        ("engine", "cannot read engine"),
        ("missing.json", "cannot read missing.json"),
    ] {
        let run = checkout.xtask(&["plan", "--host", file]).expect(1, part);
        assert!(run.err.contains("\nhint: run `cargo xtask detect > host.json`"), "{}", run.err);
        assert!(run.err.rfind("  caused by:") < run.err.find("\nhint: "), "{}", run.err);
    }
    checkout.xtask(&["plan", "--toolchain", "README.md"]).expect(1, "fixtures/toolchains");
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let checkout = Checkout::new("checkout");
    for args in [&["detect"][..], &["detect", "--json"], &["show"], &["--version"], &["install", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = checkout.command(args).stdout(full).output().unwrap();
        Run::from(output)
            .expect(1, "cannot write the result to stdout\n  caused by: No space left on device");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_there_is() {
    let checkout = Checkout::new("checkout");
    for (args, part) in [
        (&["build", "--profile", "navite"][..], " dev, native, native-blas, native-llama-bench,"),
        (&["build", "--origin", "ftp"], "use crate, sdist, git or path:DIR"),
        (&["biuld"], "unrecognized subcommand"),
        (&["model", "synth", "--preset", "huge", "--out", "x.gguf"], "available presets: tiny, moe-tiny"),
        (
            &["model", "synth", "--preset", "tiny", "--quant", "Q4_X", "--out", "x.gguf"],
            "unknown quantisation \"Q4_X\"\nhint: llama.cpp supports F32, F16,",
        ),
        (&["show", "--quiet", "--verbose"], "cannot be used with"),
    ] {
        checkout.xtask(args).expect(2, part);
    }
}

#[test]
fn arguments_that_are_no_unicode_are_refused_without_a_panic() {
    use std::os::unix::ffi::OsStrExt;
    let checkout = Checkout::new("checkout");
    let mut command = checkout.command(&["build", "--profile"]);
    command.arg(std::ffi::OsStr::from_bytes(b"nat\xffive"));
    Run::from(command.output().unwrap()).expect(2, "invalid UTF-8");
}

#[test]
fn a_folder_that_is_no_llama_is_refused() {
    let checkout = Checkout::new("checkout");
    for (dir, part) in [("/proc/self/fd", "is not a llama.cpp tree"), ("no such folder", "no such folder")] {
        let run = checkout.xtask(&["build-native", "--path", dir]);
        run.expect(1, part);
    }
}
