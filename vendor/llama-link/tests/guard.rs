//! Tests of the CPU guard for x86-64-v3, in a separate program: CPUs that the guard accepts, and CPUs that it
//! rejects.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the guard with the feature list `rows`, and a `main` with a constructor that prints when it runs.
fn program(folder: &Path, rows: &[&str]) -> PathBuf {
    let header = format!(
        "#define ANNEAL_GUARD_COUNT {}\n#define ANNEAL_GUARD_FEATURES {}\n#define ANNEAL_GUARD_USE \"the other build\"\n",
        rows.len(),
        rows.join(" ")
    );
    let main = r#"
        #include <stdio.h>
        __attribute__((constructor(101))) static void early(void) { puts("constructor"); }
        int main(void) { puts("main"); return 0; }
    "#;
    std::fs::write(folder.join("guard_required.h"), header).expect("a header");
    std::fs::write(folder.join("main.c"), main).expect("a program");
    let guard = Path::new(env!("CARGO_MANIFEST_DIR")).join("csrc/guard.c");
    let program = folder.join("program");
    let output = Command::new("cc")
        .args(["-O2", "-march=x86-64", "-ffreestanding", "-Wl,--gc-sections", "-I"])
        .arg(folder)
        // main.c is listed first, but the guard must still run before the constructor in main.c.
        .args([&folder.join("main.c"), &guard])
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

const AVX2: &str = r#"{ "avx2", 0x7, 0, EBX, 5, YMM },"#;
const FMA: &str = r#"{ "fma", 0x1, 0, ECX, 12, YMM },"#;
const LZCNT: &str = r#"{ "lzcnt", 0x80000001, 0, ECX, 5, NONE },"#;
const SSE3: &str = r#"{ "sse3", 0x1, 0, ECX, 0, NONE },"#;
const AVX512F: &str = r#"{ "avx512f", 0x7, 0, EBX, 16, ZMM },"#;
/// Feature in CPUID leaf 7.1, which neither emulated CPU has. The guard must report the feature as absent and must
/// not read leaf 7.0 instead.
const AVX_VNNI: &str = r#"{ "avx_vnni", 0x7, 1, EAX, 4, YMM },"#;

#[test]
fn a_cpu_is_let_through_or_told_what_it_lacks() {
    let v3: &[&str] = &[SSE3, AVX2, FMA, LZCNT];
    // Cases: feature list, CPU, and missing feature (empty if the program runs).
    let cases: [(&[&str], &str, &str); 6] = [
        (v3, "Haswell", ""),
        (v3, "Nehalem", "avx2 fma lzcnt"),
        (&[SSE3, AVX2, AVX512F], "Haswell", "avx512f"),
        (&[AVX_VNNI], "Haswell", "avx_vnni"),
        (&[SSE3], "Nehalem", ""),
        (&[], "Nehalem", ""),
    ];
    for (rows, cpu, missing) in cases {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = program(folder.path(), rows);
        let output = Command::new("qemu-x86_64").args(["-cpu", cpu]).arg(&program).output();
        let Ok(output) = output else { return skipped::for_want_of("qemu-x86_64", "install qemu-user") };
        let stdout = String::from_utf8_lossy(&output.stdout);
        // qemu warns on stderr about features that it cannot emulate.
        let stderr = String::from_utf8_lossy(&output.stderr);
        if missing.is_empty() {
            assert_eq!(output.status.code(), Some(0), "{cpu}: {stderr}");
            assert_eq!(stdout, "constructor\nmain\n");
        } else {
            assert_eq!(output.status.code(), Some(69), "{cpu}: {stderr}");
            assert_eq!(stdout, "", "something ran before the guard");
            assert!(stderr.contains(&format!("missing:  {missing}\n")), "{cpu}: {stderr}");
            assert!(stderr.contains("use:      the other build\n"), "{cpu}: {stderr}");
        }
    }
}
