//! The macro behind `#[derive(Module)]`, which `meshgrad::autograd` re-exports and documents.

mod module;

use proc_macro::TokenStream;

/// Implements `Module` by visiting every field in order; see `meshgrad::autograd::Module`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    module::derive(input).unwrap_or_else(|error| error.into_compile_error()).into()
}
