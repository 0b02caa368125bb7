use super::*;
use crate::testing::Machine;

/// Creates a library and its header in a distribution's layout.
fn lay(machine: &Machine, header: &str, library: &str) {
    machine.file(header, "");
    machine.file(library, "");
}

/// Creates an OpenBLAS whose `.pc` file at `pc` refers to the folders `lib` and `include`.
fn openblas(machine: &Machine, pc: &str, flavour: &str, config: &str, file: &str) {
    let root = machine.root().display();
    let (lib, include) = (format!("usr/lib/x86_64-linux-gnu/{flavour}"), format!("usr/include/{flavour}"));
    lay(machine, &format!("{include}/cblas.h"), &format!("{lib}/{file}"));
    machine.link(&format!("{lib}/libopenblas.so"), file);
    let escape = |text: String| text.replace(' ', "\\ ");
    machine.file(
        pc,
        &format!(
            "libdir={}/\nincludedir={}\nopenblas_config= {config}\nversion=0.3.21\nName: openblas\nVersion: \
             ${{version}}\nLibs: -L${{libdir}} -lopenblas\nLibs.private: -lm -lgfortran\nCflags: -I${{includedir}}\n",
            escape(format!("{root}/{lib}")),
            escape(format!("{root}/{include}"))
        ),
    );
}

/// Creates MKL in pip's layout below `prefix`.
fn mkl(machine: &Machine, prefix: &str, threads: &str, layer: &str) {
    for name in ["intel_lp64", layer, "core"] {
        machine.file(&format!("{prefix}/lib/libmkl_{name}.so.3"), "");
    }
    machine.file(&format!("{prefix}/include/mkl.h"), "");
    machine.file(
        &format!("{prefix}/lib/pkgconfig/mkl-dynamic-lp64-{threads}.pc"),
        &format!(
            "# comment\nprefix=${{pcfiledir}}/../..\nlibdir=\"${{prefix}}\"/lib\nName: mkl\nVersion: 2026.2\nLibs: \
             -L${{libdir}} \"${{prefix}}\"/lib/libmkl_intel_lp64.so.3 \"${{prefix}}\"/lib/libmkl_{layer}.so.3 \
             \"${{prefix}}\"/lib/libmkl_core.so.3 -lpthread -lm\nCflags: -I\"${{prefix}}/include\"\n"
        ),
    );
}

/// Returns one line per library that is found: vendor, version, threading, name for pkg-config, files.
fn found(machine: &Machine, search: &SearchPath) -> Vec<String> {
    let own = machine.root().join("usr/lib/x86_64-linux-gnu/pkgconfig");
    let line = |library: BlasLibrary| {
        let files: Vec<&str> = library.libraries.iter().map(|path| file_name(path)).collect();
        let threading = library.threading.map_or("?".to_string(), |threading| threading.to_string());
        let name = library.pkg_config.as_deref().unwrap_or("-");
        format!("{} {} {threading} {name} {}", library.vendor, library.version, files.join(","))
    };
    find(search, own.to_str().unwrap()).into_iter().map(line).collect()
}

const PC: &str = "usr/lib/x86_64-linux-gnu/pkgconfig/openblas.pc";

#[test]
fn the_flavour_of_openblas_is_told() {
    let cases = [
        ("USE_OPENMP=0", "libopenblasp-r0.3.21.so", "pthread"),
        ("USE_OPENMP=1", "libopenblasp-r0.3.21.so", "openmp"),
        ("USE_OPENMP=0", "libopenblas-r0.3.21.so", "serial"),
        ("", "libopenblaso.so.0.3.21", "openmp"),
        ("", "libopenblas.so.0", "?"),
    ];
    for (config, file, expected) in cases {
        let machine = Machine::new();
        openblas(&machine, PC, "openblas-x", config, file);
        assert_eq!(
            found(&machine, &machine.search()),
            [format!("openblas 0.3.21 {expected} openblas {file}")],
            "{config} {file}"
        );
    }
}

#[test]
fn the_users_own_path_comes_first_and_links_are_followed() {
    let machine = Machine::new();
    openblas(
        &machine,
        "usr/lib/x86_64-linux-gnu/flavour.pc",
        "openblas-pthread",
        "",
        "libopenblasp-r0.3.21.so",
    );
    machine.link(PC, "../flavour.pc");
    let search = machine.search();
    assert_eq!(found(&machine, &search), ["openblas 0.3.21 pthread openblas libopenblasp-r0.3.21.so"]);
    openblas(&machine, "own/openblas.pc", "own", "", "libopenblas-r0.3.29.so");
    let own = SearchPath { pkg_config_path: vec![machine.root().join("own")], ..search };
    assert_eq!(found(&machine, &own), ["openblas 0.3.21 serial openblas libopenblas-r0.3.29.so"]);
}

