//! A compiler cache: files that two builds have in common are compiled once.

mod counts;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use toolchain::Toolchain;

use crate::exit;
pub use counts::Counts;

/// Whether a compiler cache runs the compilers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// sccache, else ccache, else none.
    #[default]
    Auto,
    /// sccache.
    Sccache,
    /// ccache.
    Ccache,
    /// None.
    Off,
}

impl Cache {
    /// The option as it is written, where it is not `default`.
    pub fn option(self, default: Self) -> Option<String> {
        let value = self.to_possible_value().filter(|_| self != default)?;
        Some(format!("--cache {}", value.get_name()))
    }

    /// The program that runs the compilers.
    ///
    /// # Errors
    /// When one is asked for that is not there.
    pub fn launcher(self, toolchain: &Toolchain) -> Result<Option<PathBuf>> {
        let path = |tool: &Option<build_info::record::Tool>| tool.as_ref().map(|tool| tool.path.clone());
        let (sccache, ccache) = (path(&toolchain.sccache), path(&toolchain.ccache));
        let missing =
            |name: &str| exit::usage(format!("--cache {name}: there is no {name}; install it, or use auto"));
        match self {
            Cache::Off => Ok(None),
            Cache::Auto => Ok(sccache.or(ccache)),
            Cache::Sccache => sccache.map(Some).ok_or_else(|| missing("sccache")),
            Cache::Ccache => ccache.map(Some).ok_or_else(|| missing("ccache")),
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
            (Cache::Auto, &both, Some("/s")),
            (Cache::Auto, &one, Some("/c")),
            (Cache::Auto, &none, None),
            (Cache::Ccache, &both, Some("/c")),
            (Cache::Off, &both, None),
        ];
        for (cache, toolchain, expected) in cases {
            assert_eq!(cache.launcher(toolchain).unwrap(), expected.map(PathBuf::from), "{cache:?}");
        }
        let error = Cache::Sccache.launcher(&one).unwrap_err();
        assert_eq!(exit::code_of(&error), 2);
        assert!(error.to_string().contains("there is no sccache"), "{error}");
    }
}
