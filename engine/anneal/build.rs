//! Passes linker arguments on for llama-link, because cargo accepts them only from the executable's package. Also
//! embeds the list of crates, if it exists.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let arguments = std::env::var("DEP_LLAMA_LINK_ARGS").unwrap_or_default();
    let arguments: Vec<String> = match serde_json::from_str(&arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            println!("cargo::error=llama-link passed invalid linker arguments ({error}): {arguments}");
            return;
        }
    };
    for argument in arguments {
        println!("cargo::rustc-link-arg={argument}");
    }

    println!("cargo::rustc-check-cfg=cfg(auditable)");
    println!("cargo::rerun-if-env-changed=ANNEAL_AUDITABLE");
    if let Some(list) = std::env::var_os("ANNEAL_AUDITABLE") {
        println!("cargo::rerun-if-changed={}", list.display());
        println!("cargo::rustc-env=ANNEAL_AUDITABLE={}", list.display());
        println!("cargo::rustc-cfg=auditable");
    }
}