#[test]
fn a_library_without_its_parts_is_none() {
    let gone: [&str; 2] = ["usr/include/x/cblas.h", "usr/lib/x86_64-linux-gnu/x/libopenblas.so"];
    for gone in gone {
        let machine = Machine::new();
        openblas(&machine, PC, "x", "", "libopenblasp.so");
        assert_eq!(found(&machine, &machine.search()).len(), 1);
        fs::remove_file(machine.root().join(gone)).unwrap();
        assert_eq!(found(&machine, &machine.search()), [""; 0], "{gone}");
    }
    for text in ["", "\u{0}", "Version: ${x}\nLibs: -lopenblas", "Libs: -lopenblas"] {
        let machine = Machine::new();
        openblas(&machine, PC, "x", "", "libopenblasp.so");
        machine.file(PC, text);
        assert_eq!(found(&machine, &machine.search()), [""; 0], "{text:?}");
    }
}

#[test]
fn debians_blis_is_found_by_its_folders() {
    let machine = Machine::new();
    for flavour in ["serial", "openmp"] {
        let lib = format!("usr/lib/x86_64-linux-gnu/blis-{flavour}");
        let header = format!("usr/include/x86_64-linux-gnu/blis-{flavour}/blis.h");
        lay(&machine, &header, &format!("{lib}/libblis.so.4.0.0"));
        machine.link(&format!("{lib}/libblis.so"), "libblis.so.4.0.0");
        machine.file(
            &format!("usr/share/blis-{flavour}-x86_64-linux-gnu/config.mk"),
            "# VERSION\nVERSION           := 0.9.0\n",
        );
    }
    let search = machine.search();
    let expected = ["blis 0.9.0 openmp - libblis.so.4.0.0", "blis 0.9.0 serial - libblis.so.4.0.0"];
    assert_eq!(found(&machine, &search), expected);
    fs::remove_dir_all(machine.root().join("usr/include/x86_64-linux-gnu/blis-openmp")).unwrap();
    assert_eq!(found(&machine, &search), expected[1..], "no header");
}

#[test]
fn a_blis_with_a_pc_file_tells_its_threads_in_its_header() {
    let cases = [
        ("#if 1\n#define BLIS_ENABLE_OPENMP\n#endif\n#if 0\n#define BLIS_ENABLE_PTHREADS\n", "openmp"),
        ("#if 0\n#define BLIS_ENABLE_OPENMP\n#endif\n#if 1\n#define BLIS_ENABLE_PTHREADS\n", "pthread"),
        ("#if 0\n#define BLIS_ENABLE_OPENMP\n#endif\n#if 0\n#define BLIS_ENABLE_PTHREADS\n", "serial"),
    ];
    for (header, expected) in cases {
        let machine = Machine::new();
        machine.file("usr/include/blis.h", header);
        machine.file("usr/lib64/libblis.so", "");
        machine.file("own/blis.pc", "Name: blis\nVersion: 1.0\nLibs: -lblis -lm\nCflags: -I/nowhere\n");
        let search = SearchPath { pkg_config_path: vec![machine.root().join("own")], ..machine.search() };
        assert_eq!(found(&machine, &search), [format!("blis 1.0 {expected} blis libblis.so")]);
    }
}

#[test]
fn mkl_is_found_where_setup_puts_it() {
    for prefix in ["target/tools/mkl", "target/tools/mkl/local", "opt/intel/oneapi/mkl/latest"] {
        let machine = Machine::new();
        let search = machine.search();
        mkl(&machine, prefix, "seq", "sequential");
        mkl(&machine, prefix, "iomp", "intel_thread");
        mkl(&machine, prefix, "gomp", "gnu_thread");
        let serial = "mkl 2026.2 serial mkl-dynamic-lp64-seq \
                      libmkl_intel_lp64.so.3,libmkl_sequential.so.3,libmkl_core.so.3";
        assert_eq!(found(&machine, &search), [serial], "{prefix}: no OpenMP runtime");
        machine.file(&format!("{prefix}/lib/libiomp5.so"), "");
        let threaded = "mkl 2026.2 openmp mkl-dynamic-lp64-iomp \
                        libmkl_intel_lp64.so.3,libmkl_intel_thread.so.3,libmkl_core.so.3,libiomp5.so";
        assert_eq!(found(&machine, &search), [threaded, serial], "{prefix}");
        fs::remove_file(machine.root().join(prefix).join("lib/libmkl_core.so.3")).unwrap();
        assert_eq!(found(&machine, &search), [""; 0], "{prefix}: a layer is missing");
    }
}
