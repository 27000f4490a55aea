//! Documents of a Parquet file: its columns `messages` and `text`.

mod quiet;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use meshgrad_error::{Result, bail, error};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::Value;

use super::contents::Contents;
use super::text::to_text;
use super::{records, unreadable};

const MESSAGES: &str = "messages";
const TEXT: &str = "text";

/// The fields of a message that are read.
const OF_MESSAGE: [&str; 2] = ["role", "content"];

/// Adds the documents of the file at `path`, whose rows are numbered from 1.
pub(super) fn read(path: &Path, to: &mut Contents) -> Result<()> {
    // The library panics on some damaged files.
    let rows = quiet::catch_panic(|| read_rows(path))
        .unwrap_or_else(|| bail!(Malformed, "data: {}: the file is damaged", path.display()))?;
    to.documents.extend(rows.documents);
    to.replaced_bytes += rows.replaced_bytes;
    Ok(())
}

fn read_rows(path: &Path) -> Result<Contents> {
    let bad = |problem: String| error!(Malformed, "data: {}: {problem}", path.display());
    let invalid = |error: ParquetError| bad(error.to_string());
    let file = File::open(path).map_err(|cause| unreadable(path, cause))?;
    let reader = SerializedFileReader::new(file).map_err(invalid)?;
    let columns = columns(reader.metadata().file_metadata().schema()).map_err(bad)?;
    let only = Type::group_type_builder("schema").with_fields(columns);
    let only = only.build().map_err(invalid)?;

    let name = path.to_string_lossy();
    let mut rows = Contents::default();
    for (index, row) in reader.get_row_iter(Some(only)).map_err(invalid)?.enumerate() {
        let number = index + 1;
        let in_row = |problem: String| bad(format!("row {number}: {problem}"));
        let record = record(&row.map_err(invalid)?, &mut rows.replaced_bytes).map_err(in_row)?;
        let document = records::document(format!("{name}:{number}"), &record).map_err(in_row)?;
        rows.documents.extend(document);
    }
    Ok(rows)
}

/// The columns with the documents, in the order of the file.
fn columns(schema: &Type) -> Result<Vec<Arc<Type>>, String> {
    let all = schema.get_fields();
    let is_document = |column: &&Arc<Type>| [MESSAGES, TEXT].contains(&column.name());
    let found: Vec<Arc<Type>> = all.iter().filter(is_document).cloned().collect();
    if found.is_empty() {
        let names: Vec<&str> = all.iter().map(|column| column.name()).collect();
        let names = names.join(", ");
        return Err(format!("no column `text` or `messages` (columns: {names})"));
    }
    Ok(found)
}

/// Converts the columns of a row that make up its document: `text` is not read beside `messages`.
fn record(row: &Row, replaced_bytes: &mut u64) -> Result<Value, String> {
    let is_conversation =
        |(name, field): (&String, &Field)| name == MESSAGES && *field != Field::Null;
    match row.get_column_iter().any(is_conversation) {
        true => object(row, &[MESSAGES], replaced_bytes),
        false => object(row, &[MESSAGES, TEXT], replaced_bytes),
    }
}

/// Converts a row or group to an object with the fields `names`. The error names the field that is
/// not text.
fn object(row: &Row, names: &[&str], replaced_bytes: &mut u64) -> Result<Value, String> {
    // Other fields may be anything, such as the bytes of an image.
    let is_read = |(name, _): &(&String, &Field)| names.contains(&name.as_str());
    let field = |(name, field): (&String, &Field)| {
        let value = value(field, replaced_bytes);
        let value = value.map_err(|problem| format!("`{name}` is not text: {problem}"))?;
        Ok((name.clone(), value))
    };
    let fields = row.get_column_iter().filter(is_read).map(field);
    Ok(Value::Object(fields.collect::<Result<_, String>>()?))
}

/// Converts strings, lists and groups; everything else becomes null.
fn value(field: &Field, replaced_bytes: &mut u64) -> Result<Value, String> {
    Ok(match field {
        Field::Str(text) => Value::String(text.clone()),
        // Some writers do not mark their strings as such.
        Field::Bytes(bytes) => {
            let (text, replaced) = to_text(bytes.data().to_vec())?;
            *replaced_bytes += replaced;
            Value::String(text)
        }
        Field::ListInternal(list) => {
            let elements = list.elements().iter();
            let values = elements.map(|element| value(element, replaced_bytes));
            Value::Array(values.collect::<Result<_, String>>()?)
        }
        Field::Group(row) => object(row, &OF_MESSAGE, replaced_bytes)?,
        _ => Value::Null,
    })
}
