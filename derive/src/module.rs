//! `#[derive(Module)]`: an implementation of `Module::visit` that visits each field in order.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, Path, Result, parse_quote};

pub(crate) fn derive(input: DeriveInput) -> Result<TokenStream> {
    let autograd = autograd_path(&input)?;
    let body = match &input.data {
        Data::Struct(data) => {
            let (pattern, visits) = visit_fields(&data.fields, &autograd)?;
            quote! { let Self #pattern = *self; #visits }
        }
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                let (pattern, visits) = visit_fields(&variant.fields, &autograd)?;
                Ok(quote! { Self::#name #pattern => { #visits } })
            });
            let arms = arms.collect::<Result<Vec<_>>>()?;
            quote! { match *self { #(#arms)* } }
        }
        Data::Union(data) => {
            let message = "a union cannot be a Module: which of its fields is valid is unknown";
            return Err(Error::new(data.union_token.span, message));
        }
    };

    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#autograd::Module));
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let name = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #autograd::Module for #name #type_generics #where_clause {
            fn visit(&self, visitor: &mut dyn #autograd::Visitor) {
                #body
            }
        }
    })
}

/// The crate or module with `Module` and `Visitor`: `::meshgrad::autograd`, unless
/// `#[module(crate = path)]` names another.
fn autograd_path(input: &DeriveInput) -> Result<Path> {
    let mut path = parse_quote!(::meshgrad::autograd);
    for attribute in input.attrs.iter().filter(|it| it.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(
                    meta.error("unknown option; a type takes `crate = path`, a field `skip`")
                );
            }
            path = meta.value()?.parse()?;
            Ok(())
        })?;
    }
    Ok(path)
}

/// A pattern that binds the fields that are not skipped, and the statements that visit them.
fn visit_fields(fields: &Fields, autograd: &Path) -> Result<(TokenStream, TokenStream)> {
    let (mut patterns, mut visits) = (Vec::new(), Vec::new());
    for (at, field) in fields.iter().enumerate() {
        let skipped = is_skipped(field)?;
        let bound = format_ident!("field_{at}");
        let pattern = if skipped { quote!(_) } else { quote!(ref #bound) };
        patterns.push(match &field.ident {
            Some(name) => quote!(#name: #pattern),
            None => pattern,
        });
        if !skipped {
            let name = match &field.ident {
                Some(name) => name.unraw().to_string(),
                None => at.to_string(),
            };
            // The span of the field's type: an error about a missing `Module` points there.
            visits.push(quote_spanned! { field.ty.span() =>
                #autograd::Visitor::enter(visitor, &#name);
                #autograd::Module::visit(#bound, visitor);
                #autograd::Visitor::leave(visitor);
            });
        }
    }

    let pattern = match fields {
        Fields::Named(_) => quote!({ #(#patterns),* }),
        Fields::Unnamed(_) => quote!((#(#patterns),*)),
        Fields::Unit => quote!(),
    };
    Ok((pattern, quote! { let _ = &visitor; #(#visits)* }))
}

fn is_skipped(field: &Field) -> Result<bool> {
    let mut skipped = false;
    for attribute in field.attrs.iter().filter(|it| it.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("skip") {
            true => {
                skipped = true;
                Ok(())
            }
            false => Err(meta.error("unknown option; a field takes `skip`")),
        })?;
    }
    Ok(skipped)
}
