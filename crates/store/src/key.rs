//! Keys of builds. A key covers everything that determines the compilers' output, except the paths on the machine
//! that runs the compilers.

use std::fmt::Write as _;

use build_info::tuning::CpuKey;
use build_info::{Glibc, Host, Sha256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the computation of keys. Another version yields other keys.
pub const SCHEMA: u32 = 1;

/// Parts of a key in readable form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// Version of the computation of keys.
    pub schema: u32,
    /// Plan, including llama.cpp's sources and patches. Tools are given by name and version, without paths.
    pub plan: Value,
    /// Digest of the engine's Rust sources.
    pub engine: Sha256,
    /// Digest of the reference of the correctness gate that the build has passed.
    pub gate: Sha256,
    /// Digest of the audit's rules, which the build satisfies.
    pub audit: Sha256,
    /// CPU that the build is for; `None` if the build does not depend on a CPU.
    pub cpu: Option<CpuKind>,
    /// C library of the machine; `None` if the compilers contain their own.
    pub glibc: Option<Glibc>,
}

/// Properties of a CPU that determine the code compiled for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuKind {
    /// Architecture: `x86_64` or `aarch64`.
    pub arch: String,
    /// Vendor: `GenuineIntel` or `AuthenticAMD`.
    pub vendor: String,
    /// Display family; `None` if unknown.
    pub family: Option<u32>,
    /// Display model; `None` if unknown.
    pub model: Option<u32>,
    /// Instruction sets that a program may use, in ascending order.
    pub features: Vec<String>,
}

impl CpuKind {
    /// Returns the kind of CPU in `host`.
    pub fn of(host: &Host) -> Self {
        Self {
            arch: host.arch.clone(),
            vendor: host.cpu.vendor.clone(),
            family: host.cpu.family,
            model: host.cpu.model,
            features: host.cpu.features.iter().cloned().collect(),
        }
    }

    /// Returns the name of the kind in a store: `x86_64-AuthenticAMD-25-1-` and 12 digits of the features' digest.
    pub fn id(&self) -> String {
        let number = |number: Option<u32>| number.map_or("x".to_string(), |number| number.to_string());
        let features = Sha256::of(self.features.join("\n"));
        plain(&format!(
            "{}-{}-{}-{}-{}",
            self.arch,
            self.vendor,
            number(self.family),
            number(self.model),
            features.short()
        ))
    }
}

/// Returns the store's name for builds that do not depend on the CPU.
pub fn any(arch: &str) -> String {
    plain(&format!("{arch}-any"))
}

impl Parts {
    /// Returns the key: SHA-256 of the parts as JSON with sorted names and without spaces.
    pub fn key(&self) -> Sha256 {
        Sha256::of(canonical(&serde_json::to_value(self).unwrap_or_default()))
    }

    /// Returns the store's name for the kind of CPU that the build is for.
    pub fn kind(&self) -> String {
        match &self.cpu {
            Some(cpu) => cpu.id(),
            None => any(self.arch()),
        }
    }

    fn arch(&self) -> &str {
        let target = self.plan.get("target").and_then(Value::as_str).unwrap_or_default();
        target.split('-').next().unwrap_or_default()
    }

    /// Returns the parts of the key, one line each, for finding the difference between two machines.
    pub fn explain(&self) -> Vec<String> {
        let cpu = self.cpu.as_ref().map_or("any (the build does not depend on the CPU)".to_string(), |cpu| {
            format!("{} ({})", cpu.id(), cpu.features.join(" "))
        });
        let glibc = self.glibc.map_or("from the compilers, not from this machine".to_string(), |glibc| {
            format!("{glibc} of this machine")
        });
        vec![
            format!("key {}", self.key()),
            format!("  plan without paths {}", Sha256::of(canonical(&self.plan))),
            format!("  engine's sources {}", self.engine),
            format!("  gate's reference {}", self.gate),
            format!("  audit's rules {}", self.audit),
            format!("  CPU {cpu}"),
            format!("  glibc {glibc}"),
        ]
    }
}

/// Returns the store's name for the CPU that settings were tuned for.
pub fn of_tuned(cpu: &CpuKey) -> Sha256 {
    Sha256::of(canonical(&serde_json::to_value(cpu).unwrap_or_default()))
}

/// Returns `name` with `_` in place of characters that are special in a path.
pub fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Returns canonical JSON: equal values give equal texts, independent of the order of a map in memory.
fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort();
            text.push('{');
            for (at, name) in names.into_iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{}:", Value::from(name.as_str()));
                write(&map[name], text);
            }
            text.push('}');
        }
        Value::Array(all) => {
            text.push('[');
            for (at, one) in all.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write(one, text);
            }
            text.push(']');
        }
        other => {
            let _ = write!(text, "{other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        Parts {
            schema: SCHEMA,
            plan: serde_json::json!({ "target": "x86_64-unknown-linux-gnu", "compiler": { "kind": "clang" } }),
            engine: Sha256::of(b"engine"),
            gate: Sha256::of(b"gate"),
            audit: Sha256::of(b"audit"),
            cpu: Some(CpuKind {
                arch: "x86_64".into(),
                vendor: "AuthenticAMD".into(),
                family: Some(25),
                model: Some(1),
                features: vec!["avx2".into(), "fma".into()],
            }),
            glibc: Some("2.36".parse().unwrap()),
        }
    }

    #[test]
    fn a_key_is_another_one_when_any_part_is() {
        let whole = parts();
        assert_eq!(whole.key(), parts().key());
        let changed = |change: fn(&mut Parts)| {
            let mut changed = parts();
            change(&mut changed);
            changed.key()
        };
        let others = [
            changed(|parts| parts.schema += 1),
            changed(|parts| parts.plan["compiler"]["kind"] = "gcc".into()),
            changed(|parts| parts.engine = Sha256::of(b"other")),
            changed(|parts| parts.gate = Sha256::of(b"other")),
            changed(|parts| parts.audit = Sha256::of(b"other")),
            changed(|parts| parts.cpu.as_mut().unwrap().model = Some(2)),
            changed(|parts| parts.cpu.as_mut().unwrap().features.push("avx512f".into())),
            changed(|parts| parts.cpu = None),
            changed(|parts| parts.glibc = Some("2.31".parse().unwrap())),
            changed(|parts| parts.glibc = None),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, whole.key(), "change {at}");
            assert!(!others[..at].contains(other), "change {at} is an earlier one");
        }
    }

    #[test]
    fn a_key_survives_being_written_and_read() {
        let text = serde_json::to_string_pretty(&parts()).unwrap();
        assert_eq!(serde_json::from_str::<Parts>(&text).unwrap().key(), parts().key());
        let sorted = canonical(&serde_json::json!({ "b": [1, { "d": null, "c": "\"" }], "a": 1.5 }));
        assert_eq!(sorted, r#"{"a":1.5,"b":[1,{"c":"\"","d":null}]}"#);
    }

    #[test]
    fn kinds_have_names_that_are_no_paths() {
        let kind = parts().kind();
        assert!(kind.starts_with("x86_64-AuthenticAMD-25-1-"), "{kind}");
        assert_eq!(Parts { cpu: None, ..parts() }.kind(), "x86_64-any");
        let odd = CpuKind { vendor: "../a b".into(), family: None, ..parts().cpu.unwrap() };
        assert!(odd.id().starts_with("x86_64-.._a_b-x-1-"), "{}", odd.id());
    }
}
