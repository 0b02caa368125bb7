//! Unsafe code in a file.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Returns the line number and the kind of each unsafe construct in `text`, the content of a file.
///
/// # Errors
/// If `text` is not valid Rust.
pub fn unsafe_code(text: &str) -> Result<Vec<(usize, &'static str)>, String> {
    // Parsing is slow, so files without these words are skipped.
    if !text.contains("unsafe") && !text.contains("extern") {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text).map_err(|why| why.to_string())?;
    let mut found = UnsafeLines::default();
    found.visit_file(&file);
    found.lines.sort_unstable();
    found.lines.dedup();
    Ok(found.lines)
}

#[derive(Default)]
struct UnsafeLines {
    lines: Vec<(usize, &'static str)>,
}

impl UnsafeLines {
    fn keep(&mut self, span: Span, what: &'static str) {
        self.lines.push((span.start().line, what));
    }

    /// Finds unsafe code in the tokens of macros and attributes, which syn does not parse further.
    fn tokens(&mut self, tokens: TokenStream, what: &'static str) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) if name == "unsafe" => self.keep(name.span(), what),
                TokenTree::Group(group) => self.tokens(group.stream(), what),
                _ => {}
            }
        }
    }
}

impl<'a> Visit<'a> for UnsafeLines {
    fn visit_expr_unsafe(&mut self, block: &'a syn::ExprUnsafe) {
        self.keep(block.unsafe_token.span, "unsafe block");
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        if let Some(word) = &signature.unsafety {
            self.keep(word.span, "unsafe function");
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if let Some(word) = &item.unsafety {
            self.keep(word.span, "unsafe impl");
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        if let Some(word) = &item.unsafety {
            self.keep(word.span, "unsafe trait");
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'a syn::ItemForeignMod) {
        self.keep(item.abi.extern_token.span, "extern block");
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let Some(word) = attribute.path().get_ident().filter(|name| *name == "unsafe") {
            self.keep(word.span(), "unsafe attribute");
        }
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), "unsafe attribute");
        }
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(call.tokens.clone(), "unsafe code in a macro");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_of_every_kind_is_found() {
        let cases = [
            ("fn f() { unsafe { g() } }", "unsafe block"),
            // A search by line would miss a block whose brace is on the next line.
            ("fn f() { unsafe\n{ g() } }", "unsafe block"),
            ("pub unsafe\nfn f() {}", "unsafe function"),
            ("unsafe\textern \"C\" fn f() {}", "unsafe function"),
            ("impl A { unsafe fn f() {} }", "unsafe function"),
            ("trait A { unsafe fn f(); }", "unsafe function"),
            ("unsafe impl Send for A {}", "unsafe impl"),
            ("unsafe trait A {}", "unsafe trait"),
            ("unsafe extern \"C\" { fn f(); }", "extern block"),
            ("#[unsafe(no_mangle)] pub fn f() {}", "unsafe attribute"),
            ("#[cfg_attr(unix, unsafe(no_mangle))] pub fn f() {}", "unsafe attribute"),
            ("macro_rules! m { () => { unsafe { g() } }; }", "unsafe code in a macro"),
            ("fn f() { assert!(unsafe { g() }); }", "unsafe code in a macro"),
        ];
        for (text, what) in cases {
            assert_eq!(unsafe_code(text), Ok(vec![(1, what)]), "{text}");
        }
        assert_eq!(unsafe_code("\n\nfn f() { unsafe {} }"), Ok(vec![(3, "unsafe block")]));
    }

    #[test]
    fn words_in_comments_and_texts_are_not_code() {
        let text = "//! unsafe { }\n#![allow(unsafe_code)]\n/* unsafe fn */ const A: &str = \"unsafe { f() }\";\n\
                    type B = unsafe extern \"C\" fn(); fn f() { println!(\"unsafe {{\"); }";
        assert_eq!(unsafe_code(text), Ok(vec![]));
        assert!(unsafe_code("unsafe fn {").is_err());
    }
}
