//! Tests with small ELF files, assembled with the C compiler, and small rules.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use audit::{Error, Level, Program, Rules, Symbols, Width, native, portable};

const RULES: &str = r#"
least_kernels = 1
[[allow]]
symbols = ["dispatched_*"]
features = ["avx512f"]
reason = "asks CPUID before"
[[allow]]
symbols = ["roofline_*"]
features = ["avx512_vnni"]
reason = "measures it where CPUID tells of it"
[[instruction_set]]
name = "avx512_vnni"
kernels = "products of 8-bit integers"
[[kernel]]
symbols = ["ggml_vec_dot_x"]
zmm = ["avx512f"]
ymm = ["avx2"]
"#;

fn rules() -> Rules {
    Rules::parse(RULES, Path::new("audit.toml")).unwrap()
}

/// ELF file assembled from text.
struct Object {
    folder: tempfile::TempDir,
}

impl Object {
    /// Assembles functions, given by name and instructions.
    fn new(functions: &[(&str, &str)]) -> Self {
        let mut text = String::from(".text\n");
        for (name, body) in functions {
            let body = body.replace(';', "\n");
            text += &format!(
                ".p2align 4\n.globl {name}\n.type {name},@function\n{name}:\n{body}\nret\n.size {name},.-{name}\n"
            );
        }
        // Without this section, newer versions of gas warn about executable stacks.
        text += ".section .note.GNU-stack,\"\",@progbits\n";
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.s"), text).unwrap();
        let object = Self { folder };
        object.tool("cc", &["-shared", "-nostdlib", "-o", "x.so", "x.s"]);
        object
    }

