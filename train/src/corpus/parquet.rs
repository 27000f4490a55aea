//! Documents of a Parquet file: its columns `messages` and `text`.

use std::fs::File;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::Value;

use super::{CorpusError, Document, records};

/// Adds the documents of the file at `path`, whose rows are numbered from 1.
pub(super) fn read(path: &Path, documents: &mut Vec<Document>) -> Result<(), CorpusError> {
    // The library panics on some damaged files.
    let rows = catch_unwind(|| read_rows(path)).unwrap_or_else(|_| {
        Err(CorpusError::Parquet {
            path: path.to_owned(),
            problem: "the file is damaged".to_owned(),
        })
    });
    documents.extend(rows?);
    Ok(())
}

fn read_rows(path: &Path) -> Result<Vec<Document>, CorpusError> {
    let bad = |problem: String| CorpusError::Parquet {
        path: path.to_owned(),
        problem,
    };
    let invalid = |error: ParquetError| bad(error.to_string());
    let file = File::open(path).map_err(|source| CorpusError::Read {
        path: path.to_owned(),
        source,
    })?;
    let reader = SerializedFileReader::new(file).map_err(invalid)?;
    let columns = columns(reader.metadata().file_metadata().schema()).map_err(bad)?;
    let only = Type::group_type_builder("schema").with_fields(columns);
    let only = only.build().map_err(invalid)?;

    let name = path.to_string_lossy();
    let mut documents = Vec::new();
    for (index, row) in reader
        .get_row_iter(Some(only))
        .map_err(invalid)?
        .enumerate()
    {
        let number = index + 1;
        let record = object(&row.map_err(invalid)?);
        let document = records::document(format!("{name}:{number}"), &record);
        let document = document.map_err(|problem| bad(format!("row {number}: {problem}")))?;
        documents.extend(document);
    }
    Ok(documents)
}

/// The columns with the documents, in the order of the file.
fn columns(schema: &Type) -> Result<Vec<Arc<Type>>, String> {
    let all = schema.get_fields();
    let is_document = |column: &&Arc<Type>| ["messages", "text"].contains(&column.name());
    let found: Vec<Arc<Type>> = all.iter().filter(is_document).cloned().collect();
    if found.is_empty() {
        let names: Vec<&str> = all.iter().map(|column| column.name()).collect();
        let names = names.join(", ");
        return Err(format!("no column `text` or `messages` (columns: {names})"));
    }
    Ok(found)
}

fn object(row: &Row) -> Value {
    let fields = row.get_column_iter();
    Value::Object(
        fields
            .map(|(name, field)| (name.clone(), value(field)))
            .collect(),
    )
}

/// Strings, lists and groups; everything else is null.
fn value(field: &Field) -> Value {
    match field {
        Field::Str(text) => Value::String(text.clone()),
        // Some writers do not mark their strings as such.
        Field::Bytes(bytes) => bytes.as_utf8().map_or(Value::Null, Value::from),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::Group(row) => object(row),
        _ => Value::Null,
    }
}
