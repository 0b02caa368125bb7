//! Passes on the linker arguments that llama-link cannot: cargo takes them only from the package of the
//! executable.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let arguments = std::env::var("DEP_LLAMA_LINK_ARGS").unwrap_or_default();
    let arguments: Vec<String> = match serde_json::from_str(&arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            println!(
                "cargo::error=llama-link passed linker arguments that cannot be read ({error}): {arguments}"
            );
            return;
        }
    };
    for argument in arguments {
        println!("cargo::rustc-link-arg={argument}");
    }
}