    fn tool(&self, program: &str, args: &[&str]) {
        let status = Command::new(program).args(args).current_dir(self.folder.path()).status().unwrap();
        assert!(status.success(), "{program} {args:?}");
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("x.so")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    #[track_caller]
    fn program(&self) -> Program {
        Program::open(&self.path()).unwrap()
    }
}

const V3: &str = "vpaddd %ymm0, %ymm1, %ymm2; mulx %rax, %rbx, %rcx";
const ZMM: &str = "nop; vaddps %zmm0, %zmm1, %zmm2; vaddps %zmm0, %zmm1, %zmm3";
const SCALAR: &str = "vaddss %xmm0, %xmm1, %xmm2; vmovups %zmm0, %zmm1; vpxor %ymm0, %ymm0, %ymm0";

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn single_functions_are_disassembled_as_in_the_whole_program() {
    let object = Object::new(&[
        ("first", "vaddps %zmm0, %zmm1, %zmm2"),
        ("second", "vpaddd %ymm0, %ymm1, %ymm2; nop"),
        ("third", "addps %xmm0, %xmm1"),
    ]);
    let path = object.path();
    let whole = Program::open(&path).unwrap();
    let part = Program::open_functions(&path, 1 << 20, |name| name == "second").unwrap();
    let shown = |program: &Program| -> Vec<String> {
        let seconds = program.functions.iter().filter(|function| function.name() == "second");
        seconds.map(|function| format!("{function:?}")).collect()
    };
    assert_eq!((part.functions.len(), shown(&part)), (1, shown(&whole)));
    assert_eq!((part.dynamic, part.size), (whole.dynamic, whole.size));
}

#[test]
fn instructions_are_counted_by_function_and_instruction_set() {
    let program = Object::new(&[("plain", "endbr64; syscall; rdtsc; pause"), ("wide", V3)]).program();
    assert_eq!(program.symbols, Symbols::All);
    assert_eq!(program.invalid, 0);
    let features = program.features();
    assert_eq!((features["avx2"], features["bmi2"]), (1, 1), "{features:?}");
    let function = |name: &str| program.functions.iter().find(|function| function.name() == name).unwrap();
    assert_eq!((function("plain").registers, function("plain").packed), (Width::None, Width::None));
    assert_eq!(function("plain").instructions, 5);
    // Every CPU supports hints and the instructions that the operating system needs.
    assert!(function("plain").uses.iter().all(|used| used.feature.level() == Level::V1));
    assert_eq!((function("wide").registers, function("wide").packed), (Width::Ymm, Width::Ymm));
}

#[test]
fn portable_fails_on_what_is_on_no_list() {
    let cases = [
        ("v3 only", vec![("a", V3)], None),
        ("one zmm", vec![("a", V3), ("b", ZMM)], Some(("b", "vaddps", "avx512f", 2))),
        ("dispatched", vec![("dispatched_sum", ZMM)], None),
        (
            "dispatched, but to more",
            vec![("dispatched_sum", "vpopcntd %zmm0, %zmm1")],
            Some(("dispatched_sum", "vpopcntd", "avx512_vpopcntdq", 1)),
        ),
        ("AES", vec![("a", "aesenc %xmm0, %xmm1")], Some(("a", "aesenc", "aes", 1))),
        (
            "hints",
            vec![(
                "a",
                "endbr64; rdtscp; xgetbv; cpuid; prefetch (%rax); prefetchw (%rax); lock incl (%rax)",
            )],
            None,
        ),
    ];
    for (name, functions, expected) in cases {
        let object = Object::new(&functions);
        let verdict = portable::check(&[object.program()], &rules());
        let found = verdict.violations.first().map(|violation| {
            assert!(violation.address > 0 && !violation.stripped, "{name}");
            (
                violation.symbol.as_str(),
                violation.instruction.as_str(),
                violation.feature.name(),
                violation.count,
            )
        });
        let expected = expected
            .map(|(symbol, instruction, feature, count)| (symbol, instruction, feature.to_string(), count));
        assert_eq!(found, expected, "{name}");
        assert_eq!(verdict.violations.len(), usize::from(expected.is_some()), "{name}");
    }
    let allowed = portable::check(&[Object::new(&[("dispatched_sum", ZMM)]).program()], &rules()).allowed;
    assert_eq!((allowed.len(), allowed[0].reason.as_str()), (1, "asks CPUID before"));
}

/// The byte 0x06 was `push es`, which does not exist in 64-bit code.
#[test]
fn code_that_the_disassembler_does_not_know_fails_portable() {
    let strange = ".byte 0x06; nop; nop";
    let program = || Object::new(&[("a", V3), ("b", strange), ("dispatched_new", strange)]).program();
    let function = program().functions.into_iter().find(|function| function.name() == "b").unwrap();
    let unknown = function.unknown.unwrap();
    assert!(unknown.count == 1 && unknown.bytes().starts_with("06"), "{unknown:?}");
    assert_eq!(unknown.address, function.address);
    let verdict = portable::check(&[program()], &rules());
    let names: Vec<&str> = verdict.unknown.iter().map(|one| one.symbol.as_str()).collect();
    assert_eq!(names, ["b", "dispatched_new"]);
    assert!(verdict.violations.is_empty());
    let allowing = RULES.replace("[\"avx512f\"]\nreason", "[\"avx512f\", \"unknown\"]\nreason");
    let allowing = Rules::parse(&allowing, Path::new("audit.toml")).unwrap();
    assert_eq!(portable::check(&[program()], &allowing).unknown.len(), 1);
}

#[test]
fn without_names_the_list_allows_nothing_but_the_counts_stay() {
    let object = Object::new(&[("dispatched_sum", ZMM), ("other", V3)]);
    let whole = object.program();
    object.tool("strip", &["x.so"]);
    let exported = object.program();
    assert_eq!(exported.symbols, Symbols::Exported);
    object.tool("objcopy", &["--strip-all", "--remove-section=.dynsym", "--remove-section=.dynstr", "x.so"]);
    let stripped = object.program();
    assert_eq!(stripped.symbols, Symbols::None);
    assert_eq!(stripped.features(), whole.features());
    let verdict = portable::check(&[stripped], &rules());
    assert!(verdict.violations.iter().any(|violation| violation.stripped), "{verdict:?}");
    assert!(verdict.allowed.is_empty());
    assert!(portable::check(&[exported], &rules()).violations.is_empty());
}

#[test]
fn a_scalar_kernel_fails_native() {
    let isa = set(&["avx2", "avx512f"]);
    let cases = [
        ("packed", ZMM, &isa, true),
        ("scalar", SCALAR, &isa, false),
        ("narrower than the CPU", V3, &isa, false),
        ("as wide as the CPU", V3, &set(&["avx2"]), true),
        ("a CPU that ggml has no such kernel for", SCALAR, &set(&["sse3"]), true),
    ];
    for (name, body, isa, passes) in cases {
        let object = Object::new(&[("ggml_vec_dot_x", body)]);
        let verdict = native::check(&[object.program()], &rules(), isa, isa);
        assert_eq!(verdict.passed(), passes, "{name}: {verdict:?}");
    }
    // Function parts that compilers split off and names that link-time optimisation changed also match.
    for part in ["ggml_vec_dot_x.cold", "ggml_vec_dot_x.llvm.42"] {
        let object = Object::new(&[("ggml_vec_dot_x", "jmp 1f; 1:"), (part, ZMM)]);
        assert!(native::check(&[object.program()], &rules(), &isa, &isa).passed(), "{part}");
    }
}

#[test]
fn a_kernel_that_the_compiler_left_scalar_fails_native() {
    let folder = tempfile::tempdir().unwrap();
    let source = "float ggml_vec_dot_x(const float *x, const float *y, int n) {\n\
                  float sum = 0; for (int i = 0; i < n; ++i) sum += x[i] * y[i]; return sum; }\n";
    std::fs::write(folder.path().join("x.c"), source).unwrap();
    for (flags, passes) in [(["-O3", "-ffast-math"], true), (["-O1", "-fno-tree-vectorize"], false)] {
        let status = Command::new("cc")
            .args(flags)
            .args(["-march=haswell", "-shared", "-nostdlib", "-o", "x.so", "x.c"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(status.success());
        let program = Program::open(&folder.path().join("x.so")).unwrap();
        let isa = set(&["avx2", "fma"]);
        assert_eq!(native::check(&[program], &rules(), &isa, &isa).passed(), passes, "{flags:?}");
    }
}

#[test]
fn inner_loops_that_spill_are_found() {
    const SPILL: &str = "vmovups %ymm0, -64(%rsp); vaddps -64(%rsp), %ymm1, %ymm2";
    let isa = set(&["avx2"]);
    let within = |body: &str| format!("1: {body}; vaddps %ymm3, %ymm4, %ymm5; dec %eax; jnz 1b");
    let cases = [
        ("spills in the loop", within(SPILL), Some((2, 2))),
        ("stores a result", within("vmovups %ymm0, -64(%rsp)"), None),
        ("loads a constant", within("vmulps -64(%rsp), %ymm1, %ymm2"), None),
        ("writes to memory", within("vmovups %ymm0, (%rdi); vaddps (%rdi), %ymm1, %ymm2"), None),
        ("indexes an array", within("vmovups %ymm0, (%rsp,%rcx); vaddps (%rsp,%rcx), %ymm1, %ymm2"), None),
        ("spills before the loop", format!("{SPILL}; {}", within("nop")), None),
        ("spills around an inner loop", format!("2: {SPILL}; {}; dec %ebx; jnz 2b", within("nop")), None),
        ("has no loop", SPILL.to_string(), None),
        // A larger loop with a smaller share, and a loop that only copies.
        (
            "spills in a small loop",
            format!(
                "{}; {}",
                within(&format!("{SPILL};{}", "vaddps %ymm3, %ymm4, %ymm5;".repeat(60))),
                within(SPILL)
            ),
            Some((2, 2)),
        ),
        (
            "copies in another loop",
            format!(
                "3: {}; dec %ecx; jnz 3b; {}",
                "vmovups %ymm0, -64(%rsp); vmovups -64(%rsp), %ymm1; vmovups -64(%rsp), %ymm2",
                within(SPILL)
            ),
            Some((2, 2)),
        ),
        ("uses rbp as a pointer", within("vmovups %ymm0, (%rbp); vaddps (%rbp), %ymm1, %ymm2"), None),
        (
            "uses rbp as the frame",
            format!("mov %rsp, %rbp; {}", within("vmovups %ymm0, -64(%rbp); vaddps -64(%rbp), %ymm1, %ymm2")),
            Some((2, 2)),
        ),
    ];
    let text = format!("{RULES}[[inner_loop]]\nsymbols = [\"ggml_vec_dot_x\"]\nmost_percent = 10\n");
    let rules = Rules::parse(&text, Path::new("audit.toml")).unwrap();
    for (name, body, expected) in cases {
        let object = Object::new(&[("ggml_vec_dot_x", &body), ("other", &within(SPILL))]);
        let verdict = native::check(&[object.program()], &rules, &isa, &isa);
        let found: Vec<_> =
            verdict.spills.iter().map(|kernel| (kernel.spills.moves, kernel.spills.arithmetic)).collect();
        assert_eq!(
            (found, verdict.kernels_examined),
            (expected.into_iter().collect(), 1),
            "{name}: {verdict:?}"
        );
        assert!(verdict.passed(), "{name}: {verdict:?}");
    }
}

#[test]
fn an_instruction_set_that_is_offered_and_unused_fails_native() {
    let isa = set(&["avx2", "avx512f", "avx512_vnni"]);
    let without = Object::new(&[("ggml_vec_dot_x", ZMM)]);
    let verdict = native::check(&[without.program()], &rules(), &isa, &isa);
    assert!(verdict.instruction_sets[0].is_missed() && !verdict.passed());
    // Code that every build contains does not prove that a kernel exists.
    let measured = Object::new(&[("ggml_vec_dot_x", ZMM), ("roofline_x", "vpdpbusd %zmm0, %zmm1, %zmm2")]);
    let verdict = native::check(&[measured.program()], &rules(), &isa, &isa);
    assert!(verdict.instruction_sets[0].is_missed() && !verdict.passed());
    let with = Object::new(&[("ggml_vec_dot_x", "vpdpbusd %zmm0, %zmm1, %zmm2")]);
    let verdict = native::check(&[with.program()], &rules(), &isa, &isa);
    assert!(verdict.passed(), "{verdict:?}");
    assert_eq!(verdict.instruction_sets[0].functions, ["ggml_vec_dot_x"]);
}

#[test]
fn a_program_without_kernels_is_not_believed() {
    let object = Object::new(&[("something_else", ZMM)]);
    let isa = set(&["avx2"]);
    let verdict = native::check(&[object.program()], &rules(), &isa, &isa);
    assert!(!verdict.knows_the_kernels() && !verdict.passed());
}

#[test]
fn data_among_the_code_does_not_spoil_what_follows() {
    // The byte 0x62 starts a long instruction that would swallow the next instruction.
    let object = Object::new(&[
        ("a", "ret; .type table,@object; table: .byte 0x62, 0xf1, 0x6c, 0x48; .size table,.-table"),
        ("b", V3),
    ]);
    let program = object.program();
    assert_eq!((program.data, program.invalid), (4, 0));
    assert!(portable::check(&[program], &rules()).violations.is_empty());
}

#[test]
fn what_is_no_program_for_x86_64_is_refused_with_words() {
    let whole = Object::new(&[("a", V3)]).bytes();
    // e_machine: 183 is EM_AARCH64, 3 is EM_386.
    let machine = |machine: u8| {
        let mut bytes = whole.clone();
        bytes[18] = machine;
        bytes
    };
    let mut no_code = whole.clone();
    let sections = u64::from_le_bytes(whole[0x28..0x30].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(whole[0x3c..0x3e].try_into().unwrap()) as usize;
    for section in 0..count {
        // Clears SHF_EXECINSTR in sh_flags.
        no_code[sections + section * 64 + 8] &= !4;
    }
    let cases: [(&str, Vec<u8>, &str); 9] = [
        ("empty", vec![], "not an ELF file (empty)"),
        ("text", b"int main() {}".to_vec(), "not an ELF file (unknown format)"),
        ("script", b"#!/bin/sh\n".to_vec(), "not an ELF file (a script)"),
        ("library", b"!<arch>\n".to_vec(), "(a static library)"),
        ("magic alone", whole[..4].to_vec(), "is damaged"),
        ("half", whole[..whole.len() / 2].to_vec(), "is damaged"),
        ("aarch64", machine(183), "is for Aarch64, but only x86-64"),
        ("i386", machine(3), "only x86-64"),
        ("no code", no_code, "has no executable section"),
    ];
    for (name, bytes, expected) in cases {
        let error = Program::parse(&bytes, Path::new("x.so")).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("x.so"), "{name}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Program::open(folder.path()), Err(Error::NoFile { .. })));
    assert!(matches!(Program::open(&folder.path().join("x")), Err(Error::Io { .. })));
    assert!(matches!(Program::open(Path::new("/dev/zero")), Err(Error::NoFile { .. })));
}

#[test]
fn a_file_without_section_headers_is_read_by_its_segments() {
    let mut bytes = Object::new(&[("a", V3), ("b", ZMM)]).bytes();
    // e_shoff, e_shnum and e_shstrndx.
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let program = Program::parse(&bytes, Path::new("x.so")).unwrap();
    assert_eq!(program.symbols, Symbols::None);
    assert_eq!(program.features()["avx512f"], 2);
}

#[test]
fn sections_that_name_the_same_bytes_again_and_again_are_refused() {
    let mut bytes = Object::new(&[("a", V3)]).bytes();
    let size = bytes.len() as u64;
    let sections = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    for section in 1..4 {
        let at = sections + section * 64;
        // sh_type PROGBITS, sh_flags ALLOC | EXECINSTR, sh_offset, sh_size.
        bytes[at + 4..at + 8].copy_from_slice(&1u32.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&6u64.to_le_bytes());
        bytes[at + 24..at + 32].copy_from_slice(&0u64.to_le_bytes());
        bytes[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
    }
    let error = Program::parse(&bytes, Path::new("x.so")).unwrap_err().to_string();
    assert!(error.contains("overlap"), "{error}");
}

#[test]
fn damaged_files_never_panic() {
    let whole = Object::new(&[("a", V3), ("ggml_vec_dot_x", ZMM), ("c", SCALAR)]).bytes();
    let isa = set(&["avx2", "avx512f"]);
    // xorshift64 with a fixed seed, so that a failure is reproducible.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut taken, mut refused) = (0, 0);
    for round in 0..4000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(12) {
            // Half of the damage is in the headers at both ends of the file, where it has the most effect.
            let at = match random(4) {
                0 => random(64 + 56 * 8),
                1 => bytes.len() - 1 - random(64 * 16),
                _ => random(bytes.len()),
            };
            bytes[at.min(whole.len() - 1)] = [0, 0xff, 0x7f, random(256) as u8][random(4)];
        }
        if round % 5 == 0 {
            bytes.truncate(random(whole.len()));
        }
        match Program::parse(&bytes, Path::new("x.so")) {
            Ok(program) => {
                taken += 1;
                assert!(program.code <= bytes.len() as u64, "round {round}");
                let programs = [program];
                portable::check(&programs, &rules());
                native::check(&programs, &rules(), &isa, &isa);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(
        taken > 200 && refused > 200,
        "{taken} accepted and {refused} refused, but the test needs more than 200 of each"
    );
}
