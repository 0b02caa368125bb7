//! Compiler cache: a file that several builds share is compiled only once.

mod counts;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use toolchain::Toolchain;

use base::exit;
pub use counts::Counts;

/// Choice of a compiler cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// sccache if installed, else ccache if installed, else no cache.
    #[default]
    Auto,
    /// sccache.
    Sccache,
    /// ccache.
    Ccache,
    /// No compiler cache.
    Off,
}

/// Compiler cache in front of the compilers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the cache; `None` for no cache.
    pub program: Option<PathBuf>,
    /// True if the user made the choice, including the choice of no cache.
    pub named: bool,
    /// Path of the cache for builds that `program` must not compile; `None` if the user made the choice.
    pub instead: Option<PathBuf>,
}

impl Cache {
    /// Returns the option as text, or `None` if it is `default`.
    pub fn option(self, default: Self) -> Option<String> {
        let value = self.to_possible_value().filter(|_| self != default)?;
        Some(format!("--cache {}", value.get_name()))
    }

    /// Returns the compiler cache to use.
    ///
    /// # Errors
    /// A usage error if the requested cache is not installed.
    pub fn launcher(self, toolchain: &Toolchain) -> Result<Launcher> {
        let path = |tool: &Option<build_info::record::Tool>| tool.as_ref().map(|tool| tool.path.clone());
        let (sccache, ccache) = (path(&toolchain.sccache), path(&toolchain.ccache));
        let missing = |name: &str| {
            exit::usage(format!(
                "cannot use --cache {name}: {name} is not installed\nhint: install it, or use --cache auto"
            ))
        };
        let named = |program| Launcher { program, named: true, instead: None };
        match self {
            Cache::Off => Ok(named(None)),
            Cache::Auto if sccache.is_some() => {
                Ok(Launcher { program: sccache, named: false, instead: ccache })
            }
            Cache::Auto => Ok(Launcher { program: ccache, ..Launcher::default() }),
            Cache::Sccache => sccache.map(|path| named(Some(path))).ok_or_else(|| missing("sccache")),
            Cache::Ccache => ccache.map(|path| named(Some(path))).ok_or_else(|| missing("ccache")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_taken_where_there_is_one() {
        let tool = |path: &str| {
            Some(build_info::record::Tool { path: path.into(), version: "1".into(), llvm_major: None })
        };
        let both = Toolchain { sccache: tool("/s"), ccache: tool("/c"), ..Toolchain::default() };
        let one = Toolchain { ccache: tool("/c"), ..Toolchain::default() };
        let none = Toolchain::default();
        let cases = [
            (Cache::Auto, &both, Some("/s"), false, Some("/c")),
            (Cache::Auto, &one, Some("/c"), false, None),
            (Cache::Auto, &none, None, false, None),
            (Cache::Sccache, &both, Some("/s"), true, None),
            (Cache::Ccache, &both, Some("/c"), true, None),
            (Cache::Off, &both, None, true, None),
        ];
        for (cache, toolchain, program, named, instead) in cases {
            let (program, instead) = (program.map(PathBuf::from), instead.map(PathBuf::from));
            assert_eq!(cache.launcher(toolchain).unwrap(), Launcher { program, named, instead }, "{cache:?}");
        }
        let error = Cache::Sccache.launcher(&one).unwrap_err();
        assert_eq!(exit::code_of(&error), 2);
        assert!(error.to_string().contains("sccache is not installed"), "{error}");
    }
}
