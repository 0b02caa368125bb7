//! Plan without the paths of the machine that made it, so that equal machines have equal plans.

use std::path::Path;

use serde_json::Value;

use crate::plan::Plan;

impl Plan {
    /// Returns this plan as JSON, with names of tools instead of their paths and with `.` for the checkout at `root`.
    /// Other paths are kept, because their content may differ on another machine.
    pub fn without_places(&self, root: &Path) -> Value {
        let mut places = self.places(root);
        // Replace the longest paths first, because a shorter path may be the beginning of a longer one.
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let mut value = serde_json::to_value(self).unwrap_or_default();
        rename(&mut value, &places);
        // Defaults are not compiled into the program (see `Plan::defaults`). A machine that downloads the build writes
        // its own defaults.
        if let Some(plan) = value.as_object_mut() {
            plan.remove("defaults");
        }
        // `base` is a hash that depends on paths, but its inputs are part of this plan. `gcda` is a path, but the
        // profile's digest identifies gcc's counts.
        if let Some(variant) = value.get_mut("variant").and_then(Value::as_object_mut) {
            variant.remove("base");
            variant.remove("gcda");
        }
        value
    }

    /// Returns the paths of this machine, each with its replacement.
    fn places(&self, root: &Path) -> Vec<(String, String)> {
        let tools =
            [&self.compiler.cc, &self.compiler.cxx, &self.cmake.path, &self.ninja.path, &self.rustc.path];
        let linker = self.linker.iter().map(|linker| &linker.path);
        let archivers = self.lto.ar.iter().chain(&self.lto.ranlib);
        let blas = self.blas_library.iter().flat_map(|library| &library.libraries);
        let named = tools.into_iter().chain(linker).chain(archivers).chain(blas).map(|path| {
            (path.as_path(), path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        });
        let folders = self.libclang.iter().map(|found| (found.dir.as_path(), "libclang".to_string()));
        let headers =
            self.blas_library.iter().map(|library| (library.include.as_path(), "include".to_string()));
        named
            .chain(folders)
            .chain(headers)
            .chain([(root, ".".to_string())])
            // zig's compilers have no absolute path, and `/` is part of every absolute path.
            .filter(|(path, _)| path.is_absolute() && path.components().count() > 1)
            .map(|(path, name)| (path.to_string_lossy().into_owned(), name))
            .collect()
    }
}

/// Replaces paths with names in all strings of `value`.
fn rename(value: &mut Value, places: &[(String, String)]) {
    match value {
        Value::String(text) => {
            for (path, name) in places {
                *text = renamed(text, path, name);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| rename(one, places)),
        Value::Object(map) => map.values_mut().for_each(|one| rename(one, places)),
        _ => {}
    }
}

/// Replaces `path` in `text` with `name`, if it is a whole path or a leading folder of one.
fn renamed(text: &str, path: &str, name: &str) -> String {
    let mut rest = text;
    let mut done = String::new();
    while let Some(at) = rest.find(path) {
        let behind = &rest[at + path.len()..];
        let whole = !behind.starts_with(|c: char| c.is_alphanumeric() || "._+-".contains(c));
        done += &rest[..at];
        done += if whole { name } else { path };
        rest = behind;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reference_plan;

    #[test]
    fn only_whole_paths_are_renamed() {
        let cases = [
            ("/usr/bin/clang-22", "clang-22"),
            ("--ld-path=/usr/bin/clang-22", "--ld-path=clang-22"),
            ("/usr/bin/clang-22;/usr/bin/clang-22", "clang-22;clang-22"),
            ("/usr/bin/clang-22.1", "/usr/bin/clang-22.1"),
            ("/usr/bin/clang", "/usr/bin/clang"),
        ];
        for (text, expected) in cases {
            assert_eq!(renamed(text, "/usr/bin/clang-22", "clang-22"), expected);
        }
        assert_eq!(renamed("-I/src/anneal/x", "/src/anneal", "."), "-I./x");
    }

    #[test]
    fn where_tools_and_the_checkout_lie_is_no_part_and_what_they_are_is() {
        let plan = reference_plan("native");
        let here = plan.without_places(Path::new("/home/a/anneal"));
        let text = here.to_string();
        assert!(!text.contains("/usr/") && text.contains("clang"), "{text}");

        // The engine's defaults are not part of any program.
        let mut defaults = plan.clone();
        defaults.defaults.op_offload = Some(false);
        assert_eq!(defaults.without_places(Path::new("/home/a/anneal")), here);

        // Use the same tools in other folders, and another checkout.
        let mut moved = plan.clone();
        let cc = moved.compiler.cc.clone();
        moved.compiler.cc = Path::new("/opt/llvm/bin").join(cc.file_name().unwrap());
        let definition = moved.definitions.get_mut("CMAKE_C_COMPILER").unwrap();
        *definition = moved.compiler.cc.display().to_string();
        moved.rustc.path = "/home/b/.cargo/bin/rustc".into();
        moved.codegen.rust.push("-Cx=/home/b/anneal/target/y".to_string());
        let mut same = plan.clone();
        same.codegen.rust.push("-Cx=/home/a/anneal/target/y".to_string());
        assert_ne!(same.hash(), moved.hash());
        let there = moved.without_places(Path::new("/home/b/anneal"));
        assert_eq!(same.without_places(Path::new("/home/a/anneal")), there);
        assert_ne!(there, here);

        // Use a different version, and a file that may exist only on this machine.
        let mut newer = plan.clone();
        newer.compiler.version.minor += 1;
        assert_ne!(newer.without_places(Path::new("/home/a/anneal")), here);
        let mut own = plan.clone();
        own.codegen.cxx.push("-I/opt/include".to_string());
        assert!(own.without_places(Path::new("/home/a/anneal")).to_string().contains("-I/opt/include"));
    }
}
