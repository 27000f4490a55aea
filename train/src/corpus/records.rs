//! Documents of records, as JSON Lines and Parquet have them: a `text`, or the `messages` of a
//! conversation.

use serde_json::Value;

use super::{ASSISTANT, Document, Turn};

/// The document `name` of a record; `None` if it is empty. A record with both fields is a
/// conversation. The error says what is wrong with the record.
pub(super) fn document(name: String, record: &Value) -> Result<Option<Document>, String> {
    let field = |name: &str| record.get(name).filter(|value| !value.is_null());
    let has_field = |name: &str| record.get(name).is_some();
    match (field("messages"), field("text")) {
        (Some(Value::Array(messages)), _) => conversation(name, messages),
        (None, Some(Value::String(text))) => {
            Ok((!text.is_empty()).then(|| Document::new(name, text.clone())))
        }
        (None, None) if has_field("messages") || has_field("text") => Ok(None),
        _ => Err(
            "no string in field `text` and no list in field `messages`; every record must be an \
             object with one of them"
                .to_owned(),
        ),
    }
}

fn conversation(name: String, messages: &[Value]) -> Result<Option<Document>, String> {
    let mut text = String::new();
    let mut turns = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let string = |field: &str| {
            let value = message.get(field).and_then(Value::as_str);
            value.ok_or_else(|| format!("no string in `messages[{index}].{field}`"))
        };
        let (role, content) = (string("role")?, string("content")?);
        if index > 0 {
            text.push('\n');
        }
        let start = text.len();
        text.push_str(content);
        turns.push(Turn { role: role.to_owned(), bytes: start..text.len() });
    }
    if turns.is_empty() {
        return Ok(None);
    }
    if turns.iter().all(|turn| turn.role != ASSISTANT) {
        let roles: Vec<&str> = turns.iter().map(|turn| turn.role.as_str()).collect();
        return Err(format!(
            "no message has the role `{ASSISTANT}`, so there is no answer to train (roles: {})",
            roles.join(", ")
        ));
    }
    Ok(Some(Document { name, text, turns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Option<Document>, String> {
        document("it".to_owned(), &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn messages_are_turns_of_the_text() {
        let json = r#"{"text": null, "messages": [{"role": "user", "content": "Why?"},
                       {"role": "assistant", "content": "Because.", "weight": 1}]}"#;
        let found = read(json).unwrap().unwrap();
        let turns = found.turns.iter();
        let turns: Vec<_> =
            turns.map(|turn| (turn.role.as_str(), &found.text[turn.bytes.clone()])).collect();
        assert_eq!(turns, [("user", "Why?"), ("assistant", "Because.")]);
    }

    #[test]
    fn empty_records_are_not_documents() {
        assert_eq!(read(r#"{"text": ""}"#).unwrap(), None);
        assert_eq!(read(r#"{"messages": []}"#).unwrap(), None);
        assert_eq!(read(r#"{"messages": null}"#).unwrap(), None);
    }

    #[test]
    fn records_without_text_are_errors() {
        let cases = [
            ("[]", "no string in field `text`"),
            (r#"{"messages": "hello"}"#, "no list in field `messages`"),
            (r#"{"messages": [{"role": "user"}]}"#, "`messages[0].content`"),
            (r#"{"messages": [{"from": "a"}]}"#, "`messages[0].role`"),
            (
                r#"{"messages": [{"role": "user", "content": "x"}]}"#,
                "no message has the role `assistant`",
            ),
        ];
        for (json, expected) in cases {
            let found = read(json).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
    }
}
