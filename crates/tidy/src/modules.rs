//! Imports among the files of a crate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

use crate::paths::{PathsOfFile, is_test};

/// Files that each file imports, each with one path that refers to the imported file. All file names are relative to
/// the crate's `src`.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Module in a separate file or inside another module's file.
struct Module {
    file: String,
}

/// Reads the modules of the crate whose root is `root` (`src/lib.rs` or `src/main.rs`). Test modules are left out. A
/// path is treated as an import of the file that it names, even if that file only re-exports the item.
///
/// # Errors
/// If a file cannot be read; the message contains its path.
pub fn imports(root: &Path) -> Result<Imports, String> {
    let source = root.parent().unwrap_or(Path::new("."));
    let mut reader = ModuleReader { source, modules: BTreeMap::new(), found: Vec::new() };
    reader.file(root, &[], source)?;
    let mut all = Imports::new();
    for module in reader.modules.values() {
        all.entry(module.file.clone()).or_default();
    }
    for (module, path) in &reader.found {
        let Some(target) = reader.resolve(module, path) else { continue };
        let from = &reader.modules[module].file;
        if *from != target {
            let words = path.join("::");
            all.entry(from.clone()).or_default().entry(target).or_insert(words);
        }
    }
    Ok(all)
}

type ModulePath = Vec<String>;

struct ModuleReader<'a> {
    source: &'a Path,
    modules: BTreeMap<ModulePath, Module>,
    /// Paths, each with the module that contains it.
    found: Vec<(ModulePath, Vec<String>)>,
}

impl ModuleReader<'_> {
    /// Reads the file of `module`, whose child modules are in `folder`.
    fn file(&mut self, path: &Path, module: &[String], folder: &Path) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", path.display());
        let text = fs::read_to_string(path).map_err(|why| failed(&why))?;
        let parsed = syn::parse_file(&text).map_err(|why| failed(&why))?;
        let name = path.strip_prefix(self.source).unwrap_or(path).display().to_string();
        self.items(&parsed.items, module, &name, folder)
    }

    fn items(
        &mut self,
        items: &[syn::Item],
        module: &[String],
        file: &str,
        folder: &Path,
    ) -> Result<(), String> {
        self.modules.insert(module.to_vec(), Module { file: file.to_string() });
        let mut found = PathsOfFile::default();
        for item in items {
            match item {
                syn::Item::Mod(child) if is_test(&child.attrs) => {}
                syn::Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let path: ModulePath = [module, std::slice::from_ref(&name)].concat();
                    match &child.content {
                        Some((_, items)) => self.items(items, &path, file, &folder.join(&name))?,
                        None => self.child(child, &path, folder)?,
                    }
                }
                item => found.visit_item(item),
            }
        }
        self.found.extend(found.paths.into_iter().map(|path| (module.to_vec(), path)));
        Ok(())
    }

    /// Reads the file of the module that `child` (`mod name;`) declares in `module`. The files of child modules are
    /// in `folder`.
    fn child(&mut self, child: &syn::ItemMod, module: &[String], folder: &Path) -> Result<(), String> {
        let name = child.ident.to_string();
        let named = child.attrs.iter().find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
        let candidates: Vec<PathBuf> = match named {
            Some(path) => vec![folder.join(path)],
            None => vec![folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")],
        };
        let path = candidates.iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| format!("{} has no file for mod {name}", folder.display()))?;
        self.file(path, module, &folder.join(&name))
    }

    /// Returns the file that `path` refers to, seen from `module`; `None` if the path points outside the crate.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<String> {
        let mut base = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            // The name is a child module. Any other name was imported by another path, which is already counted.
            name => {
                let child: ModulePath = [&base[..], &[name.to_string()]].concat();
                self.modules.get(&child)?;
            }
        }
        base.extend(rest.iter().cloned());
        while !self.modules.contains_key(&base) {
            base.pop()?;
        }
        Some(self.modules[&base].file.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports_of(files: &[(&str, &str)]) -> Imports {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        imports(&folder.path().join("lib.rs")).unwrap()
    }

    fn edges(imports: &Imports) -> Vec<(&str, &str, &str)> {
        let all = imports.iter().flat_map(|(from, to)| to.iter().map(move |(to, path)| (from, to, path)));
        all.map(|(from, to, path)| (from.as_str(), to.as_str(), path.as_str())).collect()
    }

    #[test]
    fn paths_of_every_kind_are_imports() {
        let imports = imports_of(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "mod deep; use crate::b::{self, B}; pub struct A(B);"),
            ("a/deep.rs", "fn f() -> super::A { println!(\"{}\", crate::b::N); loop {} }"),
            ("b/mod.rs", "pub struct B; pub const N: u8 = 1;"),
        ]);
        let expected = [
            ("a.rs", "b/mod.rs", "crate::b"),
            ("a/deep.rs", "a.rs", "super::A"),
            ("a/deep.rs", "b/mod.rs", "crate::b::N"),
            ("lib.rs", "a.rs", "a::A"),
        ];
        assert_eq!(edges(&imports), expected);
    }

    #[test]
    fn tests_inline_modules_and_other_crates_are_none() {
        let imports = imports_of(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "mod raw { use super::*; } use std::fs; #[cfg(test)] mod tests { use crate::b::B; } \
                 #[cfg(test)] use crate::b; fn f() { fs::read(\"x\"); } \
                 #[cfg(all(test, unix))] mod others { use crate::b::B; } #[tokio::test] fn g() { crate::b::h(); }",
            ),
            ("b.rs", "#[test] fn f() { crate::a::g(); } pub struct B;"),
        ]);
        assert_eq!(edges(&imports), []);
        assert_eq!(imports.len(), 3);
    }
}
